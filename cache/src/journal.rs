//! The order in which entries were used, stored in a journal. Access times of files are unreliable,
//! and clocks may go backwards.
//!
//! The journal is an append-only file of small records, whose order is the order of use. It also
//! contains the sizes of added and removed entries, so that the total is known without listing all
//! files. The journal is only a hint: lost, incomplete or forged records only change the rank of an
//! entry.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::key::Digest;
use crate::safe_dir::{Fault, SafeDir};
use crate::store::open_or_clear;

const NAME: &str = "journal";
/// A record: mark (4 bytes), event (1), 15 bytes of the digest, size (8), time (8), check (4). 120
/// bits of a digest are enough to distinguish entries; the time is only displayed.
const RECORD: usize = 40;
const MARK: [u8; 4] = *b"kjj1";
/// Bytes of obsolete records that are tolerated before the journal is rewritten: 26,000 uses.
const MAX_OBSOLETE: u64 = 1 << 20;
/// Bytes between two checks for rewriting.
const CHECK_EVERY: u64 = 1 << 18;
/// Maximum length that is read: 32 million uses. The journal is rewritten long before that.
const READ_LIMIT: u64 = 1 << 30;

/// The first bytes of a build digest, as stored in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ShortDigest([u8; 15]);

impl From<Digest> for ShortDigest {
    fn from(digest: Digest) -> Self {
        let mut short = [0; 15];
        for (to, from) in short.iter_mut().zip(digest.0) {
            *to = from;
        }
        Self(short)
    }
}

/// An event of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The entry was published, with its size.
    Added,
    /// The entry was published earlier and used since. Written when the journal is rewritten.
    AddedAndUsed,
    /// The entry was used.
    Used,
    /// The entry was removed, with its size.
    Removed,
}

impl Event {
    fn code(self) -> u8 {
        match self {
            Self::Added => 1,
            Self::AddedAndUsed => 2,
            Self::Used => 3,
            Self::Removed => 4,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        [Self::Added, Self::AddedAndUsed, Self::Used, Self::Removed]
            .into_iter()
            .find(|event| event.code() == code)
    }
}

fn check(body: &[u8]) -> [u8; 4] {
    // FNV-1a detects incomplete writes. It does not protect against forgery.
    let hash = body
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash.to_le_bytes()
}

pub(crate) fn encode(event: Event, build: ShortDigest, bytes: u64, time_s: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD);
    record.extend_from_slice(&MARK);
    record.push(event.code());
    record.extend_from_slice(&build.0);
    record.extend_from_slice(&bytes.to_le_bytes());
    record.extend_from_slice(&time_s.to_le_bytes());
    let check = check(&record);
    record.extend_from_slice(&check);
    record
}

fn decode(record: &[u8]) -> Option<(Event, ShortDigest, u64, u64)> {
    let (body, found) = record.split_at_checked(RECORD - 4)?;
    if !body.starts_with(&MARK) || found != check(body) {
        return None;
    }
    let event = Event::of_code(*body.get(4)?)?;
    let build = ShortDigest(body.get(5..20)?.try_into().ok()?);
    let number = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
    Some((event, build, number(20)?, number(28)?))
}

/// Rank and size of an entry, from the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryUse {
    /// A higher rank means a later use.
    pub(crate) rank: u64,
    /// Whether the entry was used after its publication.
    pub(crate) used: bool,
    /// Time of the last publication or use, in seconds since 1970, by the clock of the process that
    /// used it.
    pub(crate) time_s: u64,
    pub(crate) bytes: u64,
}

impl EntryUse {
    /// One record that restores this state.
    pub(crate) fn record(&self, build: ShortDigest) -> Vec<u8> {
        let event = if self.used { Event::AddedAndUsed } else { Event::Added };
        encode(event, build, self.bytes, self.time_s)
    }
}

/// The state that was read from a journal.
#[derive(Debug, Clone, Default)]
pub(crate) struct JournalState {
    pub(crate) uses: HashMap<ShortDigest, EntryUse>,
    /// Total size of existing entries.
    pub(crate) total: u64,
    /// Bytes read so far. The next read continues there.
    pub(crate) offset: u64,
    rank: u64,
}

impl JournalState {
    fn apply(&mut self, event: Event, build: ShortDigest, bytes: u64, time_s: u64) {
        self.rank = self.rank.saturating_add(1);
        let rank = self.rank;
        let known = self.uses.get(&build).copied();
        match event {
            Event::Used => {
                // An entry that is missing in the journal has no known size here; the next walk
                // finds it.
                let bytes = known.map_or(0, |known| known.bytes);
                self.uses.insert(build, EntryUse { rank, used: true, time_s, bytes });
            }
            Event::Added | Event::AddedAndUsed => {
                let before = known.map_or(0, |known| known.bytes);
                self.total = self.total.saturating_sub(before).saturating_add(bytes);
                self.uses.insert(
                    build,
                    EntryUse { rank, used: event == Event::AddedAndUsed, time_s, bytes },
                );
            }
            Event::Removed => {
                if let Some(known) = self.uses.remove(&build) {
                    self.total = self.total.saturating_sub(known.bytes);
                }
            }
        }
    }

    /// Processes the records in `bytes`, skipping invalid data. Returns the number of bytes
    /// processed.
    fn absorb(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(record) = bytes.get(at..at + RECORD) {
            match decode(record) {
                Some((event, build, size, time_s)) => {
                    self.apply(event, build, size, time_s);
                    at += RECORD;
                }
                // An incomplete record (disk full) shifts all later records: search for the next
                // mark.
                None => {
                    let rest = bytes.get(at + 1..).unwrap_or_default();
                    match rest.windows(MARK.len()).position(|window| window == MARK) {
                        Some(next) => at += 1 + next,
                        None => return at.max(bytes.len().saturating_sub(RECORD)),
                    }
                }
            }
        }
        at
    }
}

/// The open journal of a home directory.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    file: Option<File>,
    reading: JournalState,
}

impl Journal {
    /// Appends a record, and first reopens a journal that was replaced. Returns the length before.
    pub(crate) fn append(&mut self, base: &SafeDir, record: &[u8]) -> Result<u64, Fault> {
        let len = self.open(base)?;
        if let Some(mut file) = self.file.as_ref() {
            // A single write with O_APPEND: records of several processes are not interleaved.
            file.write_all(record)?;
        }
        Ok(len)
    }

    /// Ensures that the open file is the current journal. Returns its length.
    fn open(&mut self, base: &SafeDir) -> Result<u64, Fault> {
        let state = self.file.as_ref().and_then(|file| file.metadata().ok());
        if let Some(meta) = state.filter(|meta| meta.nlink() > 0) {
            return Ok(meta.len());
        }
        let file = open_or_clear(base, base, NAME, true)?;
        let len = file.metadata()?.len();
        self.reading = JournalState::default();
        self.file = Some(file);
        Ok(len)
    }

    /// Reads records that any process has appended since the last call.
    pub(crate) fn catch_up(&mut self, base: &SafeDir) -> Result<&JournalState, Fault> {
        self.open(base)?;
        let Self { file: Some(file), reading } = self else { return Ok(&self.reading) };
        let len = file.metadata()?.len().min(READ_LIMIT);
        if len < reading.offset {
            // The journal was truncated, so the state read from it is invalid.
            *reading = JournalState::default();
        }
        let todo = usize::try_from(len - reading.offset)
            .map_err(|_| Fault::Refused("the journal is too long"))?;
        let mut bytes = vec![0; todo];
        file.read_exact_at(&mut bytes, reading.offset)?;
        let done = reading.absorb(&bytes);
        reading.offset += done as u64;
        Ok(&self.reading)
    }

    /// Whether most records of the journal are obsolete.
    pub(crate) fn is_stale(&self) -> bool {
        self.reading.offset > MAX_OBSOLETE.max(2 * (RECORD * self.reading.uses.len()) as u64)
    }

    /// Whether a journal of this length (without the next record) should be checked: once per
    /// [`CHECK_EVERY`] bytes.
    pub(crate) fn is_due(len: u64) -> bool {
        len > MAX_OBSOLETE && len / CHECK_EVERY != len.saturating_sub(RECORD as u64) / CHECK_EVERY
    }

    /// Rewrites the journal from its own contents, without checking the entries.
    pub(crate) fn compact(&mut self, base: &SafeDir, temp: &str) -> Result<(), Fault> {
        let reading = self.catch_up(base)?;
        let mut uses: Vec<(&ShortDigest, &EntryUse)> = reading.uses.iter().collect();
        uses.sort_by_key(|(_, known)| known.rank);
        let records: Vec<u8> =
            uses.into_iter().flat_map(|(build, known)| known.record(*build)).collect();
        let read_to = reading.offset;
        self.rewrite(base, temp, &records, read_to)
    }

    /// Replaces the journal by one record per entry, in order. Records that other processes
    /// appended to the old journal after `read_to` are copied.
    pub(crate) fn rewrite(
        &mut self,
        base: &SafeDir,
        temp: &str,
        records: &[u8],
        read_to: u64,
    ) -> Result<(), Fault> {
        let file = base.create_file(temp)?;
        let written = (&file).write_all(records).map_err(Fault::from).and_then(|()| {
            base.rename(temp, base, NAME)?;
            if let Some(old) = &self.file {
                let len = old.metadata()?.len();
                let mut tail = vec![0; usize::try_from(len.saturating_sub(read_to)).unwrap_or(0)];
                old.read_exact_at(&mut tail, read_to)?;
                (&file).write_all(&tail)?;
            }
            Ok(())
        });
        if written.is_err() {
            let _ = base.unlink(temp);
        }
        self.file = None;
        self.reading = JournalState::default();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(n: u8) -> ShortDigest {
        ShortDigest([n; 15])
    }

    #[test]
    fn torn_record_loses_only_itself() {
        for torn in 1..RECORD {
            let mut bytes = encode(Event::Added, short(1), 10, 0);
            bytes.extend_from_slice(&encode(Event::Added, short(2), 20, 0)[..torn]);
            bytes.extend_from_slice(&encode(Event::Added, short(3), 30, 0));
            bytes.extend_from_slice(&encode(Event::Used, short(1), 0, 0));
            let mut reading = JournalState::default();
            reading.absorb(&bytes);
            assert_eq!(reading.total, 40, "torn at {torn}");
            assert!(
                reading.uses[&short(1)].used
                    && reading.uses[&short(1)].rank > reading.uses[&short(3)].rank
            );
        }
    }

    #[test]
    fn partly_written_record_is_read_after_completion() {
        let record = encode(Event::Added, short(1), 10, 0);
        for part in 0..RECORD {
            let mut reading = JournalState::default();
            let done = reading.absorb(&record[..part]);
            assert_eq!((done, reading.total), (0, 0));
            reading.absorb(&record[done..]);
            assert_eq!(reading.total, 10);
        }
    }
}
