//! The behaviour of the cache when nothing fails.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kjit_cache::{Artefact, BuildKey, Cache, Config, Key, Origin, Scope};

const DEADLINE: Duration = Duration::from_secs(20);

/// A temporary folder, in RAM if possible: these tests write thousands of files.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(dir: &std::path::Path) -> Cache {
    Cache::open(Config::for_app("kjit-test").ignore_environment().dir(dir))
}

fn source(name: &str) -> Key {
    Key::builder("test").content("source", name).field("target", "any").finish()
}

fn build(name: &str, maker: &str) -> BuildKey {
    BuildKey::new(&source(name), |key| key.field("maker", maker))
}

#[test]
fn stored_artefact_is_found_by_next_process() {
    let dir = scratch();
    let key = build("a", "one");
    let artefact = Artefact::new(vec![7; 50_000]).meta("kernel", "matvec").need("driver", "13.0");
    let cache = open(&dir.path().join("cache"));
    let made = cache.get_or_make::<Infallible, _>(&key, DEADLINE, || Ok(artefact.clone())).unwrap();
    assert_eq!(made.origin, Origin::Made);
    let again = open(&dir.path().join("cache")).get(&key).expect("kept");
    assert_eq!(again.origin, Origin::Home);
    assert_eq!(again.entry.payload(), artefact.payload);
    assert_eq!(again.entry.meta(), &artefact.meta);
    assert_eq!(again.entry.needs(), &artefact.needs);
    assert_eq!(again.entry.key(), &key);
    assert_eq!(again.entry.key().source().fields(), key.source().fields());
    assert_eq!(cache.warnings(), []);
}

#[test]
fn lookup_in_missing_cache_creates_nothing() {
    let dir = scratch();
    let cache = open(&dir.path().join("cache"));
    assert_eq!(cache.check_home(), Ok(false));
    assert_eq!(
        (cache.list().len(), cache.stat().layers[0].entries, cache.verify().good),
        (0, 0, 0)
    );
    assert_eq!((cache.clear(|_| true).entries, cache.records().len()), (0, 0));
    assert_eq!((cache.warnings(), cache.check_home()), (vec![], Ok(false)));
    assert!(!dir.path().join("cache").exists());
}

#[test]
fn find_returns_newest_accepted_build() {
    let dir = scratch();
    let cache = open(dir.path());
    for (maker, driver) in [("old", "12"), ("middle", "13"), ("new", "14")] {
        cache.put(&build("a", maker), &Artefact::new(maker).need("driver", driver));
    }
    let find = |driver: &str| {
        let found = cache.find(&source("a"), Scope::Everywhere, |entry| {
            entry.needs()["driver"].as_str() <= driver
        });
        found.map(|found| String::from_utf8_lossy(found.entry.payload()).into_owned())
    };
    assert_eq!(find("99").as_deref(), Some("new"));
    assert_eq!(find("13").as_deref(), Some("middle"));
    assert_eq!(find("11"), None);
    assert!(cache.find(&source("a"), Scope::ReadOnly, |_| true).is_none());
}

#[test]
fn key_depends_on_values_labels_and_order() {
    let digest = |fields: &[(&str, &str)]| {
        fields
            .iter()
            .fold(Key::builder("test"), |key, (label, value)| key.field(label, value))
            .finish()
            .digest()
    };
    let base = digest(&[("a", "bc"), ("d", "e")]);
    for other in [
        digest(&[("a", "bd"), ("d", "e")]),
        digest(&[("ab", "c"), ("d", "e")]),
        digest(&[("d", "e"), ("a", "bc")]),
        digest(&[("a", "bc")]),
        digest(&[("a", "bc"), ("d", "e"), ("", "")]),
        Key::builder("tes").field("ta", "bc").field("d", "e").finish().digest(),
    ] {
        assert_ne!(base, other);
    }
    let sorted = |pairs: [(&str, &str); 2]| Key::builder("test").sorted("constant", pairs).finish();
    assert_eq!(sorted([("n", "1"), ("m", "2")]), sorted([("m", "2"), ("n", "1")]));
}

#[test]
fn key_depends_on_headers_flags_constants_and_target() {
    let all = |header: &str, flags: &str, warps: &str, wave: &str, target: &str| {
        let source = Key::builder("kernel")
            .content("matvec.hip", "#include \"kjit.h\"")
            .content("kjit.h", header)
            .sorted("constant", [("N", "4096"), ("WARPS", warps)])
            .field("wave", wave)
            .field("target", target)
            .finish();
        BuildKey::new(&source, |key| key.field("flags", flags)).digest()
    };
    let mut digests = vec![
        all("typedef int i32;", "-O3", "8", "64", "gfx90a"),
        all("typedef int i32; ", "-O3", "8", "64", "gfx90a"),
        all("typedef int i32;", "-O2", "8", "64", "gfx90a"),
        all("typedef int i32;", "-O3", "4", "64", "gfx90a"),
        all("typedef int i32;", "-O3", "8", "32", "gfx90a"),
        all("typedef int i32;", "-O3", "8", "64", "gfx90a:xnack+"),
    ];
    assert_eq!(digests[0], all("typedef int i32;", "-O3", "8", "64", "gfx90a"));
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 6);
}

#[test]
fn key_digest_is_stable_across_crate_versions() {
    // A Python script computed the expected digest from the documented encoding.
    let key = Key::builder("test").field("a", "b").content("c", "text").finish();
    assert_eq!(
        key.digest().to_string(),
        "8b834029ccca26dac52c0a1888a4aca870242de0eb3d45165a15609ad65ae6f2"
    );
}

#[test]
fn threads_racing_for_one_key_make_it_once() {
    let dir = scratch();
    let (cache, made) = (open(dir.path()), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..128 {
            scope.spawn(|| {
                let found =
                    cache.get_or_make::<Infallible, _>(&build("a", "one"), DEADLINE, || {
                        made.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(30));
                        Ok(Artefact::new("result"))
                    });
                assert_eq!(found.unwrap().entry.payload(), b"result");
            });
        }
    });
    assert_eq!(made.load(Ordering::SeqCst), 1);
}

#[test]
fn maker_error_reaches_all_waiters_and_is_not_cached() {
    let dir = scratch();
    let (cache, made) = (open(dir.path()), AtomicU32::new(0));
    let gate = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                gate.wait();
                let found = cache.get_or_make(&build("a", "one"), DEADLINE, || {
                    made.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(200));
                    Err("no such instruction")
                });
                assert_eq!(found.unwrap_err(), "no such instruction");
            });
        }
    });
    assert_eq!(made.load(Ordering::SeqCst), 1);
    let retried = cache
        .get_or_make::<&str, _>(&build("a", "one"), DEADLINE, || Ok(Artefact::new("now it works")));
    assert_eq!(retried.unwrap().origin, Origin::Made);
}

#[test]
fn panic_in_maker_frees_the_key() {
    let dir = scratch();
    let cache = open(dir.path());
    let key = build("a", "one");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = cache.get_or_make::<Infallible, _>(&key, DEADLINE, || panic!("the maker died"));
    }));
    assert!(outcome.is_err());
    let started = std::time::Instant::now();
    let found =
        cache.get_or_make::<Infallible, _>(&key, DEADLINE, || Ok(Artefact::new("fine"))).unwrap();
    assert_eq!(found.origin, Origin::Made);
    assert!(started.elapsed() < DEADLINE / 4);
}

#[test]
fn quarantined_entry_is_remade_and_counted() {
    let dir = scratch();
    let cache = open(dir.path());
    let key = build("a", "one");
    cache.put(&key, &Artefact::new("bad"));
    assert_eq!(cache.quarantine(&key), 1);
    assert!(cache.get(&key).is_none());
    cache.put(&key, &Artefact::new("good"));
    assert_eq!(cache.get(&key).unwrap().entry.payload(), b"good");
    assert_eq!(cache.quarantine(&key), 2);
}

#[test]
fn records_are_stored_replaced_and_updated_without_loss() {
    let dir = scratch();
    let key = Key::builder("tuning").field("shape", "4096x4096").finish();
    let cache = open(dir.path());
    assert_eq!(cache.record(&key), None);
    cache.put_record(&key, b"{}");
    cache.put_record(&key, b"0");
    assert_eq!(open(dir.path()).record(&key).as_deref(), Some(&b"0"[..]));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let cache = open(dir.path());
                for _ in 0..10 {
                    cache.update_record(&key, DEADLINE, |old| {
                        let old: u32 = std::str::from_utf8(old.unwrap()).unwrap().parse().unwrap();
                        (old + 1).to_string().into_bytes()
                    });
                }
            });
        }
    });
    assert_eq!(cache.record(&key).as_deref(), Some(&b"40"[..]));
}
