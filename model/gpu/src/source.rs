//! A model's file, and the CPU for what a graph leaves to it.

use kjit_exec::OpenHostOps;
use kjit_gguf::Gguf;
use std::sync::Arc;

/// A model's file, and the CPU for the operations that a graph leaves to it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The file.
    pub gguf: &'a Arc<Gguf>,
    /// Sets the CPU up for such operations.
    pub host: OpenHostOps,
}
