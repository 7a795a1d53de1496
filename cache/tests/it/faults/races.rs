//! Races between many processes, stopped processes and forked processes.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kjit_cache::{Cache, Config, Origin, Warning};

use super::support::{
    DEADLINE, Killed, artefact, assert_no_leftovers, child, finish, key, open, payload, scratch,
    wait_for,
};

fn times_made(dir: &Path) -> usize {
    std::fs::read_to_string(dir.with_extension("made")).unwrap_or_default().lines().count()
}

#[test]
fn processes_racing_for_a_cold_key_make_it_once() {
    let scratch = scratch();
    for round in 0..3 {
        let dir = scratch.path().join(format!("cache{round}"));
        let mut racers: Vec<Killed> = (0..64)
            .map(|_| Killed(child("race", &dir).stdout(Stdio::null()).spawn().unwrap()))
            .collect();
        std::fs::write(dir.with_extension("gate"), "go").unwrap();
        for racer in &mut racers {
            assert!(racer.0.wait().unwrap().success());
        }
        assert_eq!(times_made(&dir), 1, "round {round}");
        assert_no_leftovers(&dir);
    }
    eprintln!(
        "FIGURE 64 processes racing for one cold key, 3 rounds | 192 processes, made 3 times | 0"
    );
}

#[test]
fn lock_of_stopped_process_is_awaited_until_deadline() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    let holder = Killed(child("hang", &dir).spawn().unwrap());
    wait_for("the holder", || times_made(&dir) == 1);
    holder.signal(libc::SIGSTOP);
    let cache = open(&dir);
    let start = Instant::now();
    let deadline = Duration::from_millis(400);
    let found =
        cache.get_or_make::<Infallible, _>(&key("k"), deadline, || Ok(artefact("k"))).unwrap();
    assert_eq!(found.origin, Origin::Made);
    assert!(start.elapsed() >= deadline, "it did not wait");
    assert!(start.elapsed() < deadline * 10, "it waited for {:?}", start.elapsed());
    assert!(
        matches!(cache.warnings().as_slice(), [Warning::LockTimeout { .. }]),
        "{:?}",
        cache.warnings()
    );
    // The entry was published nevertheless: the next lookup does not wait.
    let again =
        open(&dir).get_or_make::<Infallible, _>(&key("k"), DEADLINE, || unreachable!()).unwrap();
    assert_eq!((again.origin, again.entry.payload()), (Origin::Home, &payload("k")[..]));
}

#[test]
fn killed_maker_frees_its_key_for_waiters() {
    let scratch = scratch();
    let dir = scratch.path().join("cache");
    let mut holder = Killed(child("hang", &dir).spawn().unwrap());
    wait_for("the holder", || times_made(&dir) == 1);
    let cache = open(&dir);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let found = cache
                .get_or_make::<Infallible, _>(&key("k"), DEADLINE, || Ok(artefact("k")))
                .unwrap();
            (found.origin, Instant::now())
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiter.is_finished(), "it did not wait");
        holder.0.kill().unwrap();
        let killed = Instant::now();
        let (origin, done) = waiter.join().unwrap();
        assert_eq!(origin, Origin::Made);
        assert!(done - killed < DEADLINE / 10);
    });
    assert_eq!(cache.warnings(), []);
    assert_no_leftovers(&dir);
}

#[test]
fn late_visible_file_is_not_made_twice() {
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut made = 0;
    for round in 0..10 {
        let name = format!("late-{round}");
        let (winner, waiter) = (open(scratch.path()), open(scratch.path()));
        winner.put(&key("other"), &artefact("other"));
        let locks = scratch.path().join("v1/locks");
        std::fs::create_dir_all(&locks).unwrap();
        std::fs::set_permissions(&locks, PermissionsExt::from_mode(0o700)).unwrap();
        let path = locks.join(format!("{}.lock", key(&name).digest()));
        let lock = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path).unwrap();
        lock.lock().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let found = waiter
                    .get_or_make::<Infallible, _>(&key(&name), DEADLINE, || Ok(artefact(&name)));
                found.unwrap().origin == Origin::Made
            });
            std::thread::sleep(Duration::from_millis(30));
            std::fs::remove_file(&path).unwrap();
            lock.unlock().unwrap();
            // As on NFS: the lock is free, and the file that was renamed before becomes visible 12
            // ms later.
            std::thread::sleep(Duration::from_millis(12));
            winner.put(&key(&name), &artefact(&name));
            made += u32::from(waiting.join().unwrap());
        });
    }
    // A slow machine may fail in some rounds: the waiter stops looking before the file is visible.
    // A waiter that does not look at all fails in most rounds.
    assert!(made <= 3, "made twice in {made} of 10 rounds");
}

#[test]
fn threads_share_a_cache_during_eviction_and_quarantine() {
    let scratch = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let config =
        Config::for_app("fault").ignore_environment().dir(scratch.path()).max_bytes(500_000);
    let cache = Cache::open(config);
    std::thread::scope(|scope| {
        for thread in 0..128u64 {
            let cache = &cache;
            scope.spawn(move || {
                for step in 0..60 {
                    let number = (thread * 31 + step * 17) % 40;
                    let name = format!("shared-{number}");
                    let found = cache.get_or_make::<Infallible, _>(&key(&name), DEADLINE, || {
                        Ok(artefact(&name))
                    });
                    assert_eq!(found.unwrap().entry.payload(), payload(&name));
                    if step == 30 && thread % 32 == 0 {
                        cache.quarantine(&key(&name));
                    }
                }
            });
        }
    });
    assert_eq!(cache.counters().corrupt, 0);
    assert!(cache.counters().made < 128 * 60 / 2, "{:?}", cache.counters());
    assert_eq!(cache.verify().bad, []);
    assert_eq!(cache.warnings(), []);
}

#[test]
fn cache_works_in_both_processes_after_fork() {
    let scratch = scratch();
    finish(&mut child("fork", &scratch.path().join("cache")));
}

/// Runs in a child of the test above: uses one `Cache` before a fork, and after it in both
/// processes.
pub fn use_fork_and_use(dir: &Path) {
    let cache = open(dir);
    let use_it = |name: &str| {
        let found = cache
            .get_or_make::<Infallible, _>(&key(name), DEADLINE, || Ok(artefact(name)))
            .unwrap();
        found.entry.payload() == payload(name)
    };
    assert!(use_it("before"));
    // SAFETY: the child process uses only the cache and `_exit`, on its only thread; no other
    // thread of this process holds a lock that it could need.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    let mut good = true;
    for round in 0..50 {
        good &= use_it("before")
            && use_it(&format!("both-{round}"))
            && use_it(&format!("{}-{round}", pid == 0));
    }
    if pid == 0 {
        // SAFETY: ends the child without running destructors and handlers of the parent.
        unsafe { libc::_exit(if good { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this process, and the pointer is valid for the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(good && status == 0, "child {status}");
    assert_eq!(cache.warnings(), []);
    assert_no_leftovers(dir);
}
