//! Helpers that the tests share.

pub mod server;
