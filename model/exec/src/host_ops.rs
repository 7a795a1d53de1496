//! Operations that the CPU computes in the midst of a GPU's pass.

use super::{OpenOptions, SessionError};
use kjit_gguf::Gguf;
use kjit_graph::Graph;
use std::sync::Arc;

/// Runs single operations of a graph on the CPU. None of them keeps a state.
pub trait HostOps: Send {
    /// The graph whose operations are run.
    fn graph(&self) -> &Graph;

    /// Positions that rows may have.
    fn context(&self) -> usize;

    /// Runs the operation of this index. `inputs` are the rows of its
    /// [`reads`](kjit_graph::Op::reads), for `tokens` at positions from `first` on; the results
    /// are those of its [`writes`](kjit_graph::Op::writes).
    ///
    /// # Errors
    /// No such operation, inputs of another number or size, positions past the context.
    fn run_op(
        &mut self,
        op: usize,
        first: usize,
        tokens: &[u32],
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, SessionError>;
}

/// Sets the CPU up for the operations of a graph. A GPU's runner is given it when it is opened, so
/// that it names no code of the CPU's.
pub type OpenHostOps = fn(Arc<Gguf>, Graph, &OpenOptions) -> Result<Box<dyn HostOps>, SessionError>;
