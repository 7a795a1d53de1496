//! Records: small values by key, such as timings and file digests. They are stored like entries.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

use crate::cache::Cache;
use crate::entry::{decode_record, encode_record};
use crate::key::{Digest, Key};
use crate::safe_dir::Fault;
use crate::store::{DirStore, ItemPath};
use crate::warning::Warning;

/// Maximum size of a record. A record is read completely during other work.
pub(crate) const RECORD_LIMIT: u64 = 16 << 20;
/// A file that was changed within this time may change again with an equal timestamp: file systems
/// have a resolution of up to two seconds.
const TIMESTAMP_RESOLUTION: Duration = Duration::from_secs(3);

impl Cache {
    /// The record of `key`, from memory, home or the first read-only layer that has it. Records in
    /// memory are newer: the home directory did not accept them.
    pub fn record(&self, key: &Key) -> Option<Vec<u8>> {
        let digest = key.digest();
        let in_memory =
            self.records.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned();
        in_memory
            .map(|(_, value)| value)
            .or_else(|| self.home.as_ref().and_then(|home| self.read_record(home, digest, true)))
            .or_else(|| {
                self.layers
                    .iter()
                    .find_map(|layer| self.record_in_layer(layer, digest, RECORD_LIMIT))
            })
    }

    /// Stores `value` under `key`, replacing an existing record.
    pub fn put_record(&self, key: &Key, value: &[u8]) {
        self.put_record_as(key, value, DirStore::publish);
    }

    /// Like [`Cache::put_record`], without waiting for the disk. The next process finds the record,
    /// but it may be lost if the machine stops.
    pub fn put_record_unsynced(&self, key: &Key, value: &[u8]) {
        self.put_record_as(key, value, DirStore::publish_soon);
    }

    fn put_record_as(
        &self,
        key: &Key,
        value: &[u8],
        publish: impl Fn(&DirStore, &ItemPath, &[u8]) -> Result<(), Fault>,
    ) {
        let created =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let bytes = encode_record(key, value, u64::try_from(created).unwrap_or(u64::MAX));
        let in_memory = || self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = self.writable_home() {
            match publish(home, &ItemPath::record(key.digest()), &bytes) {
                Ok(()) => {
                    in_memory().remove(&key.digest());
                    return;
                }
                Err(fault) => self.warn_unwritable(home, &fault),
            }
        }
        in_memory().insert(key.digest(), (key.clone(), value.to_vec()));
    }

    /// Replaces a record by the result of `change`, under the key's lock, so that no update of
    /// another process is lost. If `deadline` passes, it continues without the lock.
    pub fn update_record(
        &self,
        key: &Key,
        deadline: Duration,
        change: impl FnOnce(Option<&[u8]>) -> Vec<u8>,
    ) {
        let now = Instant::now();
        let until = now.checked_add(deadline).unwrap_or(now);
        let lock = self.lock::<()>(key.digest(), until, || None);
        let value = change(self.record(key).as_deref());
        self.put_record(key, &value);
        drop(lock);
    }

    /// Rejects a record whose contents are invalid for its kind: it is reported, removed from
    /// memory, and quarantined in the home directory. A record in a read-only layer stays and is
    /// reported once.
    pub fn reject_record(&self, key: &Key, reason: impl Into<String>) {
        let (digest, reason) = (key.digest(), reason.into());
        self.records.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
        let place = ItemPath::record(digest);
        match &self.home {
            Some(home) if matches!(home.read(&place, RECORD_LIMIT), Ok(Some(_))) => {
                self.report_corrupt(home, &place, reason, true);
            }
            _ => self.warnings.push(Warning::Corrupt { path: place.name().into(), reason }),
        }
    }

    pub(crate) fn read_record(
        &self,
        store: &DirStore,
        digest: Digest,
        ours: bool,
    ) -> Option<Vec<u8>> {
        let place = ItemPath::record(digest);
        let reason = match store.read(&place, RECORD_LIMIT) {
            Ok(bytes) => match decode_record(&bytes?, Some(digest)) {
                Ok((_, value)) => return Some(value),
                Err(error) => error.to_string(),
            },
            Err(fault @ Fault::Refused(_)) if store.base().is_ok() => fault.to_string(),
            Err(fault) => {
                self.warn_unusable(store, &fault);
                return None;
            }
        };
        self.report_corrupt(store, &place, reason, ours);
        None
    }

    /// SHA-256 of a file's content, cached by device, inode, size, modification time and change
    /// time, but not by path. Hashing a compiler library of 100 MB takes 0.1 s, once. If the file
    /// is replaced under the same name, it is hashed again. Programs cannot set the change time, so
    /// a forged modification time has no effect.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn file_digest(&self, path: impl AsRef<Path>) -> io::Result<Digest> {
        let mut file = File::open(path)?;
        let before = file.metadata()?;
        let key = Key::builder("file digest")
            .field("device", before.dev().to_le_bytes())
            .field("inode", before.ino().to_le_bytes())
            .field("size", before.size().to_le_bytes())
            .field("modified", [before.mtime(), before.mtime_nsec()].map(i64::to_le_bytes).concat())
            .field("changed", [before.ctime(), before.ctime_nsec()].map(i64::to_le_bytes).concat())
            .finish();
        if let Some(known) = self.record(&key).and_then(|value| value.try_into().ok()) {
            return Ok(Digest(known));
        }
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => hasher.update(buffer.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let digest = Digest(hasher.finalize().into());
        let after = file.metadata()?;
        let unchanged = (before.size(), before.ctime(), before.ctime_nsec())
            == (after.size(), after.ctime(), after.ctime_nsec());
        if unchanged && is_settled(after.ctime()) {
            self.put_record(&key, &digest.0);
        }
        Ok(digest)
    }
}

/// Whether a change time is so old that a later change must be visible. False if the clock shows an
/// earlier time.
fn is_settled(changed_s: i64) -> bool {
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return false };
    u64::try_from(changed_s)
        .is_ok_and(|changed| now.as_secs() > changed.saturating_add(TIMESTAMP_RESOLUTION.as_secs()))
}
