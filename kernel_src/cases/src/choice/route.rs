//! Cases and samples of `route`.

use crate::case::{Case, CaseArg, floats, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::route::{Gating, RouteArgs, RouteSpec};
use kjit_kernels::spec::Spec;
use kjit_kernels::variant::Wave;
use kjit_kernels::{Family, Size, SpecError};

impl Cases for RouteSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (n, scale) = (self.experts, 1.5f32);
        let mut scores = random.normals(size.tokens * n, 2.0);
        // Equal scores, also in different lanes: the lower index must be first.
        let most = scores[..n].iter().fold(f32::MIN, |a, &b| a.max(b)) + 1.0;
        scores[n - 1] = most;
        scores[n / 2] = most;
        if size.tokens > 1 {
            scores[n..2 * n].fill(0.25);
        }
        let bias = if self.bias { random.normals(n, 0.3) } else { vec![] };
        let factors = if self.factors { random.normals(n, 1.0) } else { vec![] };
        let (mut experts, mut shares) = (vec![], vec![]);
        for row in scores.chunks(n) {
            let (gated, choice) = gate(self, row, &bias);
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| choice[b].total_cmp(&choice[a]).then(a.cmp(&b)));
            let chosen: Vec<usize> = order[..self.top].iter().map(|i| i / self.alike).collect();
            let most = chosen.iter().map(|&i| f64::from(row[i])).fold(f64::MIN, f64::max);
            let mut parts: Vec<f64> = match self.gating {
                Gating::Chosen => {
                    chosen.iter().map(|&i| (f64::from(row[i]) - most).exp()).collect()
                }
                _ => chosen.iter().map(|&i| gated[i]).collect(),
            };
            let all: f64 = parts.iter().sum();
            if self.renormalise || self.gating == Gating::Chosen {
                parts.iter_mut().for_each(|p| *p /= all);
            }
            for (&i, part) in chosen.iter().zip(parts) {
                experts.extend((i as u32).to_le_bytes());
                shares
                    .push(part * f64::from(scale) * factors.get(i).map_or(1.0, |&f| f64::from(f)));
            }
        }
        let name = format!("{}, wave {}", Spec::from(self.clone()), self.tuning(target)?.wave);
        let args = RouteArgs {
            scores: floats("scores", &scores),
            bias: optional("bias", &bias),
            factors: optional("factors", &factors),
            experts: CaseArg::Buffer {
                name: "experts",
                before: vec![0xff; experts.len()].into(),
                expect: Expect::Bytes(experts),
            },
            shares: output("shares", Storage::F32, shares, SINGLE),
            scale: CaseArg::F32(scale),
        };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use Gating::*;
        for (experts, top, renormalise, gating, bias, factors, groups, alike) in [
            (128, 8, true, Softmax, false, false, None, 1),
            (7, 2, false, Softmax, false, false, None, 1),
            (65, 32, true, Softmax, false, false, None, 1),
            (66, 6, false, Softmax, true, false, None, 1),
            (32, 4, false, Chosen, false, false, None, 1),
            (67, 8, true, Sigmoid, true, false, None, 1),
            (5, 5, false, Sigmoid, false, true, None, 1),
            (160, 6, false, Softmax, false, false, Some((8, 3)), 1),
            (96, 8, true, Sigmoid, true, false, Some((8, 4)), 1),
            (6, 3, true, Sigmoid, true, true, Some((6, 4)), 1),
            // Scores in the registers of several lanes; an expert chosen by each of its scores.
            (128, 8, true, Softmax, false, false, None, 2),
            (9, 6, true, Sigmoid, true, true, None, 3),
            (64, 32, false, Chosen, false, false, None, 4),
        ] {
            let tuning = Some(Wave { wave });
            let spec = RouteSpec {
                experts,
                top,
                renormalise,
                gating,
                bias,
                factors,
                groups,
                alike,
                tuning,
            };
            into.push(spec.case(target, 2, Size { tokens: 3, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let plain = RouteSpec {
            experts: 128,
            top: 8,
            renormalise: true,
            gating: Gating::Softmax,
            bias: false,
            factors: false,
            groups: None,
            alike: 1,
            tuning: None,
        };
        list.add("route 8 of 128".to_owned(), plain.clone(), Size::ONE)?;
        let grouped = RouteSpec {
            experts: 256,
            gating: Gating::Sigmoid,
            bias: true,
            groups: Some((8, 4)),
            ..plain.clone()
        };
        list.add("route 8 of 256 in groups".to_owned(), grouped, Size::ONE)?;
        list.add("route 8 of 128 two alike".to_owned(), RouteSpec { alike: 2, ..plain }, Size::ONE)
    }
}

/// The basis of each expert's share and of the choice, in f64.
fn gate(spec: &RouteSpec, row: &[f32], bias: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let raw: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
    let most = raw.iter().copied().fold(f64::MIN, f64::max);
    let all: f64 = raw.iter().map(|v| (v - most).exp()).sum();
    let gated: Vec<f64> = match spec.gating {
        Gating::Softmax => raw.iter().map(|v| (v - most).exp() / all).collect(),
        Gating::Sigmoid => raw.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect(),
        Gating::Chosen => raw.clone(),
    };
    let plain = spec.gating == Gating::Softmax && !spec.bias && spec.groups.is_none();
    let mut choice = if plain { raw } else { gated.clone() };
    choice.iter_mut().zip(bias).for_each(|(c, &b)| *c += f64::from(b));
    if let Some((count, used)) = spec.groups {
        let size = choice.len() / count;
        let worth = |group: &[f64]| {
            let mut best = group.to_vec();
            best.sort_by(|a, b| b.total_cmp(a));
            best.iter().take(2).sum::<f64>()
        };
        let worths: Vec<f64> = choice.chunks(size).map(worth).collect();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| worths[b].total_cmp(&worths[a]));
        for &group in &order[used..] {
            choice[group * size..][..size].fill(f64::NEG_INFINITY);
        }
    }
    (gated, choice)
}
