//! The cache: looks up entries in all layers, creates missing artefacts, publishes them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::config::Config;
use crate::entry::{Artefact, Entry, HEADER_LEN, peek_created};
use crate::flight::{FlightGroup, FlightResult, Role};
use crate::journal::Journal;
use crate::key::{BuildKey, Digest, Key};
use crate::layer::{Layer, layers_at};
use crate::lock::{self, KeyLock, Outcome};
use crate::memory::MemoryLayer;
use crate::remote::Remote;
use crate::safe_dir::{Fault, is_privileged};
use crate::store::{DirStore, ItemPath};
use crate::warning::{Warning, Warnings};

/// After another process has created an entry, it may become visible late (NFS caches its absence).
/// Number and pause of further lookups before the entry is created again.
const LATE_LOOKUPS: u32 = 3;
const LATE_PAUSE: Duration = Duration::from_millis(10);

/// The origin of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The home directory.
    Home,
    /// A read-only layer.
    ReadOnly(PathBuf),
    /// The process's memory.
    Memory,
    /// Another thread of this process created the entry while this one waited.
    Shared,
    /// This call created the entry.
    Made,
}

/// An entry and its origin.
#[derive(Debug, Clone)]
pub struct Found {
    /// The verified entry.
    pub entry: Entry,
    /// The layer of the entry.
    pub origin: Origin,
}

/// The layers that [`Cache::find`] searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only read-only layers, whose entries come from other machines. Callers that can create
    /// artefacts use this.
    ReadOnly,
    /// All layers, the home directory first. Callers that cannot create artefacts use this.
    Everywhere,
}

/// Counters since the cache was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lookups that found an entry.
    pub hits: u64,
    /// Lookups that found no entry.
    pub misses: u64,
    /// Artefacts that [`Cache::get_or_make`] created.
    pub made: u64,
    /// Entries written to the home directory.
    pub published: u64,
    /// Faulty entries that were found and not used.
    pub corrupt: u64,
}

#[derive(Default)]
pub(crate) struct CounterCells {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) made: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) corrupt: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The state of a key whose artefact could not be used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnusableEntry {
    pub(crate) times: u32,
    /// The entry could not be removed from the home directory, so it is not read from there until a
    /// new one is published.
    pub(crate) home: bool,
}

/// A cache of expensive artefacts. Open it once and share it between threads; see the crate's
/// documentation.
pub struct Cache {
    pub(crate) config: Config,
    pub(crate) home: Option<DirStore>,
    /// Set when the home directory is found to be unwritable: no further attempt follows.
    pub(crate) read_only: AtomicBool,
    pub(crate) layers: Vec<Layer>,
    pub(crate) memory: Mutex<MemoryLayer>,
    pub(crate) records: Mutex<HashMap<Digest, (Key, Vec<u8>)>>,
    pub(crate) distrusted: Mutex<HashMap<Digest, UnusableEntry>>,
    pub(crate) warnings: Warnings,
    pub(crate) tally: CounterCells,
    pub(crate) journal: Mutex<Journal>,
    pub(crate) remote: Option<Remote>,
    flights: FlightGroup,
}

impl Cache {
    /// Opens the cache. Never fails: unusable layers are omitted, and [`Cache::warnings`] has the
    /// reason.
    pub fn open(config: Config) -> Self {
        let warnings = Warnings::new(config.on_warning.clone());
        let privileged = is_privileged();
        let home = if privileged { None } else { config.home_dir() }.map(DirStore::new);
        if privileged {
            warnings.push(Warning::Privileged);
        } else if home.is_none() && config.home != crate::config::HomeDir::Memory {
            warnings.push(Warning::NoHome);
        }
        let paths = if privileged { Vec::new() } else { config.read_only_paths() };
        let cache = Self {
            layers: paths
                .iter()
                .flat_map(|path| layers_at(path, &config.app, &|w| warnings.push(w)))
                .collect(),
            memory: Mutex::new(MemoryLayer::new(config.memory_bytes)),
            records: Mutex::default(),
            distrusted: Mutex::default(),
            tally: CounterCells::default(),
            journal: Mutex::default(),
            flights: FlightGroup::default(),
            read_only: AtomicBool::new(false),
            remote: config.remote.clone().filter(|_| !privileged).map(Remote::new),
            config,
            home,
            warnings,
        };
        if let Some(home) = &cache.home
            && let Err(fault) = home.base()
            && !fault.is_absent()
        {
            cache.warn_unusable(home, &fault);
            cache.read_only.store(is_final(&fault), Ordering::Relaxed);
        }
        cache
    }

    /// The directory for new entries; `None` if the cache has no such directory.
    pub fn home(&self) -> Option<&std::path::Path> {
        self.home.as_ref().map(DirStore::path)
    }

    /// Distinct warnings since the cache was opened, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings.all()
    }

    /// Counters since the cache was opened.
    pub fn counters(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            hits: read(&self.tally.hits),
            misses: read(&self.tally.misses),
            made: read(&self.tally.made),
            published: read(&self.tally.published),
            corrupt: read(&self.tally.corrupt),
        }
    }

    /// The entry with this build key, from the first layer that has it: home, memory, read-only
    /// layers.
    pub fn get(&self, key: &BuildKey) -> Option<Found> {
        let found = self.look_up(key);
        count(if found.is_some() { &self.tally.hits } else { &self.tally.misses });
        found
    }

    /// The newest entry of `source` that `accept` accepts, from any maker. `accept` checks its
    /// [`needs`](Entry::needs). Layers are searched in the order home, memory, read-only layers.
    pub fn find(
        &self,
        source: &Key,
        scope: Scope,
        accept: impl Fn(&Entry) -> bool,
    ) -> Option<Found> {
        let found = self.search(source.digest(), scope, &accept);
        count(if found.is_some() { &self.tally.hits } else { &self.tally.misses });
        found
    }

    /// The entry of this build. If it is missing, `make` creates it, and it is stored.
    ///
    /// If several threads and processes request a key, one creates the artefact and the others
    /// wait. If `deadline` passes, they make it themselves. If a thread's maker fails, all threads
    /// that wait for it get the error. The maker may use the cache for other keys.
    ///
    /// # Errors
    /// Only errors of `make` are returned. Problems of the cache become [`Warning`]s.
    pub fn get_or_make<E, F>(&self, key: &BuildKey, deadline: Duration, make: F) -> Result<Found, E>
    where
        E: Clone + Send + Sync + 'static,
        F: FnOnce() -> Result<Artefact, E>,
    {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        let now = Instant::now();
        // A deadline beyond the clock's range is limited to a year.
        let until =
            now.checked_add(deadline).unwrap_or_else(|| now + Duration::from_secs(31_536_000));
        let ticket = loop {
            match self.flights.board(key.digest(), until) {
                Role::Lead(ticket) => break Some(ticket),
                Role::Landed(FlightResult::Entry(entry)) => {
                    return Ok(Found { entry, origin: Origin::Shared });
                }
                Role::Landed(FlightResult::Failed(error)) => match error.downcast_ref::<E>() {
                    Some(error) => return Err(error.clone()),
                    // The other request for the key has a different error type, so this call runs
                    // its own maker.
                    None => break None,
                },
                Role::Landed(FlightResult::Abandoned) => {}
                Role::TimedOut => break None,
            }
        };
        let result = self.make_locked(key, until, make);
        if let Some(ticket) = ticket {
            ticket.land(match &result {
                Ok(found) => FlightResult::Entry(found.entry.clone()),
                Err(error) => FlightResult::Failed(Arc::new(error.clone())),
            });
        }
        result
    }

    fn make_locked<E>(
        &self,
        key: &BuildKey,
        until: Instant,
        make: impl FnOnce() -> Result<Artefact, E>,
    ) -> Result<Found, E> {
        let (_lock, waited) = match self.lock(key.digest(), until, || self.look_up(key)) {
            Ok((lock, waited)) => (lock, waited),
            Err(found) => return Ok(*found),
        };
        // Another process may have finished between the lookup and the lock.
        if let Some(found) = self.look_up(key) {
            return Ok(found);
        }
        for _ in 0..if waited { LATE_LOOKUPS } else { 0 } {
            std::thread::sleep(LATE_PAUSE);
            // After the directory is listed, NFS queries its server again.
            if let Some(home) = &self.home {
                let _ = home.builds(key.source().digest());
            }
            if let Some(found) = self.look_up(key) {
                return Ok(found);
            }
        }
        let artefact = make()?;
        count(&self.tally.made);
        Ok(Found { entry: self.put(key, &artefact), origin: Origin::Made })
    }

    /// Takes the lock of a key in the home directory, if the file system supports locks. `Err` is
    /// the value that appeared while waiting.
    pub(crate) fn lock<T>(
        &self,
        key: Digest,
        until: Instant,
        appeared: impl Fn() -> Option<T>,
    ) -> Result<(Option<KeyLock>, bool), Box<T>> {
        let Some(home) = self.writable_home() else { return Ok((None, false)) };
        match lock::acquire(home, &format!("{key}.lock"), until, appeared) {
            Outcome::Held { lock, waited } => Ok((Some(lock), waited)),
            Outcome::Appeared(found) => Err(Box::new(found)),
            Outcome::TimedOut(path) => {
                self.warnings.push(Warning::LockTimeout { path });
                Ok((None, true))
            }
            Outcome::Unavailable(path, fault) => {
                if is_final(&fault) || is_full(&fault) {
                    self.warn_unwritable(home, &fault);
                } else {
                    self.warnings.push(Warning::NoLocks { path, reason: fault.to_string() });
                }
                Ok((None, false))
            }
        }
    }

    /// Stores an artefact in the home directory, or in memory if that is impossible. Replaces an
    /// entry of the same build.
    pub fn put(&self, key: &BuildKey, artefact: &Artefact) -> Entry {
        let created = self.creation_stamp(key.source().digest());
        let bytes = Entry::encode(key, artefact, created);
        let entry = Entry::of_encoded(key, artefact, created, bytes);
        if !self.publish_entry(&entry) {
            self.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.clone());
        }
        entry
    }

    /// Publishes an encoded entry in the home directory; returns false and warns if that is
    /// impossible.
    pub(crate) fn publish_entry(&self, entry: &Entry) -> bool {
        match self.try_publish(entry) {
            Ok(()) => true,
            Err(why) => {
                why.into_iter().for_each(|warning| self.warnings.push(warning));
                false
            }
        }
    }

    /// [`Cache::publish_entry`] with the warning returned instead of reported; `None` if nothing
    /// was attempted.
    pub(crate) fn try_publish(&self, entry: &Entry) -> Result<(), Option<Warning>> {
        let Some(home) = self.writable_home() else { return Err(None) };
        let bytes = entry.as_bytes();
        let cap = self.config.max_bytes.min(self.config.entry_limit);
        if bytes.len() as u64 > cap {
            return Err(Some(Warning::TooLarge { bytes: bytes.len() as u64, cap }));
        }
        let place = ItemPath::entry(entry.key().source().digest(), entry.key().digest());
        match home.publish(&place, bytes) {
            Ok(()) => {
                count(&self.tally.published);
                if let Some(distrust) = self.distrust().get_mut(&entry.key().digest()) {
                    distrust.home = false;
                }
                self.note_added(home, entry.key().digest(), bytes.len() as u64);
                Ok(())
            }
            Err(fault) => Err(Some(self.unwritable(home, &fault))),
        }
    }

    /// Milliseconds since 1970, but later than all existing builds of the source. So the newest
    /// build has the latest time even if the clock was set back.
    fn creation_stamp(&self, source: Digest) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let Some(home) = &self.home else { return now };
        let builds = home.builds(source).unwrap_or_default();
        let newest =
            builds.iter().filter_map(|place| peek_created(&home.peek(place, HEADER_LEN)?)).max();
        newest.map_or(now, |newest| now.max(newest.saturating_add(1)))
    }

    /// Quarantines an entry whose contents could not be used, so that the next lookup does not find
    /// it, and it is created again. Returns how often this happened for this key in this process; a
    /// maker that failed twice should not be called a third time.
    pub fn quarantine(&self, key: &BuildKey) -> u32 {
        let build = key.digest();
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(build);
        let place = ItemPath::entry(key.source().digest(), build);
        let stays = match &self.home {
            Some(home) => {
                // Checks the directory instead of the result of the call: it matters whether the
                // entry can be read again.
                let _ = home.set_aside(&place);
                home.peek(&place, HEADER_LEN).is_some()
            }
            None => false,
        };
        let mut distrusted = self.distrust();
        let distrust = distrusted.entry(build).or_default();
        distrust.times = distrust.times.saturating_add(1);
        distrust.home = stays;
        distrust.times
    }

    pub(crate) fn distrust(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, UnusableEntry>> {
        self.distrusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn writable_home(&self) -> Option<&DirStore> {
        self.home.as_ref().filter(|_| !self.read_only.load(Ordering::Relaxed))
    }

    pub(crate) fn warn_unusable(&self, store: &DirStore, fault: &Fault) {
        self.warnings.push(store.unusable(fault));
    }

    /// Reports a failed write once. If the cause is permanent, writing is not tried again.
    pub(crate) fn warn_unwritable(&self, home: &DirStore, fault: &Fault) {
        self.warnings.push(self.unwritable(home, fault));
    }

    pub(crate) fn unwritable(&self, home: &DirStore, fault: &Fault) -> Warning {
        if is_final(fault) {
            self.read_only.store(true, Ordering::Relaxed);
        }
        let (path, reason) = (home.path().to_owned(), fault.to_string());
        match fault {
            Fault::Refused(_) => Warning::Refused { path, reason },
            Fault::Io(_) => Warning::NotWritable { path, reason },
        }
    }
}

/// Whether a fault is permanent: the directory belongs to another user. A full disk may have free
/// space later.
fn is_final(fault: &Fault) -> bool {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    match fault {
        Fault::Refused(_) => true,
        Fault::Io(error) => {
            matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory)
        }
    }
}

fn is_full(fault: &Fault) -> bool {
    use std::io::ErrorKind::{NotFound, QuotaExceeded, StorageFull};
    matches!(fault, Fault::Io(error) if matches!(error.kind(), StorageFull | QuotaExceeded | NotFound))
}
