//! The interface of an operation on the CPU.

use crate::run::Run;

/// An operation that the CPU computes.
pub(super) trait Compute {
    /// Computes the rows of the results, in the order of
    /// [`Operation::writes`](kjit_graph::op::Operation::writes).
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]);
}
