//! The folder of a compiler process for temporary files.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The folder of a compiler process for temporary files. The parent removes it. If the parent has
/// died, the process removes it.
pub(super) static SCRATCH: OnceLock<PathBuf> = OnceLock::new();

/// The folder for a compiler's temporary files.
pub(crate) fn scratch() -> PathBuf {
    SCRATCH.get().cloned().unwrap_or_else(std::env::temp_dir)
}

pub(super) fn remove_scratch() {
    if let Some(folder) = SCRATCH.get() {
        // The folder may have been removed already. An error here cannot be reported.
        let _ = std::fs::remove_dir_all(folder);
    }
}
