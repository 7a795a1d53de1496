//! A lock per key between processes. It only saves work: results are correct without it.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::safe_dir::{Fault, SafeDir};
use crate::store::{DirStore, make_room, open_or_clear};

const LOCKS: &str = "locks";
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Maximum poll interval of a waiter. It is small compared with compile times of 0.1 to 5 s.
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// The result of requesting a lock.
pub(crate) enum Outcome<T> {
    /// The lock is held until it is dropped. `waited`: another process held the lock before.
    Held { lock: KeyLock, waited: bool },
    /// The awaited value appeared during the wait.
    Appeared(T),
    /// The deadline passed.
    TimedOut(PathBuf),
    /// Locks are not available.
    Unavailable(PathBuf, Fault),
}

/// A held lock. Dropping it releases it; the system releases it if the process dies.
pub(crate) struct KeyLock {
    dir: SafeDir,
    name: String,
    file: File,
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // The file is removed while it is locked. Waiters notice that their file was removed and
        // open the new one. If the file cannot be removed it stays, unlocked, for the next process.
        let _ = self.dir.unlink(&self.name);
        // Unlocked explicitly, because a forked child may hold a copy of the handle.
        let _ = self.file.unlock();
    }
}

/// Takes the lock `name`, polling until `deadline`. The wait also ends if `appeared` returns a
/// value between two polls.
pub(crate) fn acquire<T>(
    store: &DirStore,
    name: &str,
    deadline: Instant,
    appeared: impl Fn() -> Option<T>,
) -> Outcome<T> {
    let path = store.path().join(crate::store::base_name()).join(LOCKS).join(name);
    let mut pause = FIRST_PAUSE;
    let mut waited = false;
    loop {
        let opened = store.create_base().and_then(|base| {
            let dir = make_room(&base, &base, LOCKS)?;
            let file = open_or_clear(&base, &dir, name, false)?;
            Ok((dir, file))
        });
        let (dir, file) = match opened {
            Ok(opened) => opened,
            Err(fault) => return Outcome::Unavailable(path, fault),
        };
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error))
                    if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Outcome::Unavailable(path, error.into()),
            }
            waited = true;
            if let Some(found) = appeared() {
                return Outcome::Appeared(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Outcome::TimedOut(path);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(MAX_PAUSE);
        }
        let name = name.to_owned();
        if dir.names(&name, &file) {
            return Outcome::Held { lock: KeyLock { dir, name, file }, waited };
        }
        // The previous holder removed the file for which we waited; the lock is a new file now.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Outcome::TimedOut(path);
        }
        std::thread::sleep(FIRST_PAUSE.min(left));
    }
}

/// The error if another process holds the lock.
pub(crate) struct LockBusy;

/// Takes the lock `name` without waiting; `None` if locks are not available.
pub(crate) fn try_acquire(store: &DirStore, name: &str) -> Result<Option<KeyLock>, LockBusy> {
    match acquire::<()>(store, name, Instant::now(), || None) {
        Outcome::Held { lock, .. } => Ok(Some(lock)),
        Outcome::Unavailable(..) => Ok(None),
        Outcome::Appeared(()) | Outcome::TimedOut(_) => Err(LockBusy),
    }
}

/// Removes lock files of processes that died.
pub(crate) fn sweep(store: &DirStore) {
    let Ok(dir) = store.base().and_then(|base| base.open_dir(LOCKS)) else { return };
    for name in dir.list().unwrap_or_default() {
        if let Ok(file) = dir.open_shared(&name, false)
            && file.try_lock().is_ok()
            && dir.names(&name, &file)
        {
            let _ = dir.unlink(&name);
            let _ = file.unlock();
        }
    }
}
