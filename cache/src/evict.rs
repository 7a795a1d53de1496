//! Evicts entries so that the home directory stays below its size limit.
//!
//! The least recently used entries are evicted first, with one exception: entries that were used
//! after their publication are protected from eviction by entries that were not, up to
//! [`PROTECTED_PERCENT`] of the limit. So many entries that are used once do not evict the few
//! entries that every run needs.
//!
//! Removing an entry does not affect a reader: it has the file open or has already read it into
//! memory.

use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cache::Cache;
use crate::journal::{EntryUse, Event, Journal, JournalState, ShortDigest, encode};
use crate::key::Digest;
use crate::lock;
use crate::safe_dir::Fault;
use crate::store::{DirStore, ItemPath, Kind, sweep_temps, unique_name};

/// Percentage of the limit that is protected for entries used after their publication.
const PROTECTED_PERCENT: u64 = 60;
/// An eviction frees a tenth of the limit, so that the directory is rarely listed completely.
const LOW_WATER_PERCENT: u64 = 90;
const MAINTENANCE: &str = "maintenance";

fn percent(of: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// An entry as a candidate for eviction.
pub(crate) struct Candidate {
    pub(crate) place: ItemPath,
    pub(crate) bytes: u64,
    short: ShortDigest,
    rank: u64,
    used: bool,
    pub(crate) time_s: u64,
}

/// Seconds since 1970, for display only.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Cache {
    /// Records the use of an entry in the home directory.
    pub(crate) fn note_use(&self, build: Digest) {
        if let Some(home) = self.writable_home()
            && let Ok(base) = home.base()
        {
            let record = encode(Event::Used, build.into(), 0, now_s());
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            // If the disk is full, the use is not recorded, and the entry may be evicted earlier.
            if journal.append(&base, &record).is_ok_and(Journal::is_due)
                && journal.catch_up(&base).is_ok()
                && journal.is_stale()
                && let Ok(_guard) = lock::try_acquire(home, MAINTENANCE)
            {
                let _ = journal.compact(&base, &unique_name("tmp"));
            }
        }
    }

    /// Records a published entry, and evicts entries if the total exceeds the limit.
    pub(crate) fn note_added(&self, home: &DirStore, build: Digest, bytes: u64) {
        let Ok(base) = home.base() else { return };
        let total = {
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = journal.append(&base, &encode(Event::Added, build.into(), bytes, now_s()));
            match journal.catch_up(&base) {
                Ok(reading) => reading.total,
                // Without a journal the total must be found by listing the directory; the limit
                // still applies.
                Err(_) => u64::MAX,
            }
        };
        if total > self.config.max_bytes {
            self.make_room(home, self.config.max_bytes);
        }
    }

    pub(crate) fn note_removed(&self, home: &DirStore, build: Digest, bytes: u64) {
        if let Ok(base) = home.base() {
            let record = encode(Event::Removed, build.into(), bytes, now_s());
            let _ =
                self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(&base, &record);
        }
    }

    /// Evicts entries until the directory is below its low-water mark ([`LOW_WATER_PERCENT`]),
    /// removes leftovers and rewrites the journal. One process at a time does this; others
    /// continue. Returns the entries and bytes removed.
    pub(crate) fn make_room(&self, home: &DirStore, cap: u64) -> (u64, u64) {
        // Without locks two processes may evict simultaneously. Each ignores files that the other
        // has removed.
        let Ok(_guard) = lock::try_acquire(home, MAINTENANCE) else { return (0, 0) };
        let Ok(base) = home.base() else { return (0, 0) };
        lock::sweep(home);
        sweep_temps(&base);
        // A copy, so that lookups of other threads can continue during the walk.
        let reading = {
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            journal.catch_up(&base).cloned().unwrap_or_default()
        };
        let mut candidates = candidates(home, &reading);
        let total: u64 = candidates.iter().map(|candidate| candidate.bytes).sum();
        let (mut removed, mut freed) = (0, 0);
        if total > cap {
            order_for_eviction(&mut candidates, percent(cap, PROTECTED_PERCENT));
            let goal = percent(cap, LOW_WATER_PERCENT);
            let mut kept = Vec::with_capacity(candidates.len());
            // The entry that was published or used last is probably needed next.
            let newest = candidates.iter().map(|candidate| candidate.rank).max();
            let (newest, others): (Vec<_>, Vec<_>) = candidates
                .into_iter()
                .partition(|candidate| candidate.rank > 0 && Some(candidate.rank) == newest);
            kept.extend(newest);
            for candidate in others {
                if total - freed > goal && home.remove(&candidate.place).is_ok() {
                    removed += 1;
                    freed += candidate.bytes;
                } else {
                    kept.push(candidate);
                }
            }
            candidates = kept;
        }
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        // If this fails (disk full), the old journal stays.
        let _ = rewrite(&mut journal, &base, candidates, reading.offset);
        (removed, freed)
    }
}

fn rewrite(
    journal: &mut Journal,
    base: &crate::safe_dir::SafeDir,
    mut kept: Vec<Candidate>,
    read_to: u64,
) -> Result<(), Fault> {
    kept.sort_by_key(|candidate| candidate.rank);
    let records: Vec<u8> = kept
        .iter()
        .flat_map(|entry| {
            let known = EntryUse {
                rank: entry.rank,
                used: entry.used,
                time_s: entry.time_s,
                bytes: entry.bytes,
            };
            known.record(entry.short)
        })
        .collect();
    journal.rewrite(base, &unique_name("tmp"), &records, read_to)
}

/// All existing entries, with their data from the journal.
pub(crate) fn candidates(home: &DirStore, reading: &JournalState) -> Vec<Candidate> {
    let walked = home.walk(Kind::Entry, true);
    let known = walked.into_iter().filter_map(|(place, bytes)| {
        let short = ShortDigest::from(place.name().parse::<Digest>().ok()?);
        // The entry is not in the journal: its rank was lost, and it is evicted first.
        let (rank, used, time_s) = reading
            .uses
            .get(&short)
            .map_or((0, false, 0), |known| (known.rank, known.used, known.time_s));
        Some(Candidate { place, bytes, short, rank, used, time_s })
    });
    known.collect()
}

/// Sorts the candidates in the order of eviction.
fn order_for_eviction(candidates: &mut [Candidate], protected_bytes: u64) {
    candidates.sort_by_key(|candidate| std::cmp::Reverse((candidate.used, candidate.rank)));
    let mut protected = 0u64;
    for candidate in candidates.iter_mut() {
        protected = protected.saturating_add(candidate.bytes);
        candidate.used &= protected <= protected_bytes;
    }
    candidates.sort_by_key(|candidate| (candidate.used, candidate.rank));
}
