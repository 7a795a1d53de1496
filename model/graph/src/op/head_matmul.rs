//! Products with one matrix per head.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;
use crate::weight::WeightId;

/// `out[h] = weight[h] · x[h]`, for each head. If `x` has the width of one head, it is used for all
/// heads.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadMatMul {
    /// Input: the rows of all heads, or one row that is used for all.
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

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()]
    }
}
