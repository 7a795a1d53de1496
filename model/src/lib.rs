//! GGUF in, tokens out.
