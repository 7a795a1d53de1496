//! Products with one matrix per head.

use super::{Op, Operation};
use crate::{Builder, Dtype, Graph, ValueId, WeightId};

/// `out[h] = weight[h] · x[h]`, for each head. If `x` has the width of one head, it serves all
/// heads.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadMatMul {
    /// Input: the rows of all heads, or one row that serves all.
    pub x: ValueId,
    /// One matrix per head.
    pub weight: WeightId,
    /// The results of all heads.
    pub out: ValueId,
}

impl Operation for HeadMatMul {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        vec![self.weight]
    }

    fn name(&self) -> &'static str {
        "head_matmul"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()]
    }
}

impl Builder<'_> {
    /// Appends a [`HeadMatMul`].
    pub fn head_matmul(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        weight: WeightId,
    ) -> ValueId {
        let w = self.graph().weight(weight);
        let width = w.experts * w.rows;
        let out = self.value(name.into(), 1, width, Dtype::Real);
        self.push(Op::HeadMatMul(HeadMatMul { x, weight, out }), out)
    }
}
