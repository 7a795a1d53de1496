//! Any bytes as an entry of the cache, with and without a good checksum.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../cache/tests/it/support/exercise.rs"]
#[allow(dead_code)]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::entry(bytes));
