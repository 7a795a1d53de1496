//! Operations that the CPU computes during a GPU's pass.

use super::{OpenOptions, SessionError};
use kjit_gguf::Gguf;
use kjit_graph::Graph;
use std::sync::Arc;

/// Runs single operations of a graph on the CPU. These operations have no state.
pub trait HostOps: Send {
    /// The graph whose operations are run.
    fn graph(&self) -> &Graph;

    /// Number of positions that rows may have.
    fn context(&self) -> usize;

    /// Runs the operation with this index. `inputs` are the rows of its
    /// [`reads`](kjit_graph::Op::reads), for `tokens` tokens at positions from `first` on. The
    /// results are the rows of its [`writes`](kjit_graph::Op::writes).
    ///
    /// # Errors
    /// The operation does not exist, an input has a wrong size, there are too few or too many
    /// inputs, or a position exceeds the context.
    fn run_op(
        &mut self,
        op: usize,
        first: usize,
        tokens: &[u32],
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, SessionError>;
}

/// Prepares the CPU for the operations of a graph. The runner of a GPU gets this function when it
/// is opened, so it does not depend on the CPU's code.
pub type OpenHostOps = fn(Arc<Gguf>, Graph, &OpenOptions) -> Result<Box<dyn HostOps>, SessionError>;
