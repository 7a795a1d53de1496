//! Chooses the experts of each token and their shares.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::{Gating, Groups, Route};

impl Compute for Route {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let n = host.graph.value(self.scores).width;
        let [bias, factors] = [self.bias, self.factors].map(|w| w.map(|w| host.weights.vector(w)));
        let [experts, shares] = outs else { return };
        let (mut gated, mut choice, mut order) =
            (vec![0.0; n], vec![0.0; n], Vec::with_capacity(n));
        let rows = host.input(self.scores).chunks_exact(n);
        let results = experts.chunks_exact_mut(self.top).zip(shares.chunks_exact_mut(self.top));
        for (row, (experts, shares)) in rows.zip(results) {
            gate(self, row, &mut gated, &mut choice);
            for (i, c) in choice.iter_mut().enumerate() {
                *c += bias.map_or(0.0, |b| f64::from(b[i]));
            }
            exclude_groups(self.groups, &mut choice);
            order.clear();
            order.extend(0..n);
            // The sort is stable, so the lower index comes first among equal scores.
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
                experts[slot] = i as f32; // This is exact: there are fewer than 2^24 experts.
                let factor = factors.map_or(1.0, |f| f[i]);
                shares[slot] = (gated[i] / all) as f32 * self.scale * factor;
            }
        }
    }
}

/// Computes for each expert its share (`gated`) and the score by which it is chosen (`choice`).
fn gate(route: &Route, row: &[f32], gated: &mut [f64], choice: &mut [f64]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let e = |s: f32| f64::from(s - largest).exp();
    let sigmoid = |s: f32| 1.0 / (1.0 + (-f64::from(s)).exp());
    let all: f64 = row.iter().map(|&s| e(s)).sum();
    for ((&s, gated), choice) in row.iter().zip(gated).zip(choice) {
        (*gated, *choice) = match route.gating {
            // With this gating, experts are chosen by the raw score: probabilities that underflow
            // to 0 would lose their order.
            Gating::Softmax if route.bias.is_none() && route.groups.is_none() => {
                (e(s) / all, f64::from(s))
            }
            Gating::Softmax => (e(s) / all, e(s) / all),
            Gating::Sigmoid => (sigmoid(s), sigmoid(s)),
            Gating::Chosen => (f64::from(s), f64::from(s)),
        };
    }
}

/// Excludes the experts of all but the best `used` groups from the choice.
fn exclude_groups(groups: Option<Groups>, choice: &mut [f64]) {
    let Some(groups) = groups else { return };
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

#[cfg(test)]
mod tests {
    use super::*;
    use kjit_graph::ValueId;

    fn route(gating: Gating) -> Route {
        let (experts, shares) = (ValueId(1), ValueId(2));
        let (renormalise, scale, bias, factors, each) = (false, 1.0, None, None, 1);
        Route {
            scores: ValueId(0),
            top: 2,
            gating,
            renormalise,
            scale,
            bias,
            groups: None,
            factors,
            each,
            experts,
            shares,
        }
    }

    #[test]
    fn expert_group_score_is_sum_of_best_two() {
        let mut choice = [0.9, 0.0, 0.0, 0.6, 0.5, 0.0, 0.7, 0.1, 0.1];
        exclude_groups(Some(Groups { count: 3, used: 1 }), &mut choice);
        assert_eq!(choice.iter().filter(|c| c.is_finite()).count(), 3);
        assert_eq!(choice[3], 0.6, "0.6 + 0.5 beats 0.9 + 0 and 0.7 + 0.1");
    }

    #[test]
    fn gating_functions_match_their_formulas() {
        let (row, mut gated, mut choice) = ([0.0f32, 1.0, -2.0], [0.0; 3], [0.0; 3]);
        gate(&route(Gating::Softmax), &row, &mut gated, &mut choice);
        assert!((gated.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        gate(&route(Gating::Sigmoid), &row, &mut gated, &mut choice);
        assert!((gated[1] - 0.731_058_578_630_004_9).abs() < 1e-12 && gated == choice);
    }
}
