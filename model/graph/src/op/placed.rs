//! Chosen experts that are divided between the GPU, which has some of the experts, and the CPU,
//! which has all of them.

use super::Op;
use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// Maps the chosen experts to matrices on the device: `places[slot]` is the index of the matrix.
/// `own[slot]` is the weight of the expert, or 0 for an expert that the CPU computes.
///
/// The executor provides the indices, because they change between steps. The next operations are:
/// the device's experts, an [`Offload`](super::Offload) for the others, and the sum of both.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The input rows of the CPU's part.
    pub x: ValueId,
    /// The chosen experts.
    pub experts: ValueId,
    /// Weights of the chosen experts.
    pub shares: ValueId,
    /// Matrix indices of the chosen experts on the device.
    pub places: ValueId,
    /// Weights of the experts that are on the device.
    pub own: ValueId,
    /// The operations to use instead on a device that has all experts.
    pub whole: Vec<Op>,
    /// The number of following operations that `whole` replaces.
    pub instead: usize,
}

impl Operation for Placed {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x, self.experts, self.shares]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.places, self.own]
    }

    fn name(&self) -> &'static str {
        "placed"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        self.reads().iter().map(|v| graph.value(*v).name.clone()).collect()
    }
}
