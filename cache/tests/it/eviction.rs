//! Eviction: the size limit is kept, and frequently used entries stay.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kjit_cache::{Artefact, BuildKey, Cache, Config, Key, Origin};

const DEADLINE: Duration = Duration::from_secs(30);
const CAP: u64 = 10_000_000;

/// A temporary folder, in RAM if possible: these tests write 100 MB, and each entry is synced.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(dir: &Path, cap: u64) -> Cache {
    Cache::open(Config::for_app("kjit-test").ignore_environment().dir(dir).max_bytes(cap))
}

fn key(number: u64) -> BuildKey {
    let source = Key::builder("eviction").field("number", number.to_le_bytes()).finish();
    BuildKey::new(&source, |key| key.field("maker", "one"))
}

fn payload(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(100_000).collect()
}

/// Uses an entry. Returns whether it had to be made.
fn use_it(cache: &Cache, number: u64) -> bool {
    let Ok(found) = cache.get_or_make::<Infallible, _>(&key(number), DEADLINE, || {
        Ok(Artefact::new(payload(number)))
    });
    assert_eq!(found.entry.payload(), payload(number));
    found.origin == Origin::Made
}

fn home_bytes(cache: &Cache) -> u64 {
    cache.stat().layers[0].bytes
}

#[test]
fn eviction_respects_cap_and_keeps_hot_entries() {
    let dir = scratch();
    let cache = open(dir.path(), CAP);
    // 50 hot entries (5 MB), then 950 cold ones (95 MB), each used once, with the hot entries in
    // rotation in between. Between two uses of a hot entry 10 MB of others are used, so plain LRU
    // would evict every hot entry.
    for hot in (0..50).chain(0..50) {
        use_it(&cache, hot);
    }
    let (mut hot_made, mut peak) = (0, 0);
    for cold in 0..950 {
        use_it(&cache, 1_000 + cold);
        hot_made += u64::from(use_it(&cache, cold % 50));
        if cold % 50 == 0 {
            peak = peak.max(home_bytes(&cache));
        }
    }
    peak = peak.max(home_bytes(&cache));
    assert!(peak <= CAP + 200_000, "{peak} bytes under a cap of {CAP}");
    assert_eq!(hot_made, 0, "the hot set was thrown out and made again");
    assert_eq!(cache.warnings(), []);
    // Most of the size limit is used: the cache does not evict more than necessary.
    assert!(home_bytes(&cache) > CAP / 2);
}

#[test]
fn eviction_follows_use_not_file_times() {
    let dir = scratch();
    let cache = open(dir.path(), CAP);
    for number in 0..80 {
        use_it(&cache, number);
    }
    // Several processes use the entries in this order; the times of the files have the opposite
    // order.
    for number in (0..40).rev() {
        assert!(!use_it(&open(dir.path(), CAP), number));
    }
    let walk = |age: u64| std::time::UNIX_EPOCH + Duration::from_secs(1_000_000 * age);
    for info in cache.list() {
        let number = info.path.as_ref().map_or(0, |path| path.as_os_str().len() as u64);
        std::fs::File::options()
            .append(true)
            .open(info.path.unwrap())
            .unwrap()
            .set_modified(walk(number))
            .unwrap();
    }
    for number in 1_000..1_030 {
        use_it(&cache, number);
    }
    let present: Vec<u64> = (0..80).filter(|number| cache.get(&key(*number)).is_some()).collect();
    assert!((0..40).all(|number| present.contains(&number)), "used ones were evicted: {present:?}");
    assert!(present.len() < 80, "nothing was evicted");
    // The older of the unused entries were evicted.
    let unused: Vec<u64> = present.iter().copied().filter(|number| *number >= 40).collect();
    assert_eq!(unused, (80 - unused.len() as u64..80).collect::<Vec<_>>());
}

#[test]
fn entry_evicted_during_read_is_read_completely() {
    let dir = scratch();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (dir, stop, reads) = (dir.path(), &stop, &reads);
            scope.spawn(move || {
                let cache = open(dir, 1_000_000);
                let mut number = thread;
                while !stop.load(Ordering::Relaxed) {
                    number = (number * 5 + 7) % 40;
                    if let Some(found) = cache.get(&key(number)) {
                        assert_eq!(found.entry.payload(), payload(number));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
                assert_eq!((cache.counters().corrupt, cache.warnings()), (0, vec![]));
            });
        }
        // Catches a panic, so that the readers are stopped before it propagates.
        let writer = std::panic::catch_unwind(|| {
            let cache = open(dir.path(), 1_000_000);
            for round in 0..300 {
                use_it(&cache, round % 40);
            }
            assert!(cache.counters().made > 100, "nothing was evicted");
        });
        stop.store(true, Ordering::Relaxed);
        writer.unwrap();
    });
    assert!(reads.load(Ordering::Relaxed) > 100);
}

#[test]
fn artefact_above_cap_stays_in_memory_with_warning() {
    let dir = scratch();
    let cache = open(dir.path(), 50_000);
    assert!(use_it(&cache, 1));
    assert_eq!(cache.get(&key(1)).unwrap().origin, Origin::Memory);
    assert!(matches!(cache.warnings().as_slice(), [kjit_cache::Warning::TooLarge { .. }]));
}

#[test]
fn damaged_journal_loses_only_ranks() {
    for (what, contents) in [
        ("lost", None),
        ("empty", Some(Vec::new())),
        (
            "noise",
            Some((0..10_000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()),
        ),
        ("marks", Some(b"kjj1".repeat(5_000))),
    ] {
        let dir = scratch();
        let first = open(dir.path(), 1_000_000);
        for number in 0..9 {
            use_it(&first, number);
        }
        let journal = dir.path().join("v1/journal");
        match contents {
            None => std::fs::remove_file(&journal).unwrap(),
            Some(contents) => std::fs::write(&journal, contents).unwrap(),
        }
        for cache in [&first, &open(dir.path(), 1_000_000)] {
            for number in 0..30 {
                use_it(cache, number);
            }
        }
        // Without the journal the total is unknown until the next walk over all files, which
        // `verify` does.
        let cache = open(dir.path(), 1_000_000);
        assert_eq!(cache.verify().bad, [], "{what}");
        assert!(home_bytes(&cache) <= 1_000_000, "{what}: {} bytes", home_bytes(&cache));
    }
}

#[test]
fn journal_does_not_grow_with_use() {
    let dir = scratch();
    let cache = open(dir.path(), CAP);
    for number in 0..10 {
        cache.put(&key(number), &Artefact::new("small"));
    }
    let journal = dir.path().join("v1/journal");
    let (mut longest, mut last) = (0, 0);
    for round in 0..60_000 {
        assert!(cache.get(&key(round % 10)).is_some());
        if round % 1_000 == 0 {
            last = std::fs::metadata(&journal).unwrap().len();
            longest = longest.max(last);
        }
    }
    assert!(longest > 500_000, "the uses are not recorded: {longest} bytes");
    assert!(longest < 2_000_000 && last < longest, "{last} bytes, {longest} at its longest");
}

#[test]
fn clear_removes_exactly_the_filtered_entries() {
    let dir = scratch();
    let cache = open(dir.path(), CAP);
    for (number, arch) in [(1, "sm_90a"), (2, "gfx1100"), (3, "gfx1100")] {
        cache.put(&key(number), &Artefact::new("x").meta("arch", arch));
    }
    let cleared = cache.clear(|info| info.meta.get("arch").is_some_and(|arch| arch == "gfx1100"));
    assert_eq!(cleared.entries, 2);
    let left: Vec<_> = open(dir.path(), CAP).list().iter().map(|info| info.key.digest()).collect();
    assert_eq!(left, [key(1).digest()]);
    cache.clear(|_| true);
    assert_eq!((cache.list().len(), home_bytes(&cache)), (0, 0));
}
