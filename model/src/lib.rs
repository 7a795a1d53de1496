//! GGUF in, tokens out.

#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::indexing_slicing)
)]

pub mod arch;
pub mod chat;
pub mod conversation;
pub mod exec;
pub mod generate;
pub mod gguf;
pub mod gpu;
pub mod graph;
pub mod host;
pub mod perplexity;
pub mod sample;
pub mod tokenizer;
