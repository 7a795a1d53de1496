//! The seeds of the fuzzer, checked by the same function as in the fuzzer.
//!
//! `KJIT_TEST_OUT=1 cargo test -p kjit-cache fuzz_seeds` writes them again.

use std::path::{Path, PathBuf};

use kjit_cache::{Artefact, BuildKey, Cache, Config, Entry, Export, Key, SecretKey};

#[path = "support/exercise.rs"]
mod exercise;

/// A temporary folder, in RAM if possible: these tests write thousands of files.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn seeds(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target)
}

fn key(name: &str) -> BuildKey {
    let source = Key::builder("seed").content("source", name).field("target", "any").finish();
    BuildKey::new(&source, |key| key.field("maker", "one").sorted("flag", [("b", "2"), ("a", "1")]))
}

fn wanted() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let artefact =
        Artefact::new("payload").meta("name", "seed").meta("arch", "any").need("driver", "13");
    let full = Entry::encode(&key("full"), &artefact, 1_700_000_000_000);
    let bare = Entry::encode(&key("bare"), &Artefact::default(), 0);
    // Some seeds have no checksum: the exercise adds it.
    let open = full[..full.len() - 32].to_vec();

    let dir = scratch();
    let pack = |names: &[&str], secret: Option<&SecretKey>| {
        // Created without a clock, so that the bytes are always equal.
        let maker = Cache::open(
            Config::for_app("seed").ignore_environment().dir(dir.path().join(names.concat())),
        );
        for name in names {
            plant(
                &dir.path().join(names.concat()),
                &key(name),
                &Entry::encode(&key(name), &artefact, 7),
            );
        }
        let path = dir.path().join("x");
        let meta = [("model".to_owned(), "seed".to_owned())].into();
        maker
            .export(&path, &Export { meta, entries: &|_| true, records: &|_| true, secret })
            .unwrap();
        std::fs::read(&path).unwrap()
    };
    let two = pack(&["a", "b"], None);
    let index = two.len() - 24 - 128 - 2 * Entry::encode(&key("a"), &artefact, 7).len();
    let mut unsealed = (index as u16).to_le_bytes().to_vec();
    unsealed.extend_from_slice(&two[24..24 + index]);
    unsealed.extend_from_slice(&two[24 + index + 128..]);
    vec![
        ("cache_entry", "full", full),
        ("cache_entry", "bare", bare),
        ("cache_entry", "unsealed", open),
        ("cache_pack", "empty", pack(&[], None)),
        ("cache_pack", "signed", pack(&["a"], Some(&SecretKey::from_bytes([5; 32])))),
        ("cache_pack", "two", two),
        ("cache_pack", "unsealed", unsealed),
    ]
}

/// Writes an entry to the path where the cache searches for it.
fn plant(dir: &Path, key: &BuildKey, bytes: &[u8]) {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let source = key.source().digest().hex();
    let below = dir.join("v1/e").join(&source[..2]).join(&source);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&below).unwrap();
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(below.join(key.digest().hex()))
        .unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
}

#[test]
fn seeds_equal_output_of_current_format() {
    for (target, name, bytes) in wanted() {
        let path = seeds(target).join(name);
        if std::env::var_os("KJIT_TEST_OUT").is_some() {
            std::fs::create_dir_all(seeds(target)).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert!(
            std::fs::read(&path).unwrap() == bytes,
            "{} is another; see this file's head",
            path.display()
        );
    }
}

#[test]
fn readers_accept_every_seed_at_any_length() {
    let dir = scratch();
    let scratch_file = dir.path().join("x");
    let mut tried = 0;
    for target in ["cache_entry", "cache_pack"] {
        for item in std::fs::read_dir(seeds(target)).unwrap() {
            let bytes = std::fs::read(item.unwrap().path()).unwrap();
            for len in (0..=bytes.len()).rev() {
                match target {
                    "cache_entry" => exercise::entry(&bytes[..len]),
                    _ => exercise::pack(&bytes[..len], &scratch_file),
                }
                tried += 1;
            }
        }
    }
    eprintln!("FIGURE the fuzzers' seeds cut off at each length | {tried} lengths | 0");
    assert!(tried > 1_000);
}
