//! The modes of the child processes that the fault tests start.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kjit_cache::{Cache, Config, Found, Scope};

use super::support::{DEADLINE, artefact, key, open, open_small, payload};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Appends a line to a log each time the artefact is made.
fn note_made(dir: &Path) {
    let log = dir.with_extension("made");
    // Other users cannot write there. Only tests of the owner count the lines.
    if let Ok(mut log) = OpenOptions::new().append(true).create(true).open(log) {
        log.write_all(b"made\n").unwrap();
    }
}

fn get_or_make(cache: &Cache, dir: &Path, name: &str, takes: Duration) -> Found {
    let found = cache.get_or_make::<Infallible, _>(&key(name), DEADLINE, || {
        note_made(dir);
        std::thread::sleep(takes);
        Ok(artefact(name))
    });
    let Ok(found) = found;
    assert_eq!(found.entry.payload(), payload(name), "a wrong artefact");
    found
}

#[test]
#[ignore = "runs inside the processes that the other tests start"]
fn entry() {
    let (mode, name) = (variable("FAULT_MODE"), variable("FAULT_KEY"));
    let dir = PathBuf::from(variable("FAULT_DIR"));
    match mode.as_str() {
        // Looks up one entry, makes it if it does not exist, and prints the result.
        "make" => {
            let _ = std::fs::File::open("/shim-start");
            let cache = open(&dir);
            let start = Instant::now();
            let found = get_or_make(&cache, &dir, &name, Duration::from_millis(5));
            eprintln!("ORIGIN {:?} after {} ms", found.origin, start.elapsed().as_millis());
            eprintln!("AGAIN {:?}", get_or_make(&cache, &dir, &name, Duration::ZERO).origin);
            for warning in cache.warnings() {
                eprintln!("WARNING {warning:?}: {warning}");
            }
        }
        // Like `make`, in a cache that has to evict an entry first.
        "evict" => {
            let cache = open_small(&dir);
            let _ = std::fs::File::open("/shim-start");
            get_or_make(&cache, &dir, &name, Duration::ZERO);
        }
        // Like `make`, with a compile so long that all processes start while it runs.
        "race" => {
            let gate = dir.with_extension("gate");
            while !gate.exists() {
                std::thread::sleep(Duration::from_micros(200));
            }
            get_or_make(&open(&dir), &dir, &name, Duration::from_millis(100));
        }
        // Opens the cache and looks up an entry by both keys and a missing one, between two marks
        // for the preloaded library.
        "look" => {
            let _ = std::fs::File::open("/shim-start");
            let cache = open(&dir);
            let found = [
                cache.get(&key(&name)),
                cache.find(key(&name).source(), Scope::Everywhere, |_| true),
            ];
            assert!(
                found.iter().flatten().all(|found| found.entry.payload() == payload(&name))
                    && found[0].is_some()
            );
            assert!(cache.get(&key("never made")).is_none());
            let _ = std::fs::File::open("/shim-stop");
        }
        // Holds the key's lock until it is killed.
        "hang" => {
            let cache = open(&dir);
            let _ = cache.get_or_make::<Infallible, _>(&key(&name), DEADLINE, || {
                note_made(&dir);
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
        }
        // Makes many entries, one after another, until it is killed.
        "many" => {
            let cache = Cache::open(
                Config::for_app("fault").ignore_environment().dir(&dir).max_bytes(2_000_000),
            );
            for count in 0.. {
                get_or_make(&cache, &dir, &format!("many-{}", count % 200), Duration::ZERO);
            }
        }
        // Uses the cache that the environment names.
        "user" => {
            let cache = Cache::open(Config::for_app("fault"));
            let found = get_or_make(&cache, &dir, &name, Duration::ZERO);
            eprintln!("ORIGIN {:?} HOME {:?}", found.origin, cache.home());
            eprintln!("AGAIN {:?}", get_or_make(&cache, &dir, &name, Duration::ZERO).origin);
            for warning in cache.warnings() {
                eprintln!("WARNING {warning:?}: {warning}");
            }
        }
        "put" => super::file_systems::put(&dir, &name),
        "fork" => super::races::use_fork_and_use(&dir),
        "" => {}
        other => panic!("no mode {other}"),
    }
}
