//! Corrupt entries are never used: they are quarantined and made again once.

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kjit_cache::{
    Artefact, BuildKey, Cache, Config, Entry, EntryError, Key, Origin, Scope, Warning,
};

/// A temporary folder, in RAM if possible: these tests write thousands of files.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(dir: &Path) -> Cache {
    Cache::open(Config::for_app("kjit-test").ignore_environment().dir(dir))
}

fn key(name: &str) -> BuildKey {
    let source = Key::builder("test").content("source", name).field("target", "any").finish();
    BuildKey::new(&source, |key| key.field("maker", "one"))
}

fn artefact(name: &str) -> Artefact {
    Artefact::new(format!("the artefact of {name}")).meta("name", name).need("driver", "13")
}

fn path_of(dir: &Path, key: &BuildKey) -> PathBuf {
    let source = key.source().digest().hex();
    dir.join("v1/e").join(&source[..2]).join(&source).join(key.digest().hex())
}

fn write(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

/// A cache with the entry "k"; also the path and bytes of the entry.
fn filled() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let dir = scratch();
    open(dir.path()).put(&key("k"), &artefact("k"));
    let path = path_of(dir.path(), &key("k"));
    let bytes = std::fs::read(&path).unwrap();
    (dir, path, bytes)
}

/// Asserts that no lookup returns the file with the entry's name, that it is reported, and that the
/// entry is made again exactly once.
#[track_caller]
fn assert_made_again_once(dir: &Path, what: &str) {
    let cache = open(dir);
    assert!(cache.get(&key("k")).is_none(), "{what} was run");
    assert!(
        cache.find(key("k").source(), Scope::Everywhere, |_| true).is_none(),
        "{what} was found by source"
    );
    let mut made = 0;
    for _ in 0..3 {
        let found = cache.get_or_make::<Infallible, _>(&key("k"), Duration::from_secs(5), || {
            made += 1;
            Ok(artefact("k"))
        });
        assert_eq!(found.unwrap().entry.payload(), artefact("k").payload);
    }
    assert_eq!(made, 1, "{what}");
    assert!(
        matches!(cache.warnings().as_slice(), [Warning::Corrupt { .. }]),
        "{what}: {:?}",
        cache.warnings()
    );
    assert_eq!(open(dir).get(&key("k")).map(|found| found.origin), Some(Origin::Home), "{what}");
}

#[test]
fn truncated_entry_is_never_returned() {
    let (dir, path, bytes) = filled();
    for len in 0..bytes.len() {
        let error = Entry::decode(bytes[..len].to_vec()).unwrap_err();
        assert!(!error.to_string().is_empty());
        write(&path, &bytes[..len]);
        assert!(open(dir.path()).get(&key("k")).is_none(), "cut off at {len}");
    }
    eprintln!("FIGURE an entry cut off at each length | {} lengths | 0", bytes.len());
    write(&path, &bytes[..bytes.len() - 1]);
    assert_made_again_once(dir.path(), "a cut off entry");
}

#[test]
fn entry_with_flipped_bit_is_never_returned() {
    let (dir, path, bytes) = filled();
    let mut tried = 0;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(Entry::decode(flipped.clone()).is_err(), "bit {bit} of byte {at}");
            tried += 1;
            if bit == at % 8 {
                write(&path, &flipped);
                assert!(
                    open(dir.path()).get(&key("k")).is_none(),
                    "bit {bit} of byte {at}, from disk"
                );
            }
        }
    }
    eprintln!("FIGURE an entry with one bit flipped, each bit of each byte | {tried} bits | 0");
    let mut flipped = bytes;
    flipped[70] ^= 1;
    write(&path, &flipped);
    assert_made_again_once(dir.path(), "a flipped bit");
}

#[test]
fn entry_with_damaged_bytes_is_never_returned() {
    let (dir, path, bytes) = filled();
    let other = Entry::encode(&key("other"), &artefact("other"), 5);
    let zeros = vec![0; bytes.len()];
    let half_zero = [&bytes[..bytes.len() / 2], &zeros[bytes.len() / 2..]].concat();
    let longer = [&bytes[..], b"x"].concat();
    let twice = [&bytes[..], &bytes[..]].concat();
    for (what, contents) in [
        ("zeros", zeros),
        ("a half of zeros", half_zero),
        ("a longer entry", longer),
        ("two entries", twice),
        ("another key's entry", other),
        ("an empty file", Vec::new()),
    ] {
        write(&path, &contents);
        assert_made_again_once(dir.path(), what);
    }
}

#[test]
fn entry_in_directory_of_other_source_is_never_found() {
    let (dir, path, _) = filled();
    let other = key("other");
    let misplaced = path.with_file_name(other.digest().hex());
    write(&misplaced, &Entry::encode(&other, &artefact("other"), u64::MAX));
    let cache = open(dir.path());
    let found = cache.find(key("k").source(), Scope::Everywhere, |_| true).unwrap();
    assert_eq!(found.entry.payload(), artefact("k").payload);
}

#[test]
fn entry_of_other_format_version_is_reported() {
    let (dir, path, bytes) = filled();
    for format in [0u32, 2, 77, u32::MAX] {
        let mut foreign = bytes.clone();
        foreign[8..12].copy_from_slice(&format.to_le_bytes());
        assert_eq!(
            Entry::decode(foreign.clone()).unwrap_err(),
            EntryError::Format { found: format }
        );
        write(&path, &foreign);
        assert_made_again_once(dir.path(), "a foreign format");
    }
}

#[test]
fn non_file_at_entry_path_is_moved_away() {
    let (dir, path, _) = filled();
    let steps: Vec<PathBuf> = path.ancestors().take(3).map(Path::to_owned).collect();
    for step in &steps {
        for what in
            ["directory", "full directory", "fifo", "dangling link", "link to itself", "file"]
        {
            if step.is_dir() {
                std::fs::remove_dir_all(step).unwrap();
            } else {
                let _ = std::fs::remove_file(step);
            }
            match what {
                "directory" => std::fs::create_dir(step).unwrap(),
                "full directory" => std::fs::create_dir_all(step.join("a/b")).unwrap(),
                "fifo" => {
                    let name = std::ffi::CString::new(step.to_str().unwrap()).unwrap();
                    // SAFETY: the name is a valid string that ends in NUL.
                    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
                }
                "dangling link" => std::os::unix::fs::symlink("/nonexistent", step).unwrap(),
                "link to itself" => std::os::unix::fs::symlink(step, step).unwrap(),
                _ => write(step, b"something"),
            }
            for path in [step.clone(), step.join("a")] {
                if path.is_dir() {
                    std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
                }
            }
            let cache = open(dir.path());
            assert!(cache.get(&key("k")).is_none(), "{what} at {}", step.display());
            let made =
                cache.get_or_make::<Infallible, _>(&key("k"), Duration::from_secs(5), || {
                    Ok(artefact("k"))
                });
            assert_eq!(made.unwrap().origin, Origin::Made);
            let again = open(dir.path()).get(&key("k"));
            assert_eq!(
                again.map(|found| found.origin),
                Some(Origin::Home),
                "{what} at {} stayed",
                step.display()
            );
        }
    }
}

#[test]
fn wrong_file_types_at_internal_paths_are_moved_away() {
    let lock = format!("locks/{}.lock", key("k").digest());
    for name in ["locks", "aside", "journal", "e", "r", "locks/maintenance", &lock] {
        for what in ["file", "directory", "full directory", "fifo", "link", "writable for all"] {
            let dir = scratch();
            let base = dir.path().join("v1");
            let place = base.join(name);
            for below in place.ancestors().skip(1).take_while(|path| path.starts_with(&base)) {
                std::fs::create_dir_all(below).unwrap();
            }
            match what {
                "file" => write(&place, b"something"),
                "directory" => std::fs::create_dir(&place).unwrap(),
                "full directory" => std::fs::create_dir_all(place.join("a/b")).unwrap(),
                "fifo" => {
                    let name = std::ffi::CString::new(place.to_str().unwrap()).unwrap();
                    // SAFETY: the name is a valid string that ends in NUL.
                    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
                }
                "link" => std::os::unix::fs::symlink(dir.path(), &place).unwrap(),
                _ => {
                    write(&place, b"");
                    std::fs::set_permissions(&place, PermissionsExt::from_mode(0o666)).unwrap();
                }
            }
            for below in [&place, &place.join("a"), &base, &base.join("locks")] {
                if below.is_dir() && !below.is_symlink() {
                    std::fs::set_permissions(below, PermissionsExt::from_mode(0o700)).unwrap();
                }
            }
            let config = || {
                Config::for_app("kjit-test").ignore_environment().dir(dir.path()).max_bytes(3_000)
            };
            let cache = Cache::open(config());
            let made =
                cache.get_or_make::<Infallible, _>(&key("k"), Duration::from_secs(5), || {
                    Ok(artefact("k"))
                });
            assert_eq!(made.unwrap().origin, Origin::Made, "{what} at {name}");
            cache.put_record(&Key::builder("record").finish(), b"{}");
            for number in 0..20 {
                cache.put(&key(&number.to_string()), &artefact("x"));
            }
            // An obstacle to a lookup is reported. An obstacle to a lock or the journal is not
            // reported, because no result is lost.
            let quiet = !["e", "r"].contains(&name);
            assert!(
                cache
                    .warnings()
                    .iter()
                    .all(|said| !quiet && matches!(said, Warning::Corrupt { .. })),
                "{name}"
            );
            let cache = Cache::open(config());
            assert_eq!(
                cache.get(&key("19")).map(|found| found.origin),
                Some(Origin::Home),
                "{what} at {name}"
            );
            assert!(cache.record(&Key::builder("record").finish()).is_some(), "{what} at {name}");
            assert!(
                cache.stat().layers[0].bytes <= 3_000,
                "{what} at {name}: the cap does not hold"
            );
        }
    }
}

#[test]
fn verify_finds_repairs_and_reports_faults() {
    let (dir, path, bytes) = filled();
    let cache = open(dir.path());
    for name in ["a", "b", "c"] {
        cache.put(&key(name), &artefact(name));
    }
    cache.put_record(&Key::builder("record").finish(), b"{}");
    // An incomplete entry, a good entry with a wrong name, an incomplete record, and the file of a
    // killed writer.
    write(&path_of(dir.path(), &key("a")), b"torn");
    std::fs::remove_file(path_of(dir.path(), &key("b"))).unwrap();
    let wrong = path.with_file_name(key("b").digest().hex());
    write(&wrong, &Entry::encode(&key("b"), &artefact("b"), 5));
    cache.put_record(&Key::builder("torn").finish(), b"{}");
    let record = Key::builder("torn").finish().digest().hex();
    write(&dir.path().join("v1/r").join(&record[..2]).join(&record), b"torn");
    write(&path.with_file_name("tmp-1-2-3"), &bytes);

    let report = open(dir.path()).verify();
    assert_eq!((report.good, report.moved, report.bad.len()), (4, 1, 2), "{report:?}");
    assert!(report.bad.iter().any(|(path, _)| *path == path_of(dir.path(), &key("a"))));
    assert!(!wrong.exists() && !path.with_file_name("tmp-1-2-3").exists());
    let cache = open(dir.path());
    assert_eq!(cache.get(&key("b")).unwrap().entry.payload(), artefact("b").payload);
    let again = cache.verify();
    assert_eq!((again.good, again.moved, again.bad.len()), (4, 0, 0), "{again:?}");
}

#[test]
fn quarantine_directory_stays_small() {
    let (dir, path, bytes) = filled();
    for round in 0..40 {
        if round % 2 == 0 {
            write(&path, &bytes[1..]);
        } else {
            std::fs::create_dir_all(path.join("deep/er")).unwrap();
            for dir in [path.clone(), path.join("deep"), path.join("deep/er")] {
                std::fs::set_permissions(dir, PermissionsExt::from_mode(0o700)).unwrap();
            }
        }
        assert!(open(dir.path()).get(&key("k")).is_none());
    }
    let aside = std::fs::read_dir(dir.path().join("v1/aside")).unwrap().count();
    assert!((1..=16).contains(&aside), "{aside} files set aside");
}

#[test]
fn replaced_compiler_with_equal_mtime_has_new_digest() {
    let dir = scratch();
    let (cache_dir, library) = (dir.path().join("cache"), dir.path().join("libcompiler.so"));
    std::fs::write(&library, vec![1; 100_000]).unwrap();
    let before = library.metadata().unwrap().modified().unwrap();
    let cache = open(&cache_dir);
    let first = cache.file_digest(&library).unwrap();
    assert_eq!(first, kjit_cache::Digest::of(&vec![1; 100_000]));
    assert!(cache.records().is_empty(), "remembered while the file could still change unseen");
    std::thread::sleep(Duration::from_millis(4_200));
    assert_eq!(cache.file_digest(&library).unwrap(), first);
    // The digest is stored in a record: the forged record is used, so the file was not read.
    let records = cache.records();
    let [(memo, _)] = records.as_slice() else { panic!("{} records", records.len()) };
    cache.put_record(memo, &[7; 32]);
    assert_eq!(cache.file_digest(&library).unwrap().0, [7; 32]);
    // The file changes in place while the process runs: its name, inode, size and modification time
    // stay.
    std::fs::write(&library, vec![2; 100_000]).unwrap();
    std::fs::File::options().append(true).open(&library).unwrap().set_modified(before).unwrap();
    assert_eq!(library.metadata().unwrap().modified().unwrap(), before);
    assert_eq!(cache.file_digest(&library).unwrap(), kjit_cache::Digest::of(&vec![2; 100_000]));
    // The file is replaced by rename, with all times restored.
    let replacement = dir.path().join("new");
    std::fs::write(&replacement, vec![3; 100_000]).unwrap();
    std::fs::File::options().append(true).open(&replacement).unwrap().set_modified(before).unwrap();
    std::fs::rename(&replacement, &library).unwrap();
    assert_eq!(cache.file_digest(&library).unwrap(), kjit_cache::Digest::of(&vec![3; 100_000]));
    assert!(cache.file_digest(dir.path().join("absent")).is_err());
}
