//! A server of packs: entries are taken once and kept, only with the right signature, and a server
//! that fails or is slow is left.

use kjit_cache::{
    Artefact, BuildKey, Cache, Config, Export, Key, RemotePacks, Scope, SecretKey, Warning,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

fn key(kernel: &str, maker: &str) -> BuildKey {
    let source = Key::builder("remote test").field("kernel", kernel).finish();
    BuildKey::new(&source, |key| key.field("maker", maker))
}

fn config(home: &Path) -> Config {
    Config::for_app("kjit").ignore_environment().dir(home)
}

/// The file of a kernel's pack, with two builds.
fn served(folder: &Path, kernel: &str, secret: &SecretKey) -> (String, Vec<u8>) {
    let maker = Cache::open(config(&folder.join("maker")));
    for build in ["one", "two"] {
        maker.put(&key(kernel, build), &Artefact::new(format!("{kernel} by {build}")));
    }
    let source = key(kernel, "one").source().digest();
    let path = folder.join("pack");
    let what = Export {
        meta: BTreeMap::new(),
        entries: &|e| e.key.source().digest() == source,
        records: &|_| false,
        secret: Some(secret),
    };
    maker.export(&path, &what).unwrap();
    (format!("{source}.kjitpack"), std::fs::read(&path).unwrap())
}

/// A cache with a server that has `files`. Counts the requests.
fn with_server(
    home: &Path,
    files: Vec<(String, Vec<u8>)>,
    secret: &SecretKey,
) -> (Cache, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let remote = RemotePacks::new("http://server", vec![secret.public()], TIMEOUT, move |name| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(files.iter().find(|(file, _)| file == name).map(|(_, bytes)| bytes.clone()))
    });
    (Cache::open(config(home).remote(remote)), asked)
}

#[test]
fn entries_of_the_server_are_taken_once_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let secret = SecretKey::from_bytes([7; 32]);
    let files = vec![served(dir.path(), "a", &secret)];
    let home = dir.path().join("home");
    let (cache, asked) = with_server(&home, files, &secret);
    let made = |key: &BuildKey| {
        let made = || Ok::<_, String>(Artefact::new("made here"));
        cache.get_or_make(key, Duration::from_secs(5), made).unwrap().entry.payload().to_vec()
    };
    assert_eq!(made(&key("a", "two")), b"a by two");
    // Another build of the same source needs no other request. A miss is made, and asked for once.
    assert_eq!(made(&key("a", "one")), b"a by one");
    assert_eq!(made(&key("a", "three")), b"made here");
    assert_eq!(made(&key("b", "one")), b"made here");
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert!(cache.warnings().is_empty(), "{:?}", cache.warnings());
    // A later process without a server has them.
    let later = Cache::open(config(&home));
    assert_eq!(later.get(&key("a", "two")).unwrap().entry.payload(), b"a by two");
}

#[test]
fn a_machine_without_a_maker_finds_builds_by_their_source() {
    let dir = tempfile::tempdir().unwrap();
    let secret = SecretKey::from_bytes([7; 32]);
    let files = vec![served(dir.path(), "a", &secret)];
    let (cache, _) = with_server(&dir.path().join("home"), files, &secret);
    let source = key("a", "one").source().clone();
    for scope in [Scope::ReadOnly, Scope::Everywhere] {
        let found = cache.find(&source, scope, |e| e.payload() == b"a by one").unwrap();
        assert_eq!(found.entry.payload(), b"a by one");
    }
    assert!(cache.find(&source, Scope::ReadOnly, |_| false).is_none());
}

#[test]
fn wrong_signatures_and_changed_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (secret, other) = (SecretKey::from_bytes([7; 32]), SecretKey::from_bytes([8; 32]));
    let (name, good) = served(dir.path(), "a", &secret);
    let mut random = 1u64;
    for turn in 0..40 {
        let mut bytes = good.clone();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (random >> 33) as usize % bytes.len();
        bytes[at] ^= 1 << (turn % 8);
        if turn % 5 == 0 {
            bytes.truncate(at);
        }
        let home = dir.path().join(format!("home{turn}"));
        let (cache, _) = with_server(&home, vec![(name.clone(), bytes)], &secret);
        for build in ["one", "two"] {
            let found = cache.get(&key("a", build));
            let wanted = format!("a by {build}");
            assert!(found.is_none_or(|f| f.entry.payload() == wanted.as_bytes()), "byte {at}");
        }
        assert!(!cache.warnings().is_empty(), "byte {at}: no warning");
    }
    let foreign = served(dir.path(), "a", &other);
    let (cache, _) = with_server(&dir.path().join("foreign"), vec![foreign], &secret);
    assert!(cache.get(&key("a", "one")).is_none());
    let said = cache.warnings();
    assert!(matches!(said.as_slice(), [Warning::PackRefused { .. }]), "{said:?}");
}

#[test]
fn a_server_that_fails_or_is_slow_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let public = SecretKey::from_bytes([7; 32]).public();
    for (slow, signers, most) in
        [(false, vec![public], 1), (true, vec![public], 3), (false, vec![], 0)]
    {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let budget = Duration::from_millis(50);
        let remote = RemotePacks::new("http://server", signers, budget, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            if !slow {
                return Err("it does not answer".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
            Ok(None)
        });
        let home = dir.path().join(format!("{slow}{most}"));
        let cache = Cache::open(config(&home).remote(remote));
        for n in 0..20 {
            assert!(cache.get(&key(&n.to_string(), "one")).is_none());
        }
        assert!(asked.load(Ordering::Relaxed) <= most, "{asked:?} requests");
        let left = cache.warnings();
        let left = left.iter().filter(|w| matches!(w, Warning::RemoteLeft { .. })).count();
        assert_eq!(left, usize::from(most > 0));
    }
}
