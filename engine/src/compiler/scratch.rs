//! The folder of a compiler process for temporary files.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The folder for a compiler process's temporary files. The starter removes it; the process itself
/// does if the starter is gone.
pub(super) static SCRATCH: OnceLock<PathBuf> = OnceLock::new();

/// The folder for a compiler's temporary files.
pub(crate) fn scratch() -> PathBuf {
    SCRATCH.get().cloned().unwrap_or_else(std::env::temp_dir)
}

pub(super) fn remove_scratch() {
    if let Some(folder) = SCRATCH.get() {
        // The folder may be gone already; an error here cannot be reported to anyone.
        let _ = std::fs::remove_dir_all(folder);
    }
}
