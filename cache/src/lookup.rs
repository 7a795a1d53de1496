//! Looks up entries in the layers. It takes no locks and returns only verified entries.

use std::sync::PoisonError;

use crate::cache::{Cache, Found, Origin, Scope, count};
use crate::entry::{Entry, EntryError};
use crate::key::{BuildKey, Digest};
use crate::safe_dir::Fault;
use crate::store::{DirStore, ItemPath};
use crate::warning::Warning;

impl Cache {
    /// Like [`Cache::get`], without counting.
    pub(crate) fn look_up(&self, key: &BuildKey) -> Option<Found> {
        let build = key.digest();
        let place = ItemPath::entry(key.source().digest(), build);
        let distrust = self.distrust().get(&build).copied().unwrap_or_default();
        if let Some(home) = self.home.as_ref().filter(|_| !distrust.home)
            && let Some(entry) = self.read_entry(home, &place, build, true)
        {
            self.note_use(build);
            return Some(Found { entry, origin: Origin::Home });
        }
        let in_memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).get(build);
        if let Some(entry) = in_memory {
            return Some(Found { entry, origin: Origin::Memory });
        }
        if distrust.times > 0 {
            return None;
        }
        let found = self.layers.iter().find_map(|layer| {
            let entry = self.entry_in_layer(layer, key.source().digest(), build)?;
            Some(Found { entry, origin: Origin::ReadOnly(layer.path().to_owned()) })
        });
        found.or_else(|| self.remote_entry(key.source().digest(), &|one| one == build, &|_| true))
    }

    /// Like [`Cache::find`], without counting.
    pub(crate) fn search(
        &self,
        source: Digest,
        scope: Scope,
        accept: &dyn Fn(&Entry) -> bool,
    ) -> Option<Found> {
        if scope == Scope::Everywhere {
            if let Some(home) = &self.home
                && let Some(entry) = newest(self.entries_at_home(home, source), accept)
            {
                self.note_use(entry.key().digest());
                return Some(Found { entry, origin: Origin::Home });
            }
            let in_memory =
                self.memory.lock().unwrap_or_else(PoisonError::into_inner).of_source(source);
            if let Some(entry) = newest(in_memory, accept) {
                return Some(Found { entry, origin: Origin::Memory });
            }
        }
        let found = self.layers.iter().find_map(|layer| {
            let builds = self.builds_in_layer(layer, source);
            let trusted = builds.into_iter().filter(|build| !self.distrust().contains_key(build));
            let entries =
                trusted.filter_map(|build| self.entry_in_layer(layer, source, build)).collect();
            let entry = newest(entries, accept)?;
            Some(Found { entry, origin: Origin::ReadOnly(layer.path().to_owned()) })
        });
        let trusted = |build: Digest| !self.distrust().contains_key(&build);
        found.or_else(|| self.remote_entry(source, &trusted, accept))
    }

    fn entries_at_home(&self, home: &DirStore, source: Digest) -> Vec<Entry> {
        let builds = home.builds(source).unwrap_or_else(|fault| {
            self.warn_unusable(home, &fault);
            Vec::new()
        });
        let usable = builds.iter().filter_map(|place| {
            let build: Digest = place.name().parse().ok()?;
            let distrusted = self.distrust().get(&build).is_some_and(|distrust| distrust.home);
            (!distrusted).then(|| self.read_entry(home, place, build, true)).flatten()
        });
        usable.collect()
    }

    /// Reads and verifies an entry. A faulty entry is reported and, if the directory belongs to
    /// this cache, quarantined.
    pub(crate) fn read_entry(
        &self,
        store: &DirStore,
        place: &ItemPath,
        build: Digest,
        ours: bool,
    ) -> Option<Entry> {
        let reason = match store.read(place, self.config.entry_limit) {
            Ok(bytes) => match Entry::decode_for(bytes?, build) {
                Ok(entry) if place.is_of_source(entry.key().source().digest()) => {
                    return Some(entry);
                }
                Ok(entry) => {
                    EntryError::OtherKey { found: entry.key().source().digest() }.to_string()
                }
                Err(error) => error.to_string(),
            },
            Err(fault) if store.base().is_err() => {
                self.warn_unusable(store, &fault);
                return None;
            }
            Err(fault @ Fault::Refused(_)) => fault.to_string(),
            Err(fault) => {
                let path = store.path_of(place);
                self.warnings.push(Warning::NotReadable { path, reason: fault.to_string() });
                return None;
            }
        };
        self.report_corrupt(store, place, reason, ours);
        None
    }

    pub(crate) fn report_corrupt(
        &self,
        store: &DirStore,
        place: &ItemPath,
        reason: String,
        ours: bool,
    ) {
        count(&self.tally.corrupt);
        self.warnings.push(Warning::Corrupt { path: store.path_of(place), reason });
        if ours {
            // If the entry cannot be moved, it is still never used: each read verifies it.
            let _ = store.set_aside(place);
        }
    }
}

pub(crate) fn newest(mut entries: Vec<Entry>, accept: &dyn Fn(&Entry) -> bool) -> Option<Entry> {
    // Entries with equal times (two machines in one millisecond) are ordered by digest, so that all
    // readers choose the same.
    entries.sort_by_key(|entry| std::cmp::Reverse((entry.created_ms(), entry.key().digest())));
    entries.into_iter().find(|entry| accept(entry))
}
