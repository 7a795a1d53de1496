//! Support modules of other crates' tests.

#![allow(dead_code, reason = "each test program uses its part")]

#[path = "../../../../gguf/tests/it/support/as_folder.rs"]
pub mod as_folder;
#[path = "../../../../tests/support/files.rs"]
pub mod files;
#[path = "../../../../gguf/tests/it/support/folder.rs"]
pub mod folder;
#[path = "../../../../gguf/tests/it/support/opened.rs"]
pub mod opened;
