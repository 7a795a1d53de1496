//! Packs: the cache reads their entries from the pack file, and refuses invalid packs.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kjit_cache::{
    Artefact, BuildKey, Cache, Config, Export, Exported, Key, Origin, Pack, PackError, Scope,
    SecretKey, Warning,
};

/// A temporary folder, in RAM if possible: these tests write thousands of files.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn config(dir: &Path) -> Config {
    Config::for_app("kjit").ignore_environment().dir(dir)
}

fn source(name: &str) -> Key {
    Key::builder("pack").content("source", name).finish()
}

fn key(name: &str, maker: &str) -> BuildKey {
    BuildKey::new(&source(name), |key| key.field("maker", maker))
}

fn artefact(name: &str, maker: &str) -> Artefact {
    Artefact::new(format!("{name} by {maker}").repeat(20)).meta("arch", name).need("driver", "13")
}

fn export(cache: &Cache, path: &Path, secret: Option<&SecretKey>) -> Exported {
    let meta = BTreeMap::from([("model".to_owned(), "smollm2".to_owned())]);
    cache.export(path, &Export { meta, entries: &|_| true, records: &|_| true, secret }).unwrap()
}

/// A folder with a pack of three entries and a record, created from another cache by the maker
/// "far".
fn packed(secret: Option<&SecretKey>) -> (tempfile::TempDir, PathBuf) {
    let dir = scratch();
    let cache = Cache::open(config(&dir.path().join("maker")));
    for name in ["a", "b", "c"] {
        cache.put(&key(name, "far"), &artefact(name, "far"));
    }
    cache.put_record(&source("tuning"), b"{\"best\": 3}");
    let path = dir.path().join("x.kjitpack");
    let exported = export(&cache, &path, secret);
    assert_eq!((exported.entries, exported.records), (3, 1));
    assert_eq!(exported.bytes, path.metadata().unwrap().len());
    (dir, path)
}

fn secret(number: u8) -> SecretKey {
    SecretKey::from_bytes([number; 32])
}

#[test]
fn pack_is_read_in_place_also_for_other_compilers() {
    let (dir, path) = packed(None);
    for layer in [path.clone(), dir.path().to_owned()] {
        let cache = Cache::open(config(&dir.path().join("home")).read_only(layer));
        let exact = cache.get(&key("a", "far")).unwrap();
        assert_eq!(
            (exact.origin, exact.entry.payload()),
            (Origin::ReadOnly(path.clone()), &artefact("a", "far").payload[..])
        );
        assert!(cache.get(&key("a", "near")).is_none());
        for scope in [Scope::ReadOnly, Scope::Everywhere] {
            let found =
                cache.find(&source("b"), scope, |entry| entry.needs()["driver"] == "13").unwrap();
            assert_eq!(found.entry.payload(), artefact("b", "far").payload);
            assert!(
                cache.find(&source("b"), scope, |entry| entry.needs()["driver"] == "14").is_none()
            );
        }
        assert_eq!(cache.record(&source("tuning")).as_deref(), Some(&b"{\"best\": 3}"[..]));
        assert_eq!(cache.warnings(), []);
    }
    assert!(!dir.path().join("home").exists(), "reading a pack wrote something");
}

#[test]
fn pack_never_replaces_a_local_build() {
    let (dir, path) = packed(None);
    let home = dir.path().join("home");
    let local = Cache::open(config(&home));
    local.put(&key("a", "far"), &Artefact::new("built here"));
    local.put(&key("b", "near"), &Artefact::new("built here, too"));
    let cache = Cache::open(config(&home).read_only(&path));
    assert_eq!(cache.get(&key("a", "far")).unwrap().entry.payload(), b"built here");
    let found = cache.find(&source("b"), Scope::Everywhere, |_| true).unwrap();
    assert_eq!((found.origin, found.entry.payload()), (Origin::Home, &b"built here, too"[..]));
    let imported = cache.import(&path, &[]).unwrap();
    assert_eq!((imported.taken, imported.present, imported.refused), (3, 1, vec![]));
    assert_eq!(
        Cache::open(config(&home)).get(&key("a", "far")).unwrap().entry.payload(),
        b"built here"
    );
}

#[test]
fn import_copies_all_entries_from_the_pack() {
    let (dir, path) = packed(None);
    let home = dir.path().join("home");
    assert_eq!(Cache::open(config(&home)).import(&path, &[]).unwrap().taken, 4);
    std::fs::remove_file(&path).unwrap();
    let cache = Cache::open(config(&home));
    assert_eq!(cache.get(&key("c", "far")).unwrap().origin, Origin::Home);
    assert_eq!(cache.record(&source("tuning")).as_deref(), Some(&b"{\"best\": 3}"[..]));
}

#[test]
fn equal_entries_give_identical_packs() {
    let (dir, path) = packed(None);
    let again = dir.path().join("again.kjitpack");
    export(&Cache::open(config(&dir.path().join("maker"))), &again, None);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
    // The entries pass through another cache, which receives them in another order.
    let home = dir.path().join("home");
    let cache = Cache::open(config(&home));
    cache.import(&path, &[]).unwrap();
    export(&cache, &again, None);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap());
}

#[test]
fn required_signer_refuses_other_packs() {
    let (dir, unsigned) = packed(None);
    let (good, other) = (secret(1), secret(2));
    let maker = Cache::open(config(&dir.path().join("maker")));
    let (signed, foreign) = (dir.path().join("signed.pack"), dir.path().join("foreign.pack"));
    export(&maker, &signed, Some(&good));
    export(&maker, &foreign, Some(&other));
    let home = Cache::open(config(&dir.path().join("home")));
    for (path, fits) in [(&signed, true), (&foreign, false), (&unsigned, false)] {
        let import = home.import(path, &[good.public()]);
        assert_eq!(import.is_ok(), fits, "{import:?}");
        let cache =
            Cache::open(config(&dir.path().join("other")).read_only(path).signer(good.public()));
        assert_eq!(cache.get(&key("a", "far")).is_some(), fits);
        assert_eq!(cache.warnings().is_empty(), fits, "{:?}", cache.warnings());
    }
    assert_eq!(Pack::open(&signed, &[]).unwrap().signer(), Some(good.public()));
    assert!(matches!(Pack::open(&foreign, &[good.public()]), Err(PackError::Refused { .. })));
    // Keys can be written as text and parsed again.
    assert_eq!(good.public().to_string().parse::<kjit_cache::PublicKey>().unwrap(), good.public());
    assert!(!format!("{good:?}").contains("01010101"), "a secret key is printed");
}

#[test]
fn signature_cannot_be_moved_or_forged() {
    let (dir, path) = packed(Some(&secret(1)));
    let bytes = std::fs::read(&path).unwrap();
    let index_len = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let seal = 24 + index_len;
    let reseal = |mut bytes: Vec<u8>| {
        let checksum = kjit_cache::Digest::of(&bytes[..seal + 96]);
        bytes[seal + 96..seal + 128].copy_from_slice(&checksum.0);
        let path = dir.path().join("forged.pack");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        Pack::open(&path, &[secret(1).public()])
    };
    assert!(reseal(bytes.clone()).is_ok());
    let mut changed = 0;
    for at in (12..seal + 96).step_by(3) {
        let mut forged = bytes.clone();
        forged[at] ^= 4;
        assert!(reseal(forged).is_err(), "byte {at}");
        changed += 1;
    }
    // The flag says "not signed", but the key is still there.
    let mut stripped = bytes.clone();
    stripped[12..16].copy_from_slice(&0u32.to_le_bytes());
    assert!(reseal(stripped).is_err());
    assert!(changed > 100);
}

#[test]
fn pack_with_changed_byte_is_correct_or_refused() {
    let (dir, path) = packed(None);
    let bytes = std::fs::read(&path).unwrap();
    let broken = dir.path().join("broken.pack");
    let names = ["a", "b", "c"];
    let (mut opened, mut served) = (0, 0);
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        std::fs::write(&broken, flipped).unwrap();
        opened += u32::from(Pack::open(&broken, &[]).is_ok());
        let cache = Cache::open(config(&dir.path().join("none")).memory_only().read_only(&broken));
        let good = names.iter().filter(|name| {
            let found = cache.get(&key(name, "far"));
            if let Some(found) = &found {
                assert_eq!(found.entry.payload(), artefact(name, "far").payload, "byte {at}");
            }
            found.is_some()
        });
        let good = good.count();
        let record = cache.record(&source("tuning"));
        assert!(record.as_deref().is_none_or(|value| value == b"{\"best\": 3}"), "byte {at}");
        assert!(good + usize::from(record.is_some()) <= 3, "byte {at} was not noticed");
        assert!(!cache.warnings().is_empty(), "byte {at} was passed over in silence");
        served += good;
    }
    eprintln!("FIGURE a pack with each byte changed | {} bytes | 0", bytes.len());
    // A fault in one entry makes only that entry unusable; a fault in the index makes the pack
    // unusable.
    assert!(opened > 0 && served > 0);
}

#[test]
fn truncated_or_extended_pack_is_not_opened() {
    let (dir, path) = packed(Some(&secret(1)));
    let bytes = std::fs::read(&path).unwrap();
    let broken = dir.path().join("broken.pack");
    for len in 0..bytes.len() {
        std::fs::write(&broken, &bytes[..len]).unwrap();
        assert!(Pack::open(&broken, &[]).is_err(), "cut off at {len}");
    }
    eprintln!("FIGURE a pack cut off at each length | {} lengths | 0", bytes.len());
    std::fs::write(&broken, [&bytes[..], b"\0"].concat()).unwrap();
    assert!(Pack::open(&broken, &[]).is_err());
}

#[test]
fn pack_truncated_while_open_is_an_error_without_sigbus() {
    let (dir, path) = packed(None);
    let cache = Cache::open(config(&dir.path().join("home")).read_only(&path));
    assert!(cache.get(&key("a", "far")).is_some());
    std::fs::File::options().write(true).open(&path).unwrap().set_len(700).unwrap();
    for name in ["a", "b", "c"] {
        assert!(cache.get(&key(name, "far")).is_none());
    }
    assert!(cache.warnings().iter().all(|warning| matches!(warning, Warning::Corrupt { .. })));
    assert!(!cache.verify().bad.is_empty());
}

#[test]
fn pack_writable_by_others_needs_a_trusted_signature() {
    let (_dir, path) = packed(Some(&secret(1)));
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(matches!(Pack::open(&path, &[]), Err(PackError::Refused { .. })));
    assert!(Pack::open(&path, &[secret(1).public()]).is_ok());
    let link = path.with_extension("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(Pack::open(&link, &[secret(1).public()]), Err(PackError::Refused { .. })));
}

#[test]
fn quarantined_entry_is_not_taken_from_pack() {
    let (dir, path) = packed(None);
    let cache = Cache::open(config(&dir.path().join("home")).read_only(&path));
    assert!(cache.get(&key("a", "far")).is_some());
    assert_eq!(cache.quarantine(&key("a", "far")), 1);
    assert!(cache.get(&key("a", "far")).is_none());
    assert!(cache.find(&source("a"), Scope::ReadOnly, |_| true).is_none());
    assert!(cache.get(&key("b", "far")).is_some());
}

#[test]
fn several_packs_serve_their_own_targets() {
    let dir = scratch();
    let mut config_with_packs = config(&dir.path().join("home"));
    for arch in ["gfx1100", "sm_90a"] {
        let maker = Cache::open(config(&dir.path().join(arch)));
        maker.put(&key(arch, "far"), &artefact(arch, "far"));
        let path = dir.path().join(format!("{arch}.kjitpack"));
        export(&maker, &path, None);
        config_with_packs = config_with_packs.read_only(path);
    }
    let cache = Cache::open(config_with_packs.read_only(dir.path().join("not there")));
    for arch in ["gfx1100", "sm_90a"] {
        let found = cache.find(&source(arch), Scope::ReadOnly, |_| true).unwrap();
        assert_eq!(found.origin, Origin::ReadOnly(dir.path().join(format!("{arch}.kjitpack"))));
    }
    // The metadata of each pack says what it was made for, so that an error can name the missing
    // target.
    assert!(cache.find(&source("gfx942"), Scope::Everywhere, |_| true).is_none());
    let made_for: Vec<&str> =
        cache.packs().iter().map(|pack| pack.meta()["model"].as_str()).collect();
    assert_eq!(made_for, ["smollm2", "smollm2"]);
    let archs: Vec<String> = cache.list().iter().map(|info| info.meta["arch"].clone()).collect();
    assert_eq!(archs, ["gfx1100", "sm_90a"]);
    assert_eq!(cache.warnings(), []);
}

#[test]
fn export_writes_each_record_once_by_layer_priority() {
    let (dir, first) = packed(None);
    // A second pack with another value for the same key, a read-only directory with one more
    // record, and a home folder.
    let other = Cache::open(config(&dir.path().join("other")));
    other.put_record(&source("tuning"), b"{\"best\": 4}");
    let second = dir.path().join("y.kjitpack");
    assert_eq!(export(&other, &second, None).records, 1);
    let shared = Cache::open(config(&dir.path().join("shared")));
    shared.put_record(&source("shared"), b"5");
    let cache = Cache::open(
        config(&dir.path().join("home"))
            .read_only(&first)
            .read_only(&second)
            .read_only(dir.path().join("shared")),
    );
    cache.put_record(&source("own"), b"6");
    let third = dir.path().join("z.kjitpack");
    let exported = export(&cache, &third, None);
    assert_eq!((exported.entries, exported.records), (3, 3));
    // Exported again: the order in which layers were read does not matter.
    let again = dir.path().join("again.kjitpack");
    export(&cache, &again, None);
    assert_eq!(std::fs::read(&third).unwrap(), std::fs::read(&again).unwrap());

    let reader = Cache::open(config(&dir.path().join("reader")));
    assert_eq!(reader.import(&third, &[]).unwrap().taken, 6);
    for (name, value) in [("tuning", "{\"best\": 3}"), ("shared", "5"), ("own", "6")] {
        assert_eq!(reader.record(&source(name)).as_deref(), Some(value.as_bytes()), "{name}");
    }
    // An import does not replace a local record.
    cache.put_record(&source("tuning"), b"{\"best\": 7}");
    assert_eq!(cache.record(&source("tuning")).as_deref(), Some(&b"{\"best\": 7}"[..]));
    assert_eq!(cache.import(&first, &[]).unwrap().present, 1);
    assert_eq!(cache.record(&source("tuning")).as_deref(), Some(&b"{\"best\": 7}"[..]));
}
