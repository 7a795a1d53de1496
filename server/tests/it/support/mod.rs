//! Helpers that the server's tests share.

pub mod connection;
