//! Helpers that the tests share.

pub mod registry;
pub mod server;
