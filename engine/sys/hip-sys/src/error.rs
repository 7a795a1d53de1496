//! Errors of calls to AMD's libraries.

use crate::SearchedPath;
use std::path::PathBuf;

/// A failed call, a call that the library lacks, or a missing library.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library returned an error code.
    #[error("{call}: {says} ({name}, code {code})")]
    Code {
        /// Name of the call.
        call: &'static str,
        /// Code returned by the call.
        code: u32,
        /// Name of the code: `hipErrorOutOfMemory`.
        name: String,
        /// Meaning of the code.
        says: String,
    },
    /// The library lacks this call, because it is older or newer.
    #[error("{} has no {symbol}", .library.display())]
    Missing {
        /// Name of the call.
        symbol: &'static str,
        /// Path of the library.
        library: PathBuf,
    },
    /// The library is missing.
    #[error("{library} not found; tried {}; {package}", .tried.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NotFound {
        /// Name of the library.
        library: &'static str,
        /// All paths that were searched.
        tried: Vec<SearchedPath>,
        /// The package to install.
        package: &'static str,
    },
}

impl Error {
    /// The library's code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        match self {
            Error::Code { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A code with its name and meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeName {
    /// Number of the code.
    pub code: u32,
    /// The vendor's name of the code.
    pub name: &'static str,
    /// Meaning of the code and, if known, a remedy.
    pub says: &'static str,
}

/// A row of a table of codes.
#[must_use]
pub const fn code(code: u32, name: &'static str, says: &'static str) -> CodeName {
    CodeName { code, name, says }
}

/// Finds a code in a table.
#[must_use]
pub fn name_in(table: &[CodeName], code: u32) -> Option<&CodeName> {
    table.iter().find(|row| row.code == code)
}
