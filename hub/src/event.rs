//! The progress of a download.

use std::io;
use std::path::Path;
use std::time::Duration;

/// Progress of a fetch.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file begins.
    File {
        /// Its path inside the repository.
        file: &'a str,
        /// Its length.
        bytes: u64,
        /// Bytes that an earlier fetch left.
        have: u64,
    },
    /// Bytes of the file that are here.
    At(u64),
    /// Another try follows.
    Again {
        /// What went wrong.
        why: &'a str,
        /// The pause before it.
        pause: Duration,
    },
    /// A part of the cache is unusable and is skipped.
    Skipped {
        /// Where it is.
        path: &'a Path,
        /// The system's error.
        why: &'a io::Error,
    },
    /// A file that is not ours stood in the place of a partial download. It was removed.
    Removed {
        /// Where it was.
        path: &'a Path,
        /// A description: `is a symbolic link`.
        why: &'a str,
    },
    /// Another process fetches this file. This process waits for it.
    Waiting {
        /// Its path inside the repository.
        file: &'a str,
    },
}

/// Receives the progress.
pub type Watch<'a> = &'a dyn Fn(Event<'_>);
