//! Support modules of other crates' tests.

#![allow(dead_code, reason = "each test program uses its part")]

#[path = "../../../../tests/support/files.rs"]
pub mod files;
#[path = "../../../../gguf/tests/it/support/folder.rs"]
pub mod folder;
#[path = "../../../../gguf/tests/it/support/peak.rs"]
pub mod peak;
