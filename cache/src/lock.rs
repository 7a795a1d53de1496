//! One lock for each key, between processes. It saves work; nothing that is correct depends on it.

use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::safe_dir::{Fault, SafeDir};
use crate::store::{DirStore, make_room, open_or_clear};

const LOCKS: &str = "locks";
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// A waiter looks this often: against compile times of 0.1 to 5 s it costs nothing.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What came of asking for a lock.
pub(crate) enum Outcome<T> {
    /// Ours until it is dropped. `waited`: somebody else had it before.
    Held { lock: KeyLock, waited: bool },
    /// While waiting, what we waited for appeared.
    Appeared(T),
    /// The deadline passed.
    TimedOut(PathBuf),
    /// There are no locks here.
    Unavailable(PathBuf, Fault),
}

/// A held lock; given up when dropped, and by the system when the process dies.
pub(crate) struct KeyLock {
    dir: SafeDir,
    name: String,
    file: File,
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // Removed while it is held: whoever waits on the removed file sees that and opens the new
        // one. If it cannot be removed it stays, free, and serves the next one.
        let _ = self.dir.unlink(&self.name);
        // Said aloud, since a forked child may hold a copy of the handle.
        let _ = self.file.unlock();
    }
}

/// Takes the lock `name`, polling until `deadline`; between polls `appeared` may end the wait.
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
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let name = name.to_owned();
        if dir.names(&name, &file) {
            return Outcome::Held { lock: KeyLock { dir, name, file }, waited };
        }
        // The one before us removed the file that we waited on: its successor is a new file.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Outcome::TimedOut(path);
        }
        std::thread::sleep(FIRST_PAUSE.min(left));
    }
}

/// Somebody else has the lock.
pub(crate) struct Busy;

/// Takes the lock `name` if nobody has it, without waiting; `None` where there are no locks.
pub(crate) fn try_acquire(store: &DirStore, name: &str) -> Result<Option<KeyLock>, Busy> {
    match acquire::<()>(store, name, Instant::now(), || None) {
        Outcome::Held { lock, .. } => Ok(Some(lock)),
        Outcome::Unavailable(..) => Ok(None),
        Outcome::Appeared(()) | Outcome::TimedOut(_) => Err(Busy),
    }
}

/// Removes lock files that nobody holds: those of processes that died.
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
