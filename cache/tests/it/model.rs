//! Random sequences of all events of a cache, compared with a simple reference model.
//!
//! The reference knows which artefact belongs to which key, which keys may exist, and which must
//! exist. A lookup returns the right artefact or none, and always finds an entry that must exist.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kjit_cache::{Artefact, BuildKey, Cache, Config, Export, Key, Scope};
use proptest::prelude::*;

const CASES: u32 = 300;
static RUNS: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);
const SOURCES: u8 = 4;
const MAKERS: u8 = 3;

#[derive(Debug, Clone)]
enum Step {
    Get(u8, u8),
    GetOrMake(u8, u8),
    FailToMake(u8, u8),
    Put(u8, u8),
    Find(u8),
    Quarantine(u8, u8),
    /// Another process opens the cache.
    Reopen,
    /// A writer dies and leaves a temporary file and a lock file.
    Crash(u8, u8),
    /// The entry's file is damaged: cut off, or with a byte changed.
    Damage(u8, u8, u16),
    /// Another program removes the file.
    Remove(u8, u8),
    RemoveAll,
    ClearSource(u8),
    Verify,
    PackAndForget,
    EvictNearlyAll,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (0..SOURCES, 0..MAKERS);
    prop_oneof![
        4 => key().prop_map(|(s, m)| Step::Get(s, m)),
        6 => key().prop_map(|(s, m)| Step::GetOrMake(s, m)),
        1 => key().prop_map(|(s, m)| Step::FailToMake(s, m)),
        3 => key().prop_map(|(s, m)| Step::Put(s, m)),
        3 => (0..SOURCES).prop_map(Step::Find),
        1 => key().prop_map(|(s, m)| Step::Quarantine(s, m)),
        2 => Just(Step::Reopen),
        2 => key().prop_map(|(s, m)| Step::Crash(s, m)),
        2 => (0..SOURCES, 0..MAKERS, any::<u16>()).prop_map(|(s, m, at)| Step::Damage(s, m, at)),
        1 => key().prop_map(|(s, m)| Step::Remove(s, m)),
        1 => Just(Step::RemoveAll),
        1 => (0..SOURCES).prop_map(Step::ClearSource),
        1 => Just(Step::Verify),
        1 => Just(Step::PackAndForget),
        1 => Just(Step::EvictNearlyAll),
    ]
}

fn source(source: u8) -> Key {
    Key::builder("model").field("source", [source]).finish()
}

fn key(s: u8, maker: u8) -> BuildKey {
    BuildKey::new(&source(s), |key| key.field("maker", [maker]))
}

fn artefact(s: u8, maker: u8) -> Artefact {
    Artefact::new(vec![s * 16 + maker; 300]).meta("source", s.to_string())
}

struct World {
    dir: tempfile::TempDir,
    cache: Cache,
    /// The entries that must exist. The last build of a source is its newest.
    there: BTreeSet<(u8, u8)>,
    newest: Vec<(u8, u8)>,
    has_pack: bool,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let cache = open(dir.path(), 1 << 20, false);
        Self { dir, cache, there: BTreeSet::new(), newest: Vec::new(), has_pack: false }
    }

    fn path(&self, s: u8, maker: u8) -> PathBuf {
        let hex = source(s).digest().hex();
        self.dir
            .path()
            .join("home/v1/e")
            .join(&hex[..2])
            .join(&hex)
            .join(key(s, maker).digest().hex())
    }

    fn added(&mut self, s: u8, maker: u8) {
        self.there.insert((s, maker));
        self.newest.retain(|known| *known != (s, maker));
        self.newest.push((s, maker));
    }

    fn gone(&mut self, s: u8, maker: u8) {
        self.there.remove(&(s, maker));
        self.newest.retain(|known| *known != (s, maker));
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Get(s, m) => {
                let found = self.cache.get(&key(s, m));
                assert_eq!(
                    found.is_some(),
                    self.there.contains(&(s, m)) || (self.has_pack && found.is_some())
                );
                if let Some(found) = found {
                    assert_eq!(found.entry.payload(), artefact(s, m).payload);
                }
            }
            Step::GetOrMake(s, m) => {
                let mut made = false;
                let Ok(found) = self.cache.get_or_make::<Infallible, _>(
                    &key(s, m),
                    Duration::from_secs(5),
                    || {
                        made = true;
                        Ok(artefact(s, m))
                    },
                );
                assert_eq!(found.entry.payload(), artefact(s, m).payload);
                assert!(!(made && self.there.contains(&(s, m))), "created although it existed");
                if made {
                    self.added(s, m);
                }
            }
            Step::FailToMake(s, m) => {
                let found =
                    self.cache.get_or_make(&key(s, m), Duration::from_secs(5), || Err("no"));
                assert!(found.is_ok() || !self.there.contains(&(s, m)));
            }
            Step::Put(s, m) => {
                self.cache.put(&key(s, m), &artefact(s, m));
                self.added(s, m);
            }
            Step::Find(s) => {
                let found = self.cache.find(&source(s), Scope::Everywhere, |_| true);
                let newest = self.newest.iter().rev().find(|(of, _)| *of == s);
                match (found, newest) {
                    (Some(found), Some((s, m))) => {
                        assert_eq!(found.entry.payload(), artefact(*s, *m).payload)
                    }
                    (None, Some(newest)) => panic!("{newest:?} was not found"),
                    (Some(found), None) => assert!(self.has_pack, "found {:?}", found.entry.key()),
                    (None, None) => {}
                }
            }
            Step::Quarantine(s, m) => {
                self.cache.quarantine(&key(s, m));
                assert!(self.cache.get(&key(s, m)).is_none());
                self.gone(s, m);
            }
            Step::Reopen => self.cache = open(self.dir.path(), 1 << 20, self.has_pack),
            Step::Crash(s, m) => {
                let below = self.path(s, m).parent().unwrap().to_owned();
                let locks = self.dir.path().join("home/v1/locks");
                let lock = format!("{}.lock", key(s, m).digest());
                for (dir, name) in [(below, "tmp-1-1-1"), (locks, lock.as_str())] {
                    if dir.is_dir() {
                        std::fs::write(dir.join(name), b"half an ent").unwrap();
                        std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o600))
                            .unwrap();
                    }
                }
            }
            Step::Damage(s, m, at) => {
                let path = self.path(s, m);
                if let Ok(mut bytes) = std::fs::read(&path) {
                    let at = usize::from(at) % bytes.len();
                    if at % 2 == 0 {
                        bytes.truncate(at);
                    } else {
                        bytes[at] ^= 1 << (at % 8);
                    }
                    std::fs::write(&path, bytes).unwrap();
                    self.gone(s, m);
                }
            }
            Step::Remove(s, m) => {
                if std::fs::remove_file(self.path(s, m)).is_ok() {
                    self.gone(s, m);
                }
            }
            Step::RemoveAll => {
                let _ = std::fs::remove_dir_all(self.dir.path().join("home"));
                self.there.clear();
                self.newest.clear();
            }
            Step::ClearSource(s) => {
                self.cache.clear(|info| info.meta["source"] == s.to_string());
                (0..MAKERS).for_each(|m| self.gone(s, m));
            }
            Step::Verify => {
                let report = self.cache.verify();
                assert!(report.good >= self.there.len() as u64, "{report:?}");
            }
            Step::PackAndForget => {
                let path = self.dir.path().join("all.kjitpack");
                let what = Export {
                    meta: Default::default(),
                    entries: &|_| true,
                    records: &|_| false,
                    secret: None,
                };
                self.cache.export(&path, &what).unwrap();
                self.has_pack = true;
                self.cache = open(self.dir.path(), 1 << 20, true);
            }
            Step::EvictNearlyAll => {
                let small = open(self.dir.path(), 1_200, false);
                small.put(&key(0, 0), &artefact(0, 0));
                let left = small.stat().layers[0].bytes;
                assert!(left <= 1_200, "{left} bytes");
                self.added(0, 0);
                let kept: Vec<(u8, u8)> = self
                    .there
                    .iter()
                    .copied()
                    .filter(|(s, m)| self.path(*s, *m).exists())
                    .collect();
                assert!(kept.contains(&(0, 0)), "the newest was evicted");
                self.there
                    .clone()
                    .iter()
                    .filter(|known| !kept.contains(known))
                    .for_each(|(s, m)| self.gone(*s, *m));
            }
        }
    }
}

fn open(dir: &Path, cap: u64, with_pack: bool) -> Cache {
    let config = Config::for_app("kjit").ignore_environment().dir(dir.join("home")).max_bytes(cap);
    Cache::open(if with_pack { config.read_only(dir.join("all.kjitpack")) } else { config })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lookup_after_random_steps_is_correct_or_empty(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        let taken = TAKEN.fetch_add(steps.len(), Ordering::Relaxed) + steps.len();
        if RUNS.fetch_add(1, Ordering::Relaxed) + 1 == CASES as usize {
            eprintln!("FIGURE random interleavings of publish, read, evict, \
                damage, crash, clear, pack against a reference | {CASES} runs, {taken} steps | 0");
        }
    }
}
