//! In-memory layer: entries that could not be written to disk, until the process ends.

use std::collections::{HashMap, VecDeque};

use crate::entry::Entry;
use crate::key::Digest;

/// Entries in memory. If their size exceeds the limit, the oldest are removed first.
#[derive(Debug, Default)]
pub(crate) struct MemoryLayer {
    entries: HashMap<Digest, Entry>,
    order: VecDeque<Digest>,
    bytes: u64,
    limit: u64,
}

impl MemoryLayer {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    pub(crate) fn get(&self, build: Digest) -> Option<Entry> {
        self.entries.get(&build).cloned()
    }

    pub(crate) fn of_source(&self, source: Digest) -> Vec<Entry> {
        self.entries
            .values()
            .filter(|entry| entry.key().source().digest() == source)
            .cloned()
            .collect()
    }

    pub(crate) fn all(&self) -> Vec<Entry> {
        self.entries.values().cloned().collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        let build = entry.key().digest();
        self.remove(build);
        let len = entry.as_bytes().len() as u64;
        if len > self.limit {
            return;
        }
        while self.bytes.saturating_add(len) > self.limit {
            let Some(oldest) = self.order.front().copied() else { break };
            self.remove(oldest);
        }
        self.bytes = self.bytes.saturating_add(len);
        self.order.push_back(build);
        self.entries.insert(build, entry);
    }

    pub(crate) fn remove(&mut self, build: Digest) -> bool {
        let Some(entry) = self.entries.remove(&build) else { return false };
        self.bytes = self.bytes.saturating_sub(entry.as_bytes().len() as u64);
        self.order.retain(|kept| *kept != build);
        true
    }
}
