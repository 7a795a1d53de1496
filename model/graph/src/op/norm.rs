//! Normalisation of groups of elements.

use super::operation::{Lookup, Operation, maybe};
use crate::value::ValueId;
use crate::weight::WeightId;

/// The divisor of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// The root of the mean square (Zhang & Sennrich 2019, arXiv 1910.07467): `x / sqrt(mean(x²) +
    /// eps)`.
    Rms,
    /// The standard deviation, after subtracting the mean (Ba et al. 2016, arXiv 1607.06450): `(x −
    /// mean) / sqrt(var + eps)`.
    Layer,
    /// The length: `x / max(sqrt(Σ x²), eps)`.
    Length,
}

/// `out = norm(x) · weight + bias` for each group of `group` elements. If the weight or bias has
/// the length of a group, it is used for all groups. If it has the length of the row, it has
/// factors for each group.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Input.
    pub x: ValueId,
    /// The kind of norm.
    pub kind: NormKind,
    /// Number of elements of a group.
    pub group: usize,
    /// Factors.
    pub weight: Option<WeightId>,
    /// Bias that is added.
    pub bias: Option<WeightId>,
    /// Epsilon. It keeps the division finite.
    pub eps: f32,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Norm {
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
        match self.kind {
            NormKind::Rms => "rms_norm",
            NormKind::Layer => "layer_norm",
            NormKind::Length => "length_norm",
        }
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args = vec![graph.value(self.x).name.clone()];
        match self.weight {
            Some(w) => args.push(graph.weight(w).name.clone()),
            None => args.push(format!("groups of {}", self.group)),
        }
        if let Some(w) = self.weight
            && graph.weight(w).elems() != self.group
        {
            args.push(format!("groups of {}", self.group));
        }
        args.extend(maybe("bias", graph, self.bias));
        args.push(format!("eps {}", self.eps));
        args
    }
}
