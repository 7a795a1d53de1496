//! Products with a matrix. They take most of the time of a step.

use super::operation::{Lookup, Operation, maybe};
use crate::value::ValueId;
use crate::weight::WeightId;

/// `out = weight · x + bias`. The weight has one row per output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatMul {
    /// Input, as wide as a row of the weight.
    pub x: ValueId,
    /// The matrix.
    pub weight: WeightId,
    /// Bias that is added to the result.
    pub bias: Option<WeightId>,
    /// The result, one element per row of the weight.
    pub out: ValueId,
}

impl Operation for MatMul {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
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

    fn name(&self) -> &'static str {
        "matmul"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args =
            vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()];
        args.extend(maybe("bias", graph, self.bias));
        args
    }
}
