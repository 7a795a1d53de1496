//! GGUF in, tokens out.

pub mod arch;
pub mod gguf;
pub mod graph;
