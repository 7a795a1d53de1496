//! Files and folders for tests. The tests of other crates include these modules by path.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod exercise;
#[path = "../../../../tests/support/files.rs"]
pub mod files;
pub mod folder;
pub mod opened;
pub mod peak;
pub mod writer;
