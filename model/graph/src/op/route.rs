//! Routing: the choice of experts.

use super::operation::{Lookup, Operation, maybe};
use crate::value::ValueId;
use crate::weight::WeightId;

/// The function that is applied to router scores before they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// `e^s / Σ e^s` over all experts.
    Softmax,
    /// `1 / (1 + e^−s)`.
    Sigmoid,
    /// The choice is by raw scores; the weights are the softmax of the chosen scores.
    Chosen,
}

/// Groups of experts (DeepSeek-V3, arXiv 2412.19437). The value of a group is the sum of its two
/// best scores. Only experts of the best groups can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that remain.
    pub used: usize,
}

/// Chooses the `top` largest gated scores (plus `bias`) in descending order; among equal scores,
/// the lower index comes first. The weights are the gated scores without the bias, divided by their
/// sum if `renormalise`, times `scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// One score per expert.
    pub scores: ValueId,
    /// Number of chosen experts.
    pub top: usize,
    /// The function on scores.
    pub gating: Gating,
    /// Whether the chosen weights sum to one.
    pub renormalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Bias that is added to the scores for the choice only.
    pub bias: Option<WeightId>,
    /// Groups of experts. They are chosen before the experts.
    pub groups: Option<Groups>,
    /// A factor on the weight of each expert.
    pub factors: Option<WeightId>,
    /// Number of adjacent scores of one expert, which may therefore be chosen more than once
    /// (GroveMoE, arXiv 2508.07785). Its weight is the gated score at the expert's index, as in
    /// llama.cpp.
    pub each: usize,
    /// Indices of the chosen experts, [`Dtype::Index`](crate::Dtype::Index), `top` wide.
    pub experts: ValueId,
    /// Weights of the chosen experts, `top` wide.
    pub shares: ValueId,
}

impl Operation for Route {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.scores]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.experts, self.shares]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.bias.into_iter().chain(self.factors).collect()
    }

    fn name(&self) -> &'static str {
        "route"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args = vec![
            graph.value(self.scores).name.clone(),
            format!("top {}", self.top),
            format!("renormalise {}", self.renormalise),
            format!("scale {}", self.scale),
        ];
        args.extend((self.gating != Gating::Softmax).then(|| format!("{:?}", self.gating)));
        args.extend(maybe("bias", graph, self.bias));
        args.extend(self.groups.map(|g| format!("{} of {} groups", g.used, g.count)));
        args.extend(maybe("factors", graph, self.factors));
        args.extend((self.each > 1).then(|| format!("{} scores an expert", self.each)));
        args
    }
}
