//! The architectures: from a file's metadata to a [`Graph`].
//!
//! Most are a row of `table.rs` with their differences from llama. An architecture that a row
//! cannot describe is a function that builds layers from the same parts, in a file here, with a
//! line in `BUILT`.

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
const BUILT: &[(&str, Build)] = &[
    ("mamba", stateful::mamba),
    ("mamba2", stateful::mamba2),
    ("gemma3n", gemma3n::build),
    ("gemma4", gemma::gemma4),
    ("rwkv6", rwkv::rwkv6),
    ("rwkv7", rwkv::rwkv7),
    ("nemotron_h", stateful::nemotron_h),
    ("nemotron_h_moe", stateful::nemotron_h),
];

/// The graph of the file's model.
///
/// # Errors
/// An unknown architecture (the error lists the known ones); metadata or a tensor that is missing,
/// of another type or shape, or out of range; a tensor that nothing uses.
pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let arch = gguf.architecture()?;
    let row = table::TABLE.iter().find(|facts| facts.arch == arch);
    let built = BUILT.iter().find(|(name, _)| *name == arch);
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
    table::TABLE.iter().map(|facts| facts.arch).chain(BUILT.iter().map(|(name, _)| *name)).collect()
}
