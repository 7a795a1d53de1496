//! Routing: the choice of experts.

use super::{Op, Operation, maybe};
use crate::graph::{Builder, Dtype, Graph, ValueId, WeightId};
use crate::host::Run;

/// The function on router scores before they are compared.
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
/// best experts; only experts of the best groups can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub count: usize,
    /// Number of groups that remain.
    pub used: usize,
}

/// Chooses the `top` largest gated scores (plus `bias`) in falling order; of equal scores, the
/// lower index comes first. The weights are the gated scores without the bias, divided by their sum
/// if `renormalise`, times `scale`.
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
    /// Added to the scores for the choice only.
    pub bias: Option<WeightId>,
    /// Groups of experts, chosen first.
    pub groups: Option<Groups>,
    /// A factor on the weight of each expert.
    pub factors: Option<WeightId>,
    /// Successive scores that stand for one expert, which may therefore be chosen more than once
    /// (GroveMoE, arXiv 2508.07785). Its weight is the gated score at the expert's own index, as in
    /// llama.cpp.
    pub each: usize,
    /// Indices of the chosen experts, [`Dtype::Index`], `top` wide.
    pub experts: ValueId,
    /// Their weights, `top` wide.
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

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let n = host.graph.value(self.scores).width;
        let [bias, factors] = [self.bias, self.factors].map(|w| w.map(|w| host.weights.vector(w)));
        let [experts, shares] = outs else { return };
        let (mut gated, mut choice, mut order) =
            (vec![0.0; n], vec![0.0; n], Vec::with_capacity(n));
        let rows = host.input(self.scores).chunks_exact(n);
        let results = experts.chunks_exact_mut(self.top).zip(shares.chunks_exact_mut(self.top));
        for (row, (experts, shares)) in rows.zip(results) {
            self.gate(row, &mut gated, &mut choice);
            for (i, c) in choice.iter_mut().enumerate() {
                *c += bias.map_or(0.0, |b| f64::from(b[i]));
            }
            self.leave_groups(&mut choice);
            order.clear();
            order.extend(0..n);
            // The sort is stable, so the lower index comes first among equals.
            order.sort_by(|&a: &usize, &b: &usize| choice[b].total_cmp(&choice[a]));
            order.truncate(self.top);
            order.iter_mut().for_each(|i| *i /= self.each);
            let chosen = &order;
            if self.gating == Gating::Chosen {
                let largest =
                    f64::from(chosen.iter().map(|&i| row[i]).fold(f32::NEG_INFINITY, f32::max));
                let all: f64 = chosen.iter().map(|&i| (f64::from(row[i]) - largest).exp()).sum();
                chosen.iter().for_each(|&i| gated[i] = (f64::from(row[i]) - largest).exp() / all);
            }
            let all: f64 =
                if self.renormalise { chosen.iter().map(|&i| gated[i]).sum() } else { 1.0 };
            for (slot, &i) in chosen.iter().enumerate() {
                experts[slot] = i as f32; // exact: there are fewer than 2^24 experts
                let factor = factors.map_or(1.0, |f| f[i]);
                shares[slot] = (gated[i] / all) as f32 * self.scale * factor;
            }
        }
    }
}

impl Route {
    /// Computes the gated score (for the weight) and the criterion of the choice for each expert.
    fn gate(&self, row: &[f32], gated: &mut [f64], choice: &mut [f64]) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e = |s: f32| f64::from(s - largest).exp();
        let sigmoid = |s: f32| 1.0 / (1.0 + (-f64::from(s)).exp());
        let all: f64 = row.iter().map(|&s| e(s)).sum();
        for ((&s, gated), choice) in row.iter().zip(gated).zip(choice) {
            (*gated, *choice) = match self.gating {
                // The choice uses the score itself: scores that underflow in the softmax keep their
                // order.
                Gating::Softmax if self.bias.is_none() && self.groups.is_none() => {
                    (e(s) / all, f64::from(s))
                }
                Gating::Softmax => (e(s) / all, e(s) / all),
                Gating::Sigmoid => (sigmoid(s), sigmoid(s)),
                Gating::Chosen => (f64::from(s), f64::from(s)),
            };
        }
    }

    /// Excludes the experts of groups that do not remain.
    fn leave_groups(&self, choice: &mut [f64]) {
        let Some(groups) = self.groups else { return };
        let each = choice.len() / groups.count;
        let worth = |group: &[f64]| {
            let mut best = [f64::NEG_INFINITY; 2];
            for &c in group {
                if c > best[0] {
                    best = [c, best[0]];
                } else if c > best[1] {
                    best[1] = c;
                }
            }
            best[0] + if each > 1 { best[1] } else { 0.0 }
        };
        let worths: Vec<f64> = choice.chunks_exact(each).map(worth).collect();
        let mut order: Vec<usize> = (0..groups.count).collect();
        order.sort_by(|&a, &b| worths[b].total_cmp(&worths[a]));
        for &group in &order[groups.used..] {
            choice[group * each..][..each].fill(f64::NEG_INFINITY);
        }
    }
}

impl Builder<'_> {
    /// Appends a [`Route`] whose values are `name.experts` and `name.shares`: softmax over all,
    /// without bias, groups and factors, one score per expert. `with` may change that.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn route(gating: Gating, groups: Option<Groups>) -> Route {
        let (experts, shares) = (ValueId(1), ValueId(2));
        let (renormalise, scale, bias, factors, each) = (false, 1.0, None, None, 1);
        Route {
            scores: ValueId(0),
            top: 2,
            gating,
            renormalise,
            scale,
            bias,
            groups,
            factors,
            each,
            experts,
            shares,
        }
    }

    #[test]
    fn a_group_is_worth_its_two_best() {
        let mut choice = [0.9, 0.0, 0.0, 0.6, 0.5, 0.0, 0.7, 0.1, 0.1];
        route(Gating::Sigmoid, Some(Groups { count: 3, used: 1 })).leave_groups(&mut choice);
        assert_eq!(choice.iter().filter(|c| c.is_finite()).count(), 3);
        assert_eq!(choice[3], 0.6, "0.6 + 0.5 beats 0.9 + 0 and 0.7 + 0.1");
    }

    #[test]
    fn gates_are_what_they_say() {
        let (row, mut gated, mut choice) = ([0.0f32, 1.0, -2.0], [0.0; 3], [0.0; 3]);
        route(Gating::Softmax, None).gate(&row, &mut gated, &mut choice);
        assert!((gated.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        route(Gating::Sigmoid, None).gate(&row, &mut gated, &mut choice);
        assert!((gated[1] - 0.731_058_578_630_004_9).abs() < 1e-12 && gated == choice);
    }
}
