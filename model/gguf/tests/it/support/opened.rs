//! Opens folders that a test writes.

#![allow(dead_code, reason = "each test program uses its part")]

use super::folder::Folder;
use kjit_gguf::Gguf;
use std::path::Path;
use std::sync::Arc;

/// Writes a folder with its tensors in `files` files to a temporary directory, and opens it.
pub fn written(folder: &Folder, files: usize) -> (tempfile::TempDir, Arc<Gguf>) {
    let dir = tempfile::tempdir().unwrap();
    folder.write(dir.path(), files);
    let file = Gguf::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
    (dir, Arc::new(file))
}

/// The error of a folder that must not open. The error must be one line that begins with the
/// folder's path, which is removed from the result.
pub fn refused(dir: &Path) -> String {
    let Err(error) = Gguf::open(dir) else { panic!("it opens") };
    let line = error.to_string();
    assert!(!line.contains('\n') && line.chars().count() <= 500, "{line}");
    assert!(line.starts_with(&dir.display().to_string()), "{line}");
    line.replace(&dir.display().to_string(), "")
}
