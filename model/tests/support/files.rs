//! The models that tests read: real ones, and tiny ones with random weights. Tests of other crates
//! use this module as well.

use std::path::{Path, PathBuf};

/// The path of a synthetic model (`scripts/fetch-test-models --tiny` makes them).
pub fn tiny_model(name: &str) -> Option<PathBuf> {
    model_path(&format!("tiny/{name}"))
}

/// All synthetic models that exist, sorted by name. If no model exists, a message is printed.
pub fn tiny_models() -> Vec<PathBuf> {
    let Some(folder) = model_path("tiny") else { return vec![] };
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut all: Vec<PathBuf> = files
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "gguf"))
        .collect();
    all.sort();
    all
}

/// The path of a model in the test folder (`KJIT_TEST_MODELS`, or by default `.models/` at the root
/// of the repository). If it does not exist, a message is printed and the result is `None`.
pub fn model_path(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("KJIT_TEST_MODELS").map_or_else(
        || {
            // The folder of a crate is one or two levels below the root.
            let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(1);
            let mut folders = above.map(|folder| folder.join(".models"));
            folders.find(|folder| folder.exists()).unwrap_or_else(|| ".models".into())
        },
        PathBuf::from,
    );
    let path = folder.join(name);
    if !path.exists() {
        eprintln!(
            "SKIPPED: {} is missing (scripts/test fetches it; KJIT_TEST_MODELS names the folder)",
            path.display()
        );
        return None;
    }
    Some(path)
}
