//! Chosen experts divided between a GPU that has some of them and the CPU that has all.

use super::{Op, Operation};
use crate::{Graph, ValueId};

/// Which of the chosen experts lie on the device, and where: `places[slot]` is the matrix there,
/// `own[slot]` the expert's share, or 0 for one that the CPU computes.
///
/// Where an expert lies changes between steps, so that who runs the graph says it. Behind this
/// stand the operations that compute what is there, an [`Elsewhere`](super::Elsewhere) with the
/// others, and the sum of both.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The rows that the CPU's part begins with.
    pub x: ValueId,
    /// The chosen experts.
    pub experts: ValueId,
    /// Their shares.
    pub shares: ValueId,
    /// Where they lie.
    pub places: ValueId,
    /// The shares of those that lie there.
    pub own: ValueId,
    /// What one device that has all experts computes instead.
    pub whole: Vec<Op>,
    /// Operations behind this one that it stands for.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
        self.reads().iter().map(|v| graph.value(*v).name.clone()).collect()
    }
}
