//! GGUF in, tokens out.

pub mod arch;
pub mod chat;
pub mod gguf;
pub mod gpu;
pub mod graph;
pub mod tokenizer;
