//! A model's file, and the CPU for operations that a graph assigns to it.

use kjit_exec::OpenHostOps;
use kjit_gguf::Gguf;
use std::sync::Arc;

/// A model's file, and the CPU for operations that a graph assigns to it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The file.
    pub gguf: &'a Arc<Gguf>,
    /// Prepares the CPU for such operations.
    pub host: OpenHostOps,
}
