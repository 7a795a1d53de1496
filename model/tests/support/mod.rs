//! What the tests of this crate share.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod as_folder;
pub mod asked;
pub mod draws;
pub mod exercise;
pub mod files;
pub mod folder;
pub mod folders;
pub mod near;
pub mod one;
pub mod oracle;
pub mod paged;
pub mod peak;
pub mod reproducible;
pub mod returning;
pub mod shapes;
pub mod side_by_side;
pub mod simulated;
pub mod story;
pub mod writer;
