//! Operations that the CPU computes in the midst of a GPU's pass: experts that have no room there.

use super::Op;
use super::operation::{Lookup, Operation};
use crate::value::ValueId;
use crate::weight::WeightId;

/// `out` = what these operations make of `x`: one row each for a token, and no state between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Offload {
    /// The rows they begin with.
    pub x: ValueId,
    /// What else they are given: where a device has some of the experts, the chosen ones (below 0:
    /// not the CPU's) and their shares.
    pub with: Vec<ValueId>,
    /// In order. Nothing outside reads what they make but `out`.
    pub ops: Vec<Op>,
    /// The rows they end with.
    pub out: ValueId,
}

impl Operation for Offload {
    fn reads(&self) -> Vec<ValueId> {
        std::iter::once(self.x).chain(self.with.iter().copied()).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        let vectors = self.vectors();
        self.ops.iter().flat_map(Op::weights).filter(|w| !vectors.contains(w)).collect()
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.ops.iter().flat_map(Op::vectors).collect()
    }

    fn bytes(&self, graph: &dyn Lookup) -> u64 {
        self.ops.iter().map(|op| op.bytes(graph)).sum()
    }

    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let made = self.ops.iter().flat_map(Op::writes);
        self.reads().into_iter().chain(made).map(|v| graph.value(v).name.clone()).collect()
    }
}
