//! Problems that do not cause an error for the caller.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// A problem that makes the cache slower, but not wrong. The cache reports it and continues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The home directory is unknown.
    #[error(
        "no cache directory: none is given, and the user's cache folder is unknown; \
         artefacts are stored in memory only"
    )]
    NoHome,
    /// The process runs setuid, so no directory is trusted.
    #[error("the cache is off: the process has more rights than its parent (setuid)")]
    Privileged,
    /// A directory or file is not trusted.
    #[error("{path} is not used: {reason}")]
    Refused {
        /// The refused path.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Files cannot be written. Existing entries are still read.
    #[error(
        "cannot write to the cache at {path}: {reason}; new artefacts are stored in memory only"
    )]
    NotWritable {
        /// The directory of the cache.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A file or directory cannot be read.
    #[error("cannot read {path}: {reason}")]
    NotReadable {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// An entry is faulty and was not used.
    #[error("{path} is not a valid entry ({reason}); it is quarantined and created again")]
    Corrupt {
        /// The path of the entry.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file system does not support locks; two processes may do the same work.
    #[error("the file system of {path} does not support locks ({reason}); work may be done twice")]
    NoLocks {
        /// The path of the lock file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// The lock of a key was held longer than the deadline.
    #[error("the lock {path} was not released before the deadline; continuing without it")]
    LockTimeout {
        /// The path of the lock file.
        path: PathBuf,
    },
    /// A leftover file could not be removed.
    #[error("cannot clean up {path}: {reason}")]
    NotCleaned {
        /// The path of the leftover.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A single artefact exceeds the size limit.
    #[error(
        "an artefact of {bytes} bytes exceeds the cache's size limit of {cap}; \
         it is stored in memory only"
    )]
    TooLarge {
        /// Size of the artefact in bytes.
        bytes: u64,
        /// Size limit in bytes.
        cap: u64,
    },
    /// A pack is not used.
    #[error("the pack {path} is not used: {reason}")]
    PackRefused {
        /// The path of the pack.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A pack server is not queried any more.
    #[error("{address} is not queried for entries any more: {reason}")]
    RemoteLeft {
        /// The address of the server.
        address: String,
        /// The reason.
        reason: String,
    },
}

/// A callback for new warnings.
pub type OnWarning = Arc<dyn Fn(&Warning) + Send + Sync>;

/// Distinct warnings so far: a thousand failures with the same cause are one warning.
pub(crate) struct Warnings {
    seen: Mutex<Vec<Warning>>,
    callback: Option<OnWarning>,
}

/// Maximum number of stored warnings, so that a directory of faulty files does not use up the
/// memory.
const MAX_WARNINGS: usize = 256;

impl Warnings {
    pub(crate) fn new(callback: Option<OnWarning>) -> Self {
        Self { seen: Mutex::new(Vec::new()), callback }
    }

    pub(crate) fn push(&self, warning: Warning) {
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.contains(&warning) || seen.len() >= MAX_WARNINGS {
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
