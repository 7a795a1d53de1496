//! GGUF in, tokens out.

pub mod arch;
pub mod chat;
pub mod exec;
pub mod gguf;
pub mod gpu;
pub mod graph;
pub mod host;
pub mod sample;
pub mod tokenizer;
