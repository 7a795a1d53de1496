//! Any bytes as a pack, with and without a good checksum.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../cache/tests/it/support/exercise.rs"]
#[allow(dead_code)]
mod exercise;

static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    base.join(format!("kjit-fuzz-{}.pack", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| exercise::pack(bytes, &SCRATCH));
