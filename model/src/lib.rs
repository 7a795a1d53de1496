//! GGUF in, tokens out.

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
