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
        // When a compile is killed, two threads remove its files, and either can lose an entry to
        // the other. An error that stays cannot be reported.
        for _ in 0..10 {
            if std::fs::remove_dir_all(folder).is_ok() || !folder.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
