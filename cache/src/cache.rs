//! The cache itself: look-up through the layers, making what is missing, publishing it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::config::Config;
use crate::entry::{Artefact, Entry, HEADER_LEN, peek_created};
use crate::flight::{Boarding, Flights, Landing};
use crate::journal::Journal;
use crate::key::{BuildKey, Digest, Key};
use crate::layer::{Layer, layers_at};
use crate::lock::{self, KeyLock, Outcome};
use crate::memory::MemoryLayer;
use crate::safe_dir::{Fault, is_privileged};
use crate::store::{DirStore, Place};
use crate::warning::{Warning, Warnings};

/// After waiting for another process the entry may need a moment to show (NFS caches absence): so
/// often and so long we look again before the work is done a second time.
const LATE_LOOKS: u32 = 3;
const LATE_PAUSE: Duration = Duration::from_millis(10);

/// Where a found entry came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The home directory.
    Home,
    /// A read-only layer.
    ReadOnly(PathBuf),
    /// The process's memory.
    Memory,
    /// Another thread of this process made it while we waited.
    Shared,
    /// Made by this call.
    Made,
}

/// An entry and where it came from.
#[derive(Debug, Clone)]
pub struct Found {
    /// The verified entry.
    pub entry: Entry,
    /// Its layer.
    pub origin: Origin,
}

/// Which layers [`Cache::find`] looks through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Read-only layers alone: what somebody warmed for us. For when a maker is at hand.
    ReadOnly,
    /// All layers, home first. For when nothing new can be made.
    Everywhere,
}

/// What a cache did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Look-ups that found an entry.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Artefacts made by [`Cache::get_or_make`].
    pub made: u64,
    /// Entries written to the home directory.
    pub published: u64,
    /// Faulty entries that were met and not used.
    pub corrupt: u64,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) made: AtomicU64,
    pub(crate) published: AtomicU64,
    pub(crate) corrupt: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What is remembered of a key whose artefact could not be used.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Distrust {
    pub(crate) times: u32,
    /// It could not be removed from home: not to be read from there until a new one is published.
    pub(crate) home: bool,
}

/// A cache of expensive artefacts. Open it once and share it between threads; see the crate's front
/// page.
pub struct Cache {
    pub(crate) config: Config,
    pub(crate) home: Option<DirStore>,
    /// Set when the home directory proved not to be ours to write: no further attempt is made.
    pub(crate) read_only: AtomicBool,
    pub(crate) layers: Vec<Layer>,
    pub(crate) memory: Mutex<MemoryLayer>,
    pub(crate) records: Mutex<HashMap<Digest, (Key, Vec<u8>)>>,
    pub(crate) distrusted: Mutex<HashMap<Digest, Distrust>>,
    pub(crate) warnings: Warnings,
    pub(crate) tally: Tally,
    pub(crate) journal: Mutex<Journal>,
    flights: Flights,
}

impl Cache {
    /// Opens the cache. Never fails: what cannot be used is left out, and [`Cache::warnings`] says
    /// why.
    pub fn open(config: Config) -> Self {
        let warnings = Warnings::new(config.on_warning.clone());
        let privileged = is_privileged();
        let home = if privileged { None } else { config.home_dir() }.map(DirStore::new);
        if privileged {
            warnings.push(Warning::Privileged);
        } else if home.is_none() && config.home != crate::config::Home::Memory {
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
            tally: Tally::default(),
            journal: Mutex::default(),
            flights: Flights::default(),
            read_only: AtomicBool::new(false),
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

    /// The directory in which new entries are kept; `None` when there is none.
    pub fn home(&self) -> Option<&std::path::Path> {
        self.home.as_ref().map(DirStore::path)
    }

    /// Distinct warnings since the cache was opened, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings.all()
    }

    /// What was done since the cache was opened.
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

    /// The entry of exactly this build, from the first layer that has it: home, memory, read-only
    /// layers.
    pub fn get(&self, key: &BuildKey) -> Option<Found> {
        let found = self.look_up(key);
        count(if found.is_some() { &self.tally.hits } else { &self.tally.misses });
        found
    }

    /// The newest entry of `source` that `accept` takes, whatever made it; `accept` judges its
    /// [`needs`](Entry::needs). Home goes before memory before read-only layers, in their order.
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

    /// The entry of this build; made by `make` and kept if there is none.
    ///
    /// However many threads and processes ask at once, one makes it and the others wait, for
    /// `deadline` at most; then they make it themselves. What a thread's maker fails with, all that
    /// wait on it get. The maker may use the cache for other keys.
    ///
    /// # Errors
    /// Only what `make` returns: whatever is wrong with the cache becomes a [`Warning`].
    pub fn get_or_make<E, F>(&self, key: &BuildKey, deadline: Duration, make: F) -> Result<Found, E>
    where
        E: Clone + Send + Sync + 'static,
        F: FnOnce() -> Result<Artefact, E>,
    {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        let now = Instant::now();
        // A deadline beyond what the clock can hold is a year.
        let until =
            now.checked_add(deadline).unwrap_or_else(|| now + Duration::from_secs(31_536_000));
        let ticket = loop {
            match self.flights.board(key.digest(), until) {
                Boarding::Lead(ticket) => break Some(ticket),
                Boarding::Landed(Landing::Entry(entry)) => {
                    return Ok(Found { entry, origin: Origin::Shared });
                }
                Boarding::Landed(Landing::Failed(error)) => match error.downcast_ref::<E>() {
                    Some(error) => return Err(error.clone()),
                    // Somebody asked for the key with another type of error: ask the maker
                    // ourselves.
                    None => break None,
                },
                Boarding::Landed(Landing::Abandoned) => {}
                Boarding::TimedOut => break None,
            }
        };
        let result = self.make_locked(key, until, make);
        if let Some(ticket) = ticket {
            ticket.land(match &result {
                Ok(found) => Landing::Entry(found.entry.clone()),
                Err(error) => Landing::Failed(Arc::new(error.clone())),
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
        // Between our look-up and the lock somebody may have finished.
        if let Some(found) = self.look_up(key) {
            return Ok(found);
        }
        for _ in 0..if waited { LATE_LOOKS } else { 0 } {
            std::thread::sleep(LATE_PAUSE);
            // Listing a directory makes NFS ask its server again.
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

    /// Takes the lock of a key in the home directory, where that works. `Err` is what appeared
    /// while waiting.
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

    /// Keeps an artefact: in the home directory, or in memory where that cannot be. Replaces an
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

    /// Publishes an encoded entry in the home directory; false, with a warning, where that cannot
    /// be.
    pub(crate) fn publish_entry(&self, entry: &Entry) -> bool {
        match self.try_publish(entry) {
            Ok(()) => true,
            Err(why) => {
                why.into_iter().for_each(|warning| self.warnings.push(warning));
                false
            }
        }
    }

    /// The same; the warning is the caller's to give. There is none where nothing was to be tried.
    pub(crate) fn try_publish(&self, entry: &Entry) -> Result<(), Option<Warning>> {
        let Some(home) = self.writable_home() else { return Err(None) };
        let bytes = entry.as_bytes();
        let cap = self.config.max_bytes.min(self.config.entry_limit);
        if bytes.len() as u64 > cap {
            return Err(Some(Warning::TooLarge { bytes: bytes.len() as u64, cap }));
        }
        let place = Place::entry(entry.key().source().digest(), entry.key().digest());
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

    /// Milliseconds since 1970, and later than every build there is of the source: with a clock set
    /// back, the newest build is still the newest.
    fn creation_stamp(&self, source: Digest) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let Some(home) = &self.home else { return now };
        let builds = home.builds(source).unwrap_or_default();
        let newest =
            builds.iter().filter_map(|place| peek_created(&home.peek(place, HEADER_LEN)?)).max();
        newest.map_or(now, |newest| now.max(newest.saturating_add(1)))
    }

    /// Sets the entry aside because what it holds could not be used, so that the next look-up
    /// misses and it is made again. Returns how often that happened to this key in this process: a
    /// maker whose work fails twice is not to be asked a third time.
    pub fn quarantine(&self, key: &BuildKey) -> u32 {
        let build = key.digest();
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).remove(build);
        let place = Place::entry(key.source().digest(), build);
        let stays = match &self.home {
            Some(home) => {
                // Asked of the directory and not of the call: what counts is whether it could be
                // read again.
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

    pub(crate) fn distrust(&self) -> std::sync::MutexGuard<'_, HashMap<Digest, Distrust>> {
        self.distrusted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn writable_home(&self) -> Option<&DirStore> {
        self.home.as_ref().filter(|_| !self.read_only.load(Ordering::Relaxed))
    }

    pub(crate) fn warn_unusable(&self, store: &DirStore, fault: &Fault) {
        self.warnings.push(store.unusable(fault));
    }

    /// A write failed: said once, and where it can never work, not tried again.
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

/// Faults that do not pass: the place is not ours. A full disk may have room again.
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
