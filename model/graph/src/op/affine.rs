//! Factors and biases for each element.

use super::operation::{Lookup, Operation, maybe};
use crate::value::ValueId;
use crate::weight::WeightId;

/// `out = scale · weight · x + bias`, element by element. A weight or bias that is shorter than the
/// row is repeated. With `each` > 1, one weight element applies to `each` adjacent elements, for
/// example a head.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Input.
    pub x: ValueId,
    /// One factor for all elements.
    pub scale: f32,
    /// Factor of each element.
    pub weight: Option<WeightId>,
    /// Bias that is added to each element.
    pub bias: Option<WeightId>,
    /// Number of adjacent elements with the same factor and bias.
    pub each: usize,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Affine {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.weight.into_iter().chain(self.bias).collect()
    }

    fn name(&self) -> &'static str {
        "affine"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args = vec![graph.value(self.x).name.clone()];
        args.extend((self.scale != 1.0).then(|| format!("scale {}", self.scale)));
        args.extend(maybe("weight", graph, self.weight));
        args.extend(maybe("bias", graph, self.bias));
        args.extend((self.each != 1).then(|| format!("for {} each", self.each)));
        args
    }
}
