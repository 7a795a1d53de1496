//! The GPU sources, and beside each the Rust that specialises it; and the block formats, described once for host and GPU.
//!
//! This crate is text plus arithmetic: it calls no GPU and opens no file.

pub mod format;
pub mod ggml;
pub mod layout;
