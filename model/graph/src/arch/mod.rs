//! The architectures. Builds a [`Graph`] from the metadata of a file.
//!
//! Most architectures are a row of `table.rs` with their differences from llama. If a row cannot
//! describe an architecture, it is a function in a file of this folder, which builds layers from
//! the same parts, and a line in `ARCH_FUNCTIONS`.

mod attention;
mod decoder;
mod delta;
mod facts;
mod ffn;
mod gemma;
mod gemma3n;
mod hparams;
mod hybrid;
mod latent;
mod layer;
mod mamba;
mod pooling;
mod rwkv;
mod stateful;
mod table;

use crate::{Graph, GraphError};
use kjit_gguf::Gguf;

pub use pooling::{build_vector, pooling};

type Build = fn(&Gguf) -> Result<Graph, GraphError>;

/// Names in `general.architecture`, with the functions of architectures that are not in the table.
const ARCH_FUNCTIONS: &[(&str, Build)] = &[
    ("mamba", stateful::mamba),
    ("mamba2", stateful::mamba2),
    ("gemma3n", gemma3n::build),
    ("gemma4", gemma::gemma4),
    ("rwkv6", rwkv::rwkv6),
    ("rwkv7", rwkv::rwkv7),
    ("nemotron_h", stateful::nemotron_h),
    ("nemotron_h_moe", stateful::nemotron_h),
];

/// Builds the graph of the file's model.
///
/// # Errors
/// The architecture is unknown (the error lists the known ones). Metadata or a tensor is missing,
/// has a different type or shape, or is out of range. A tensor is not used.
pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let arch = gguf.architecture()?;
    let row = table::TABLE.iter().find(|facts| facts.arch == arch);
    let built = ARCH_FUNCTIONS.iter().find(|(name, _)| *name == arch);
    match (row, built) {
        (None, None) => {
            Err(GraphError::UnknownArch { arch: arch.to_string(), known: known().join(", ") })
        }
        _ if gguf.tensors().is_empty() => Err(GraphError::NoTensors),
        (Some(facts), _) => decoder::build(gguf, facts),
        (None, Some((_, build))) => build(gguf),
    }
}

/// The architectures' names.
pub fn known() -> Vec<&'static str> {
    table::TABLE
        .iter()
        .map(|facts| facts.arch)
        .chain(ARCH_FUNCTIONS.iter().map(|(name, _)| *name))
        .collect()
}
