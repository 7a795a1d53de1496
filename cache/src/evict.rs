//! Keeping the home directory below its cap.
//!
//! Least recently used first, with one refinement: entries that were used again after they were
//! published are kept before those that never were, up to [`PROTECTED_PERCENT`] of the cap. A sweep
//! through ten times the cap's worth of entries therefore does not push out the few that every run
//! needs.
//!
//! Removing an entry never hurts a reader: a reader holds the open file, and what it read is in its
//! memory.

use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cache::Cache;
use crate::journal::{Event, Journal, Reading, ShortDigest, Use, encode};
use crate::key::Digest;
use crate::lock;
use crate::safe_dir::Fault;
use crate::store::{DirStore, Kind, Place, sweep_temps, unique_name};

/// Share of the cap that entries used more than once may hold against newcomers.
const PROTECTED_PERCENT: u64 = 60;
/// An eviction frees a tenth of the cap, so that walks of the directory stay rare.
const LOW_WATER_PERCENT: u64 = 90;
const MAINTENANCE: &str = "maintenance";

fn percent(of: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// An entry as eviction sees it.
pub(crate) struct Candidate {
    pub(crate) place: Place,
    pub(crate) bytes: u64,
    short: ShortDigest,
    rank: u64,
    used: bool,
    pub(crate) time_s: u64,
}

/// Seconds since 1970, for people to look at.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Cache {
    /// Notes that an entry in the home directory was used.
    pub(crate) fn note_use(&self, build: Digest) {
        if let Some(home) = self.writable_home()
            && let Ok(base) = home.base()
        {
            let record = encode(Event::Used, build.into(), 0, now_s());
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            // A full disk costs the entry its rank.
            if journal.append(&base, &record).is_ok_and(Journal::is_due)
                && journal.catch_up(&base).is_ok()
                && journal.is_stale()
                && let Ok(_guard) = lock::try_acquire(home, MAINTENANCE)
            {
                let _ = journal.compact(&base, &unique_name("tmp"));
            }
        }
    }

    /// Notes that an entry was published, and makes room when the total grew above the cap.
    pub(crate) fn note_added(&self, home: &DirStore, build: Digest, bytes: u64) {
        let Ok(base) = home.base() else { return };
        let total = {
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = journal.append(&base, &encode(Event::Added, build.into(), bytes, now_s()));
            match journal.catch_up(&base) {
                Ok(reading) => reading.total,
                // No journal is to be had: only a walk tells, and the cap holds all the same.
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

    /// Removes entries until the directory is below its low-water mark, sweeps left-overs and
    /// rewrites the journal. One process does it at a time; the others go on. Returns entries and
    /// bytes removed.
    pub(crate) fn make_room(&self, home: &DirStore, cap: u64) -> (u64, u64) {
        // Where there are no locks two may evict at once; what one removed the other does not find.
        let Ok(_guard) = lock::try_acquire(home, MAINTENANCE) else { return (0, 0) };
        let Ok(base) = home.base() else { return (0, 0) };
        lock::sweep(home);
        sweep_temps(&base);
        // A copy, so that look-ups in other threads go on while the directory is walked.
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
            // What was published or used last is what somebody is about to use.
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
        // Where it fails (disk full) the old journal stays.
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
            let known = Use {
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

/// All entries there are, with what the journal knows of them.
pub(crate) fn candidates(home: &DirStore, reading: &Reading) -> Vec<Candidate> {
    let walked = home.walk(Kind::Entry, true);
    let known = walked.into_iter().filter_map(|(place, bytes)| {
        let short = ShortDigest::from(place.name().parse::<Digest>().ok()?);
        // Unknown to the journal: its rank was lost, and it goes first.
        let (rank, used, time_s) = reading
            .uses
            .get(&short)
            .map_or((0, false, 0), |known| (known.rank, known.used, known.time_s));
        Some(Candidate { place, bytes, short, rank, used, time_s })
    });
    known.collect()
}

/// First those to be removed first.
fn order_for_eviction(candidates: &mut [Candidate], protected_bytes: u64) {
    candidates.sort_by_key(|candidate| std::cmp::Reverse((candidate.used, candidate.rank)));
    let mut protected = 0u64;
    for candidate in candidates.iter_mut() {
        protected = protected.saturating_add(candidate.bytes);
        candidate.used &= protected <= protected_bytes;
    }
    candidates.sort_by_key(|candidate| (candidate.used, candidate.rank));
}
