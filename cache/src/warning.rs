//! What went wrong without stopping anybody.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Something that cost speed and not correctness. The cache reports it and goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// There is no home directory to be found.
    #[error(
        "no cache directory: neither an explicit one nor the user's is known; artefacts are kept \
         in memory only"
    )]
    NoHome,
    /// The process runs setuid: nothing on disk is trusted.
    #[error("the cache is off: the process runs with rights that its starter lacks (setuid)")]
    Privileged,
    /// A directory or file is not trusted.
    #[error("{path} is not used: {reason}")]
    Refused {
        /// What is refused.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Nothing can be written; what is there is still read.
    #[error("cannot write to the cache at {path}: {reason}; new artefacts are kept in memory only")]
    NotWritable {
        /// The cache's directory.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Something could not be read.
    #[error("cannot read {path}: {reason}")]
    NotReadable {
        /// What could not be read.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// A faulty entry, which was not used.
    #[error("{path} is no good entry ({reason}); it is set aside and made anew")]
    Corrupt {
        /// The entry.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file system gives no locks; two processes may do the same work.
    #[error("the file system of {path} gives no locks ({reason}); work may be done twice")]
    NoLocks {
        /// The lock file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Somebody held a key's lock for longer than the deadline.
    #[error("the lock {path} was held past the deadline; going on without it")]
    LockTimeout {
        /// The lock file.
        path: PathBuf,
    },
    /// A left-over could not be removed.
    #[error("cannot clean up {path}: {reason}")]
    NotCleaned {
        /// What is left.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The artefact alone is above the cap.
    #[error(
        "an artefact of {bytes} bytes does not fit the cache's cap of {cap}; it is kept in \
         memory only"
    )]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The cap.
        cap: u64,
    },
    /// A pack that is not used.
    #[error("the pack {path} is not used: {reason}")]
    PackRefused {
        /// The pack.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Called for each new warning.
pub type OnWarning = Arc<dyn Fn(&Warning) + Send + Sync>;

/// Distinct warnings so far; a thousand misses on a full disk are one warning.
pub(crate) struct Warnings {
    seen: Mutex<Vec<Warning>>,
    callback: Option<OnWarning>,
}

/// So many distinct ones are kept; a directory full of faulty files must not fill the memory.
const KEPT: usize = 256;

impl Warnings {
    pub(crate) fn new(callback: Option<OnWarning>) -> Self {
        Self { seen: Mutex::new(Vec::new()), callback }
    }

    pub(crate) fn push(&self, warning: Warning) {
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.contains(&warning) || seen.len() >= KEPT {
                return;
            }
            seen.push(warning.clone());
        }
        if let Some(callback) = &self.callback {
            callback(&warning);
        }
    }

    pub(crate) fn all(&self) -> Vec<Warning> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
