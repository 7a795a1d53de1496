//! What the tests share.

pub mod server;
