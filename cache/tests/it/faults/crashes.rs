//! SIGKILL before each system call of making and publishing an entry.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kjit_cache::{Origin, Scope};

use super::support::{
    DEADLINE, Killed, SMALL_CAP, Shim, artefact, assert_no_leftovers, child, describe, key, open,
    open_small, payload, scratch,
};

#[test]
fn kill_during_publish_leaves_no_lock_or_torn_entry() {
    let scratch = scratch();
    let (mut crashes, mut published) = (0, 0);
    for call in 1.. {
        let dir = scratch.path().join(format!("cache{call}"));
        let output =
            child("make", &dir).shim("").env("SHIM_KILL", call.to_string()).output().unwrap();
        if output.status.success() {
            break;
        }
        assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{}", describe(&output));
        crashes += 1;
        let cache = open(&dir);
        if let Some(found) = cache.get(&key("k")) {
            assert_eq!(found.entry.payload(), payload("k"), "torn at call {call}");
            published += 1;
        }
        let start = Instant::now();
        let found = cache
            .get_or_make::<std::convert::Infallible, _>(&key("k"), DEADLINE, || Ok(artefact("k")))
            .unwrap();
        assert!(start.elapsed() < DEADLINE / 10, "a stranded lock at call {call}");
        assert_eq!(found.entry.payload(), payload("k"));
        assert_eq!(
            open(&dir).get(&key("k")).map(|found| found.origin),
            Some(Origin::Home),
            "call {call}"
        );
        let report = cache.verify();
        assert_eq!((report.good, report.bad), (1, Vec::new()), "call {call}");
        assert_no_leftovers(&dir);
        assert_eq!(cache.counters().corrupt, 0, "call {call}");
    }
    eprintln!("FIGURE SIGKILL before each system call of make and publish | {crashes} points | 0");
    // There are at least this many system calls from the first lookup to the last clean-up. One of
    // them publishes the entry: it exists after each later call.
    assert!(crashes >= 25, "only {crashes} points: does the shim still see the calls?");
    assert!((1..crashes).contains(&published));
}

#[test]
fn kill_during_eviction_leaves_valid_entries_below_cap() {
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut crashes = 0;
    for call in 1.. {
        let dir = scratch.path().join(format!("cache{call}"));
        let cache = open_small(&dir);
        for name in ["a", "b", "c", "d"] {
            cache.put(&key(name), &artefact(name));
        }
        let output =
            child("evict", &dir).shim("").env("SHIM_KILL", call.to_string()).output().unwrap();
        if output.status.success() {
            break;
        }
        assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{}", describe(&output));
        crashes += 1;
        let cache = open_small(&dir);
        for name in ["k", "e"] {
            let made =
                cache.get_or_make::<std::convert::Infallible, _>(&key(name), DEADLINE, || {
                    Ok(artefact(name))
                });
            assert_eq!(made.unwrap().entry.payload(), payload(name), "call {call}");
        }
        let report = cache.verify();
        assert_eq!((report.bad, cache.counters().corrupt), (Vec::new(), 0), "call {call}");
        let bytes = cache.stat().layers[0].bytes;
        assert!((40_000..=SMALL_CAP).contains(&bytes), "{bytes} bytes after call {call}");
        assert_no_leftovers(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    eprintln!(
        "FIGURE SIGKILL before each system call of a publication that evicts | {crashes} points | 0"
    );
    assert!(crashes >= 60, "only {crashes} points");
}

#[test]
fn random_kills_leave_every_entry_intact() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    const ROUNDS: usize = 40;
    for _ in 0..ROUNDS {
        let mut writers: Vec<Killed> = (0..2)
            .map(|_| Killed(child("many", &dir).stdout(Stdio::null()).spawn().unwrap()))
            .collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(5 + (random >> 33) % 60));
        for writer in &mut writers {
            writer.0.kill().unwrap();
            writer.0.wait().unwrap();
        }
    }
    let cache = open(&dir);
    let report = cache.verify();
    assert_eq!(report.bad, []);
    assert!(report.good > 0, "the writers wrote nothing");
    let mut found = 0;
    for count in 0..200 {
        let name = format!("many-{count}");
        if let Some(entry) = cache.find(key(&name).source(), Scope::Everywhere, |_| true) {
            assert_eq!(entry.entry.payload(), payload(&name));
            found += 1;
        }
    }
    assert_eq!(found, report.good);
    eprintln!("FIGURE SIGKILL at random times, two writers | {} kills | 0", 2 * ROUNDS);
    assert_no_leftovers(&dir);
}
