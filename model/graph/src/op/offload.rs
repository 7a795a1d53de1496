//! Operations that the CPU computes during a GPU's pass, for experts that do not fit on the GPU.

use super::Op;
use super::operation::{Lookup, Operation};
use crate::value::ValueId;
use crate::weight::WeightId;

/// `out` is the result of these operations for `x`: one row per token, without a state.
#[derive(Debug, Clone, PartialEq)]
pub struct Offload {
    /// The input rows.
    pub x: ValueId,
    /// Further inputs. If a device has some of the experts: the chosen experts (negative: the CPU
    /// does not compute this one) and their shares.
    pub with: Vec<ValueId>,
    /// The operations in order. Other operations read only `out`.
    pub ops: Vec<Op>,
    /// The result rows.
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
