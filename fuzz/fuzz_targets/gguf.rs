//! Any bytes as a model file: opening them and asking for everything must not panic, and an error
//! is one line.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../model/gguf/tests/it/support/exercise.rs"]
mod exercise;

fuzz_target!(|bytes: &[u8]| exercise::exercise(bytes));
