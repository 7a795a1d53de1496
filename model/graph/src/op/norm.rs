//! Norms of groups of elements.

use super::{Op, Operation, maybe};
use crate::{Builder, Graph, ValueId, WeightId};

/// What a group is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// The root of the mean of squares (Zhang & Sennrich 2019, arXiv 1910.07467): `x /
    /// sqrt(mean(x²) + eps)`.
    Rms,
    /// The deviation, after taking the mean off (Ba et al. 2016, arXiv 1607.06450): `(x − mean) /
    /// sqrt(var + eps)`.
    Layer,
    /// The length: `x / max(sqrt(Σ x²), eps)`.
    Length,
}

/// `out = norm(x) · weight + bias`, of each run of `group` elements by itself. A weight (or bias)
/// as long as a group serves every group, one as long as the row has factors for each.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Input.
    pub x: ValueId,
    /// Which norm.
    pub kind: NormKind,
    /// Elements that are normed together.
    pub group: usize,
    /// Factors.
    pub weight: Option<WeightId>,
    /// Added.
    pub bias: Option<WeightId>,
    /// Keeps the division finite.
    pub eps: f32,
    /// As `x`.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
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

impl Builder<'_> {
    /// Appends a [`Norm`] of groups as long as its weight.
    pub fn rms_norm(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        weight: WeightId,
        eps: f32,
    ) -> ValueId {
        let group = self.graph().weight(weight).elems();
        self.norm(name, x, NormKind::Rms, group, (Some(weight), None), eps)
    }

    /// Appends a [`Norm`] with its factors and what it adds.
    pub fn norm(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        kind: NormKind,
        group: usize,
        (weight, bias): (Option<WeightId>, Option<WeightId>),
        eps: f32,
    ) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Norm(Norm { x, kind, group, weight, bias, eps, out }), out)
    }
}
