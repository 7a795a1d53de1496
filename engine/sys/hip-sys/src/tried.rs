//! A path that was searched.

use std::fmt;
use std::path::PathBuf;

/// A path that was searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedPath {
    /// The reason for the search: `KJIT_HIP_LIBRARY`, `ROCM_PATH`, `loader path`, `usual folder`,
    /// `Python package`.
    pub via: &'static str,
    /// File, folder, or the name that the loader gets.
    pub place: PathBuf,
    /// The problem: `not there`, or the loader's message if the file exists but cannot be opened.
    pub why: String,
}

impl fmt::Display for SearchedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place.display())?;
        if self.why == NOT_THERE { Ok(()) } else { write!(f, " ({})", self.why) }
    }
}

pub(super) const NOT_THERE: &str = "not there";
