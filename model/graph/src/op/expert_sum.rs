//! Weighted sums over slots.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out = Σ over slots of shares[slot] · x[slot]`, or the plain sum without shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertSum {
    /// Input, one slot per chosen expert.
    pub x: ValueId,
    /// Factor per slot.
    pub shares: Option<ValueId>,
    /// The result, one slot.
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

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        self.reads().iter().map(|v| graph.value(*v).name.clone()).collect()
    }
}
