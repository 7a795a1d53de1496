//! Factors and biases for each element.

use super::{Op, Operation, maybe};
use crate::{Builder, Graph, ValueId, WeightId};

/// `out = scale · weight · x + bias`, element by element. A weight or bias shorter than the row
/// repeats. With `each` > 1, one weight element serves `each` neighbouring elements, for example a
/// head.
#[derive(Debug, Clone, PartialEq)]
pub struct Affine {
    /// Input.
    pub x: ValueId,
    /// One factor for all elements.
    pub scale: f32,
    /// Factor of each element.
    pub weight: Option<WeightId>,
    /// Added to each element.
    pub bias: Option<WeightId>,
    /// Neighbouring elements with the same factor and bias.
    pub each: usize,
    /// The result, of the shape of `x`.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
        let mut args = vec![graph.value(self.x).name.clone()];
        args.extend((self.scale != 1.0).then(|| format!("scale {}", self.scale)));
        args.extend(maybe("weight", graph, self.weight));
        args.extend(maybe("bias", graph, self.bias));
        args.extend((self.each != 1).then(|| format!("for {} each", self.each)));
        args
    }
}

impl Builder<'_> {
    /// Appends an [`Affine`], unless it would change nothing.
    pub fn affine(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        scale: f32,
        (weight, bias): (Option<WeightId>, Option<WeightId>),
    ) -> ValueId {
        if scale == 1.0 && weight.is_none() && bias.is_none() {
            return x;
        }
        let out = self.like(name.into(), x);
        self.push(Op::Affine(Affine { x, scale, weight, bias, each: 1, out }), out)
    }

    /// Appends an [`Affine`] with one factor per head.
    pub fn head_factors(&mut self, name: String, x: ValueId, factors: WeightId) -> ValueId {
        let each = self.graph().value(x).width / self.graph().weight(factors).elems();
        let out = self.like(name, x);
        self.push(
            Op::Affine(Affine { x, scale: 1.0, weight: Some(factors), bias: None, each, out }),
            out,
        )
    }
}
