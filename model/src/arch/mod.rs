//! The architectures: from a file's metadata to a [`Graph`]. A new one is one file here and one line in `KNOWN`.

mod gemma3;
mod hparams;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3moe;
mod transformer;

use crate::gguf::Gguf;
use crate::graph::{Graph, GraphError};

type Build = fn(&Gguf) -> Result<Graph, GraphError>;

/// Name in `general.architecture`, and who builds it.
const KNOWN: &[(&str, Build)] = &[
    ("llama", llama::build),
    ("qwen2", qwen2::build),
    ("qwen3", qwen3::build),
    ("qwen3moe", qwen3moe::build),
    ("gemma3", gemma3::build),
];

/// What the file's model computes.
///
/// # Errors
/// An architecture that is not known, named with those that are; metadata or a tensor that is missing, of another type or shape, or out
/// of its range.
pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let arch = gguf.architecture()?;
    match KNOWN.iter().find(|(name, _)| *name == arch) {
        Some(_) if gguf.tensors().is_empty() => Err(GraphError::NoTensors),
        Some((_, build)) => build(gguf),
        None => Err(GraphError::UnknownArch { arch: arch.to_string(), known: known().join(", ") }),
    }
}

/// The architectures' names.
pub fn known() -> Vec<&'static str> {
    KNOWN.iter().map(|(name, _)| *name).collect()
}
