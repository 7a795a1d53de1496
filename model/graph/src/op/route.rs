//! The choice of experts.

use super::{Op, Operation, maybe};
use crate::{Builder, Dtype, Graph, ValueId, WeightId};

/// What scores become before they are compared and shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gating {
    /// `e^s / Σ e^s` over all experts.
    Softmax,
    /// `1 / (1 + e^−s)`.
    Sigmoid,
    /// Scores as they are choose; the chosen ones' softmax shares out.
    Chosen,
}

/// Experts in groups (DeepSeek-V3, arXiv 2412.19437): a group is worth the sum of its two best
/// experts, the best groups stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Groups.
    pub count: usize,
    /// How many stay.
    pub used: usize,
}

/// Chooses experts: the `top` largest of the gated scores (plus `bias`) in falling order, the lower
/// index first among equals. Their shares are the gated scores without the bias, divided by their
/// sum if `renormalise`, times `scale`.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// A score per expert.
    pub scores: ValueId,
    /// How many are chosen.
    pub top: usize,
    /// What scores become.
    pub gating: Gating,
    /// Chosen shares sum to one.
    pub renormalise: bool,
    /// Factor on the shares.
    pub scale: f32,
    /// Added for the choice alone.
    pub bias: Option<WeightId>,
    /// Groups that are chosen first.
    pub groups: Option<Groups>,
    /// A factor on the share of each expert.
    pub factors: Option<WeightId>,
    /// So many successive scores stand for one expert, whom each of them may choose, again and
    /// again (GroveMoE, arXiv 2508.07785). Its share is the gated score of its own number, as
    /// llama.cpp has it.
    pub each: usize,
    /// Indices of the chosen, [`Dtype::Index`], `top` wide.
    pub experts: ValueId,
    /// Their shares, `top` wide.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
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

impl Builder<'_> {
    /// Appends a [`Route`]; the values are `name.experts` and `name.shares`. Softmax over all
    /// without bias, groups and factors, a score an expert, which `with` may change.
    pub fn route(
        &mut self,
        name: &str,
        scores: ValueId,
        top: usize,
        (renormalise, scale): (bool, f32),
        with: impl FnOnce(&mut Route),
    ) -> (ValueId, ValueId) {
        let experts = self.value(format!("{name}.experts"), 1, top, Dtype::Index);
        let shares = self.value(format!("{name}.shares"), 1, top, Dtype::Real);
        let (gating, bias, groups, factors, each) = (Gating::Softmax, None, None, None, 1);
        let mut op = Route {
            scores,
            top,
            gating,
            renormalise,
            scale,
            bias,
            groups,
            factors,
            each,
            experts,
            shares,
        };
        with(&mut op);
        self.push_op(Op::Route(op));
        (experts, shares)
    }
}
