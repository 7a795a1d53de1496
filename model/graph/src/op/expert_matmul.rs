//! Products with the matrices of chosen experts.

use super::operation::{Lookup, Operation, maybe};
use crate::value::ValueId;
use crate::weight::WeightId;

/// `out[slot] = weight[experts[slot]] · x[slot] + bias[experts[slot]]`. If `x` has one slot, it is
/// used for all slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertMatMul {
    /// Input: one slot, or one per chosen expert.
    pub x: ValueId,
    /// The chosen experts.
    pub experts: ValueId,
    /// One matrix per expert.
    pub weight: WeightId,
    /// Bias that is added, one row per expert.
    pub bias: Option<WeightId>,
    /// The result, one slot per chosen expert.
    pub out: ValueId,
}

impl Operation for ExpertMatMul {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x, self.experts]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        vec![self.weight]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.bias.into_iter().collect()
    }

    fn bytes(&self, graph: &dyn Lookup) -> u64 {
        let w = graph.weight(self.weight);
        (w.bytes() / w.experts.max(1) * graph.value(self.experts).width) as u64
    }

    fn name(&self) -> &'static str {
        "expert_matmul"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        let mut args = vec![v(self.x), v(self.experts), graph.weight(self.weight).name.clone()];
        args.extend(maybe("bias", graph, self.bias));
        args
    }
}
