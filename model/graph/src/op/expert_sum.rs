//! Weighted sums over slots.

use super::{Op, Operation};
use crate::{Builder, Dtype, Graph, ValueId};

/// `out = Σ over slots of shares[slot] · x[slot]`, or the plain sum without shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSum {
    /// One slot per chosen expert.
    pub x: ValueId,
    /// Factor per slot.
    pub shares: Option<ValueId>,
    /// One slot.
    pub out: ValueId,
}

impl Operation for ExpertSum {
    fn reads(&self) -> Vec<ValueId> {
        std::iter::once(self.x).chain(self.shares).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "expert_sum"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        self.reads().iter().map(|v| graph.value(*v).name.clone()).collect()
    }
}

impl Builder<'_> {
    /// Appends an [`ExpertSum`].
    pub fn expert_sum(&mut self, name: impl Into<String>, x: ValueId, shares: ValueId) -> ValueId {
        self.sum_slots(name.into(), x, Some(shares))
    }

    /// Appends an [`ExpertSum`] without shares.
    pub fn slot_sum(&mut self, name: impl Into<String>, x: ValueId) -> ValueId {
        self.sum_slots(name.into(), x, None)
    }

    fn sum_slots(&mut self, name: String, x: ValueId, shares: Option<ValueId>) -> ValueId {
        let width = self.graph().value(x).width;
        let out = self.value(name, 1, width, Dtype::Real);
        self.push(Op::ExpertSum(ExpertSum { x, shares, out }), out)
    }
}
