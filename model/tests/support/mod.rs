//! What the tests of this crate share.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod exercise;
pub mod oracle;
pub mod peak;
pub mod shapes;
pub mod simulated;
pub mod writer;

use std::path::PathBuf;

/// A model in the test folder (`KJIT_TEST_MODELS`, else `.models/` at the repository's root); `None`, said aloud, if it is not there.
pub fn model_path(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("KJIT_TEST_MODELS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.models"), PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        eprintln!(
            "SKIPPED: {} is not there (scripts/test fetches it; KJIT_TEST_MODELS names the folder)",
            path.display()
        );
        return None;
    }
    Some(path)
}
