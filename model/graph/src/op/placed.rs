//! Chosen experts, divided between a GPU that has some of them and the CPU that has all.

use super::Op;
use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// The places of the chosen experts on the device: `places[slot]` is the matrix there. `own[slot]`
/// is the expert's weight, or 0 for an expert that the CPU computes.
///
/// The executor provides the places, since they change between steps. After this operation follow
/// the operations of the device's experts, an [`Offload`](super::Offload) for the others, and
/// the sum of both.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The input rows of the CPU's part.
    pub x: ValueId,
    /// The chosen experts.
    pub experts: ValueId,
    /// Their weights.
    pub shares: ValueId,
    /// Their places on the device.
    pub places: ValueId,
    /// The weights of those on the device.
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
