//! Why a call of one of AMD's libraries failed.

use crate::Tried;
use std::path::PathBuf;

/// A failed call, a call that the library does not have, or no library at all.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library answered with a code.
    #[error("{call}: {says} ({name}, code {code})")]
    Code {
        /// The call.
        call: &'static str,
        /// The library's number.
        code: u32,
        /// Its name for it: `hipErrorOutOfMemory`.
        name: String,
        /// A sentence.
        says: String,
    },
    /// The library has no such call: it is older or newer than the call.
    #[error("{} has no {symbol}", .library.display())]
    Missing {
        /// The call.
        symbol: &'static str,
        /// The library.
        library: PathBuf,
    },
    /// The library is not there.
    #[error("{library} not found; tried {}; {package}", .tried.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NotFound {
        /// What it is.
        library: &'static str,
        /// Every place tried.
        tried: Vec<Tried>,
        /// What to install.
        package: &'static str,
    },
}

impl Error {
    /// The library's number, if it gave one.
    #[must_use]
    pub fn code(&self) -> Option<u32> {
        match self {
            Error::Code { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Name and sentence of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeName {
    /// The number.
    pub code: u32,
    /// The vendor's name.
    pub name: &'static str,
    /// What it means and, where that is known, what to do.
    pub says: &'static str,
}

/// A row of a table of codes.
#[must_use]
pub const fn code(code: u32, name: &'static str, says: &'static str) -> CodeName {
    CodeName { code, name, says }
}

/// Looks a code up in a table.
#[must_use]
pub fn name_in(table: &[CodeName], code: u32) -> Option<&CodeName> {
    table.iter().find(|row| row.code == code)
}
