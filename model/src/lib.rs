//! GGUF in, tokens out.

pub mod gguf;
