//! The progress of a download.

use std::io;
use std::path::Path;
use std::time::Duration;

/// Progress of a fetch.
#[derive(Debug)]
pub enum Event<'a> {
    /// The fetch of a file begins.
    File {
        /// Path of the file in the repository.
        file: &'a str,
        /// Length of the file in bytes.
        bytes: u64,
        /// Bytes that an earlier fetch stored.
        have: u64,
    },
    /// Number of bytes of the file that are stored.
    At(u64),
    /// Another try will follow.
    Again {
        /// The error of this try.
        why: &'a str,
        /// The pause before the next try.
        pause: Duration,
    },
    /// A part of the cache is unusable and is skipped.
    Skipped {
        /// Path of the skipped part.
        path: &'a Path,
        /// The system's error.
        why: &'a io::Error,
    },
    /// The path of a partial download belonged to a file of a different kind or owner. It was
    /// removed.
    Removed {
        /// The path.
        path: &'a Path,
        /// Description of the removed file: `is a symbolic link`.
        why: &'a str,
    },
    /// Another process is fetching this file. This process waits for it.
    Waiting {
        /// Path of the file in the repository.
        file: &'a str,
    },
}

/// Receives the progress.
pub type Watch<'a> = &'a dyn Fn(Event<'_>);
