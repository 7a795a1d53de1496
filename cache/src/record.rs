//! Small values by key, under the rules of the entries: measured timings, digests of files.

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
use crate::store::{DirStore, Place};
use crate::warning::Warning;

/// A record is read as a whole on the way to something else: it stays small.
pub(crate) const RECORD_LIMIT: u64 = 16 << 20;
/// A file that changed within this time may change again without its times showing it: file systems
/// stamp in steps of up to two seconds.
const SETTLED: Duration = Duration::from_secs(3);

impl Cache {
    /// The record kept under `key`, from memory, home or the first read-only layer that has one.
    /// (In memory is only what home did not take, so it is newer than what home has.)
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

    /// Keeps `value` under `key`, in place of what was there.
    pub fn put_record(&self, key: &Key, value: &[u8]) {
        self.put_record_as(key, value, DirStore::publish);
    }

    /// The same without waiting for the disk: the next process finds it, but a machine that stops
    /// may take it along.
    pub fn put_record_soon(&self, key: &Key, value: &[u8]) {
        self.put_record_as(key, value, DirStore::publish_soon);
    }

    fn put_record_as(
        &self,
        key: &Key,
        value: &[u8],
        publish: impl Fn(&DirStore, &Place, &[u8]) -> Result<(), Fault>,
    ) {
        let created =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        let bytes = encode_record(key, value, u64::try_from(created).unwrap_or(u64::MAX));
        let in_memory = || self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = self.writable_home() {
            match publish(home, &Place::record(key.digest()), &bytes) {
                Ok(()) => {
                    in_memory().remove(&key.digest());
                    return;
                }
                Err(fault) => self.warn_unwritable(home, &fault),
            }
        }
        in_memory().insert(key.digest(), (key.clone(), value.to_vec()));
    }

    /// Replaces a record by what `change` makes of it, under the key's lock, so that no other
    /// process's update is lost. After `deadline` it goes on without the lock.
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

    /// Says that the record under `key` holds what no writer of its kind writes: it is set aside
    /// where it is ours, forgotten in memory, and warned of. One in a read-only layer stays, and is
    /// warned of once.
    pub fn reject_record(&self, key: &Key, reason: impl Into<String>) {
        let (digest, reason) = (key.digest(), reason.into());
        self.records.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
        let place = Place::record(digest);
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
        let place = Place::record(digest);
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

    /// SHA-256 of a file's content, remembered by device, inode, size, modification and change time
    /// — never by its path. A 100 MB compiler library costs its 0.1 s once; replaced under the same
    /// name, it is read again. (The change time cannot be set by anybody, so a lying modification
    /// time does no harm.)
    ///
    /// # Errors
    /// When the file cannot be read.
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

/// Whether a change time lies far enough back that a later change must show. With a clock before
/// it: no.
fn is_settled(changed_s: i64) -> bool {
    let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) else { return false };
    u64::try_from(changed_s)
        .is_ok_and(|changed| now.as_secs() > changed.saturating_add(SETTLED.as_secs()))
}
