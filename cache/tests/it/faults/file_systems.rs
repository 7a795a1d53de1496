//! File systems that are full, read-only, without locks, slow to show new files, or that have wrong
//! times.

use std::convert::Infallible;
use std::path::Path;
use std::process::Command;

use kjit_cache::{Artefact, BuildKey, Key, Origin, Scope, Warning};

use super::support::{
    DEADLINE, NOBODY_AT_ALL, Shim, Tmpfs, artefact, assert_no_leftovers, child, entry_path,
    files_below, finish, key, open, payload, scratch,
};

fn make(cache: &kjit_cache::Cache, name: &str) -> Origin {
    let Ok(found) = cache.get_or_make::<Infallible, _>(&key(name), DEADLINE, || Ok(artefact(name)));
    assert_eq!(found.entry.payload(), payload(name));
    found.origin
}

#[track_caller]
fn assert_says(output: &str, parts: &[&str]) {
    for part in parts {
        assert!(output.contains(part), "no '{part}' in\n{output}");
    }
}

#[test]
fn ebusy_in_cleanup_after_rename_is_harmless() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    let rules = format!("unlink:{}:0:-1:", libc::EBUSY);
    assert_says(&finish(child("make", &dir).shim(&rules)), &["ORIGIN Made", "AGAIN Home"]);
    assert_says(&finish(child("make", &dir).shim(&rules)), &["ORIGIN Home"]);
    assert_says(
        &finish(child("make", &dir).shim(&rules).env("FAULT_KEY", "other")),
        &["ORIGIN Made", "AGAIN Home"],
    );
    // A file that could not be removed is removed by a later sweep.
    let report = open(&dir).verify();
    assert_eq!((report.good, report.bad), (2, Vec::new()));
    assert_no_leftovers(&dir);
}

#[test]
fn stale_handle_is_looked_up_again() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    make(&open(&dir), "k");
    let (source, build) = (key("k").source().digest().hex(), key("k").digest().hex());
    for name in [&source, &build, &source[..2].to_owned()] {
        for times in 1..=3 {
            let rules = format!("open:{}:0:{times}:={name}", libc::ESTALE);
            let output = finish(child("make", &dir).shim(&rules));
            assert_says(&output, &["ORIGIN Home", "AGAIN Home"]);
            assert!(!output.contains("WARNING"), "{output}");
        }
    }
    // A permanent error only costs a compile.
    let rules = format!("open:{}:0:-1:={build}", libc::ESTALE);
    assert_says(&finish(child("make", &dir).shim(&rules)), &["ORIGIN Made", "WARNING"]);
}

#[test]
fn lookup_is_correct_before_winners_file_is_visible() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    make(&open(&dir), "k");
    let build = key("k").digest().hex();
    for times in [1, 2, 3, 5, -1] {
        // The child checks every byte of the payload.
        let output =
            finish(child("make", &dir).shim(&format!("open:{}:0:{times}:={build}", libc::ENOENT)));
        let origin = if times == 1 { "ORIGIN Home" } else { "ORIGIN Made" };
        assert_says(&output, &[origin]);
    }
    assert_eq!(open(&dir).get(&key("k")).unwrap().entry.payload(), payload("k"));
    assert_no_leftovers(&dir);
}

#[test]
fn file_system_without_locks_works_unlocked() {
    let scratch = scratch();
    for (errno, name) in [(libc::ENOLCK, "nolck"), (libc::EOPNOTSUPP, "notsupp"), (libc::EIO, "io")]
    {
        let dir = scratch.path().join(name);
        let rules = format!("flock:{errno}:0:-1:");
        let output = finish(child("make", &dir).shim(&rules));
        assert_says(&output, &["ORIGIN Made", "AGAIN Home", "WARNING NoLocks"]);
        let many: Vec<_> = (0..8)
            .map(|_| child("make", &dir).env("FAULT_KEY", "x").shim(&rules).spawn().unwrap())
            .collect();
        for mut one in many {
            assert!(one.wait().unwrap().success());
        }
        assert_eq!(open(&dir).verify().bad, []);
    }
}

/// The part of paths by which the preloaded library distinguishes calls of the cache from calls of
/// the test.
fn where_met(call: &str) -> &'static str {
    match call {
        "open" => "tmp-",
        "write" | "half" => "/v1/",
        _ => "",
    }
}

#[test]
fn failed_write_leaves_no_partial_file() {
    let scratch = scratch();
    let (calls, mut tried) = (["open", "mkdir", "write", "fsync", "rename"], 0);
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EXDEV] {
        for call in calls.into_iter().filter(|call| errno != libc::EXDEV || *call == "rename") {
            let dir = scratch.path().join(format!("{call}{errno}"));
            let output = finish(
                child("make", &dir).shim(&format!("{call}:{errno}:0:-1:{}", where_met(call))),
            );
            assert_says(&output, &["ORIGIN Made", "AGAIN Memory", "WARNING NotWritable"]);
            assert_eq!(
                output.matches("WARNING NotWritable").count(),
                1,
                "{call} {errno}: {output}"
            );
            assert!(!entry_path(&dir, &key("k")).exists(), "{call} {errno}");
            assert_no_leftovers(&dir);
            assert_eq!(make(&open(&dir), "k"), Origin::Made, "{call} {errno}");
            tried += 1;
        }
    }
    eprintln!(
        "FIGURE ENOSPC, EDQUOT, EIO, EXDEV out of each call that writes | {tried} faults | 0"
    );
}

/// EDQUOT from the n-th call of each kind on, as with an exceeded quota, and in the middle of a
/// write. Few kernels have a tmpfs with quotas, so the preloaded library returns the error.
#[test]
fn quota_error_at_any_call_leaves_no_partial_file() {
    let scratch = scratch();
    let mut tried = 0;
    for call in ["open", "mkdir", "write", "half", "fsync", "rename"] {
        for after in 0..5 {
            let dir = scratch.path().join(format!("{call}-{after}"));
            make(&open(&dir), "was there");
            let (errno, text) = (libc::EDQUOT, where_met(call));
            let rules = match call {
                // The n-th write is cut in half, and the next one fails.
                "half" => {
                    format!("half:{errno}:{after}:-1:{text};write:{errno}:{}:-1:{text}", after + 1)
                }
                _ => format!("{call}:{errno}:{after}:-1:{text}"),
            };
            let output = finish(child("make", &dir).shim(&rules));
            assert_says(&output, &["ORIGIN Made"]);
            // The entry is either complete, or it is missing and the reason was reported once.
            let kept = entry_path(&dir, &key("k")).exists();
            assert_says(&output, &[if kept { "AGAIN Home" } else { "AGAIN Memory" }]);
            assert_no_leftovers(&dir);
            let report = open(&dir).verify();
            assert_eq!(
                (report.good, report.bad),
                (1 + u64::from(kept), vec![]),
                "{rules}: {output}"
            );
            assert_eq!(make(&open(&dir), "was there"), Origin::Home, "{rules}");
            if !kept {
                assert_says(&output, &["WARNING NotWritable", "quota"]);
            }
            assert!(output.matches("WARNING").count() <= 1, "{rules}: {output}");
            assert!(after > 0 || !kept, "{rules}: not one call failed");
            tried += 1;
        }
    }
    eprintln!(
        "FIGURE EDQUOT from the first to the fifth call of a kind on, \
         and in the middle of a write | {tried} points | 0"
    );
}

#[test]
fn full_disk_disables_caching_but_program_continues() {
    for free_pages in 0..12 {
        let Some(disk) = Tmpfs::mount("size=128k,mode=700") else { return };
        let dir = disk.path().join("cache");
        let filler = vec![1; (32 - free_pages) * 4096];
        std::fs::write(disk.path().join("filler"), &filler[..filler.len().saturating_sub(4096)])
            .unwrap();
        let cache = open(&dir);
        let origins: Vec<Origin> = (0..4).map(|count| make(&cache, &format!("k{count}"))).collect();
        assert!(origins.iter().all(|origin| *origin == Origin::Made));
        assert!(
            cache.warnings().iter().all(|warning| matches!(warning, Warning::NotWritable { .. }))
        );
        assert!(
            !cache.warnings().is_empty(),
            "four entries of 20 kB fitted into {free_pages} pages"
        );
        assert_no_leftovers(&dir);
        for count in 0..4 {
            assert!(matches!(make(&cache, &format!("k{count}")), Origin::Home | Origin::Memory));
        }
        let report = open(&dir).verify();
        assert_eq!(report.bad, [], "with {free_pages} pages");
        // After space is freed, the same cache uses it.
        std::fs::remove_file(disk.path().join("filler")).unwrap();
        make(&cache, "later");
        assert_eq!(make(&open(&dir), "later"), Origin::Home);
    }
    eprintln!("FIGURE a full disk, page by page of room | 12 disks | 0");
}

#[test]
fn inode_exhaustion_disables_caching_but_program_continues() {
    for inodes in 2..14 {
        let Some(disk) = Tmpfs::mount(&format!("size=1m,nr_inodes={inodes},mode=700")) else {
            return;
        };
        let dir = disk.path().join("cache");
        let cache = open(&dir);
        for count in 0..6 {
            assert_eq!(make(&cache, &format!("k{count}")), Origin::Made);
        }
        for count in 0..6 {
            assert!(matches!(make(&cache, &format!("k{count}")), Origin::Home | Origin::Memory));
        }
        assert!(!cache.warnings().is_empty(), "six entries in {inodes} inodes");
        assert_no_leftovers(&dir);
        assert_eq!(open(&dir).verify().bad, []);
    }
    eprintln!("FIGURE a disk out of inodes, inode by inode | 12 disks | 0");
}

/// A real quota, if tmpfs supports it (Linux 6.6 and later, with the build option). The test above
/// covers EDQUOT in any case.
#[test]
fn exhausted_quota_disables_caching_but_program_continues() {
    if !super::support::is_root() {
        return;
    }
    for (blocks, inodes) in [(48, 100), (100, 9), (100, 12), (4, 100)] {
        let options = format!(
            "size=4m,mode=777,usrquota,usrquota_block_hardlimit={blocks}k,usrquota_inode_hardlimit={inodes}"
        );
        let Some(disk) = Tmpfs::mount(&options) else { return };
        let scratch = scratch();
        let dir = disk.path().join("cache");
        for name in ["a", "b", "c", "d"] {
            let mut command = super::support::child_as(NOBODY_AT_ALL, "make", &dir, scratch.path());
            let output = finish(command.env("FAULT_KEY", name));
            assert!(output.contains("ORIGIN Made"), "{output}");
        }
        let mut command = super::support::child_as(NOBODY_AT_ALL, "make", &dir, scratch.path());
        let output = finish(command.env("FAULT_KEY", "e"));
        assert_says(&output, &["WARNING NotWritable", "AGAIN Memory", "quota"]);
        assert_no_leftovers(&dir);
    }
}

#[test]
fn lookup_calls_do_not_grow_with_entry_count() {
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (small, large) = (scratch.path().join("small"), scratch.path().join("large"));
    let calls = |dir: &Path| {
        let output = finish(child("look", dir).shim(""));
        let line = output.lines().find_map(|line| line.strip_prefix("CALLS ")).map(str::to_owned);
        line.and_then(|count| count.parse::<u32>().ok()).unwrap_or_else(|| panic!("{output}"))
    };
    make(&open(&small), "k");
    make(&open(&large), "k");
    for number in 0..20_000u32 {
        // Written directly: nothing is synced, and the journal does not know these entries.
        let key = key(&format!("other {number}"));
        let path = entry_path(&large, &key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, kjit_cache::Entry::encode(&key, &Artefact::new("x"), 1)).unwrap();
    }
    let (few, many) = (calls(&small), calls(&large));
    eprintln!(
        "FIGURE system calls of opening and three look-ups, \
         among 1 and among 20,001 entries | {few} and {many} | –"
    );
    // The one additional call opens the shard folder (one of 256) of the missing key, which exists
    // here.
    assert!((10..100).contains(&few) && (few..=few + 1).contains(&many), "{few} and {many} calls");
}

#[test]
fn read_only_cache_keeps_new_entries_in_memory() {
    let Some(disk) = Tmpfs::mount("size=1m,mode=700") else { return };
    let dir = disk.path().join("cache");
    make(&open(&dir), "old");
    let (record, earlier) = (Key::builder("record").finish(), b"earlier");
    open(&dir).put_record(&record, earlier);
    disk.remount("ro");
    let cache = open(&dir);
    // A record that cannot be written to the home directory still replaces the older record.
    cache.put_record(&record, b"later");
    assert_eq!(cache.record(&record).as_deref(), Some(&b"later"[..]));
    assert_eq!(cache.records().len(), 1);
    disk.remount("rw");
    assert_eq!(open(&dir).record(&record).as_deref(), Some(&earlier[..]));
    disk.remount("ro");
    assert_eq!(make(&cache, "old"), Origin::Home);
    assert_eq!(make(&cache, "new"), Origin::Made);
    assert_eq!(make(&cache, "new"), Origin::Memory);
    assert_eq!(make(&cache, "newer"), Origin::Made);
    assert!(
        matches!(cache.warnings().as_slice(), [Warning::NotWritable { .. }]),
        "{:?}",
        cache.warnings()
    );
    // After a load failure the same bytes must not be returned again, even if no file can be
    // removed.
    cache.quarantine(&key("old"));
    assert!(cache.get(&key("old")).is_none());
    assert_eq!(make(&cache, "old"), Origin::Made);
    assert_eq!(make(&cache, "old"), Origin::Memory);
}

#[test]
fn cache_removed_while_open_is_recreated() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    let cache = open(&dir);
    make(&cache, "k");
    for removed in [
        dir.clone(),
        dir.join("v1"),
        dir.join("v1/e"),
        dir.join("v1/locks"),
        dir.join("v1/journal"),
    ] {
        if removed.is_dir() {
            std::fs::remove_dir_all(&removed).unwrap();
        } else {
            std::fs::remove_file(&removed).unwrap();
        }
        make(&cache, "k");
        assert_eq!(make(&cache, "k"), Origin::Home, "without {}", removed.display());
        make(&cache, "another");
    }
    assert_eq!(cache.warnings(), []);
    assert_eq!(make(&open(&dir), "k"), Origin::Home);
}

fn put_with_clock(dir: &Path, maker: &str, seconds: i64) {
    let mut command = child("put", dir);
    finish(command.env("FAULT_KEY", maker).shim("").env("SHIM_CLOCK", seconds.to_string()));
}

#[test]
fn newest_build_is_found_despite_wrong_clocks_and_mtimes() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    let source = Key::builder("fault").content("source", "clock").finish();
    let years = 365 * 86_400;
    for (maker, clock) in
        [("first", 0), ("second", 30 * years), ("third", -20 * years), ("fourth", 0)]
    {
        put_with_clock(&dir, maker, clock);
        let far = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
        for path in files_below(&dir) {
            std::fs::File::options().append(true).open(path).unwrap().set_modified(far).unwrap();
        }
        let found = open(&dir).find(&source, Scope::Everywhere, |_| true).unwrap();
        assert_eq!(found.entry.payload(), maker.as_bytes());
    }
    // The newest build is used, even if the clock shows a time before all other builds.
    put_with_clock(&dir, "fifth", -years);
    assert_eq!(
        open(&dir).find(&source, Scope::Everywhere, |_| true).unwrap().entry.payload(),
        b"fifth"
    );
}

/// The mode `put`: stores the build of one source by this maker.
pub fn put(dir: &Path, maker: &str) {
    let source = Key::builder("fault").content("source", "clock").finish();
    let build = BuildKey::new(&source, |key| key.field("maker", maker));
    open(dir).put(&build, &Artefact::new(maker));
}

#[test]
fn copied_cache_directory_gives_hits() {
    let scratch = scratch();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("elsewhere/second"));
    make(&open(&first), "k");
    std::fs::create_dir(scratch.path().join("elsewhere")).unwrap();
    assert!(Command::new("cp").arg("-r").args([&first, &second]).status().unwrap().success());
    assert_eq!(make(&open(&second), "k"), Origin::Home);
}
