//! The choice of experts: `gpu/route.h`.

use crate::cases::{Case, CaseArg, Expect, Random, SINGLE, Storage, floats, optional, output};
use crate::matrix::{ONE, Samples};
use crate::spec::Spec;
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// What scores become before they are compared and shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gating {
    /// The softmax over all.
    Softmax,
    /// Each one's own sigmoid.
    Sigmoid,
    /// Scores as they are choose; the softmax of the chosen shares out.
    Chosen,
}

gpu_enum!(ROW_ENUMS: Gating { Softmax, Sigmoid, Chosen });

/// Chooses experts for each token by their scores.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteSpec {
    /// Scores of a token, up to 1024: one for each expert, or [`RouteSpec::alike`].
    pub experts: usize,
    /// Experts chosen, up to 32.
    pub top: usize,
    /// Shares of the chosen sum to one before `scale`.
    pub renormalise: bool,
    /// What scores become.
    pub gating: Gating,
    /// An offset for each expert's choice.
    pub bias: bool,
    /// A factor on each expert's share.
    pub factors: bool,
    /// So many runs of experts, of which so many stay in the choice: those whose two best are worth
    /// most.
    pub groups: Option<(usize, usize)>,
    /// So many successive scores stand for one expert, whose share is that of the score of its own
    /// number.
    pub alike: usize,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments.
    RouteArgs {
        /// `tokens × experts` f32.
        scores: Pointer,
        /// `experts` f32, or null.
        bias: Pointer,
        /// `experts` f32, or null.
        factors: Pointer,
        /// Out: `tokens × top` u32, in falling order of score, the lower index first among equals.
        experts: Pointer,
        /// Out: their shares, f32, times `scale`.
        shares: Pointer,
        /// Factor on shares.
        scale: F32,
    }
}

const NAME: &str = "route";

impl RouteSpec {
    /// The constants.
    fn shape(&self) -> Shape {
        let shape = Shape::new().number("EXPERTS", self.experts).number("TOP", self.top);
        let (count, used) = self.groups.unwrap_or((0, 0));
        let shape = shape
            .choice("GATING", &self.gating)
            .flag("BIAS", self.bias)
            .flag("FACTORS", self.factors);
        let shape = shape.number("GROUPS", count).number("GROUPS_USED", used);
        shape.number("ALIKE", self.alike).flag("RENORMALISE", self.renormalise)
    }
}

impl Family for RouteSpec {
    const NAME: &'static str = NAME;
    type Args<A> = RouteArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {}{}",
            self.top,
            self.experts,
            if self.renormalise { ", to one" } else { "" }
        )?;
        if self.gating != Gating::Softmax {
            write!(f, ", {:?}", self.gating)?;
        }
        if let Some((count, used)) = self.groups {
            write!(f, ", {used} of {count} groups")?;
        }
        if self.alike > 1 {
            write!(f, ", {} alike", self.alike)?;
        }
        write!(
            f,
            "{}{}",
            if self.bias { ", bias" } else { "" },
            if self.factors { ", factors" } else { "" }
        )
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        let fine =
            (1..=1024).contains(&self.experts) && (1..=self.experts.min(32)).contains(&self.top);
        require(fine, NAME, || {
            format!("{} of {} experts: up to 32 of 1024 are covered", self.top, self.experts)
        })?;
        let fits = |(count, used): (usize, usize)| {
            (1..=32).contains(&count)
                && used <= count
                && self.experts.is_multiple_of(count)
                && used * (self.experts / count) >= self.top
        };
        require(self.groups.is_none_or(fits), NAME, || {
            format!("{:?} groups of {}", self.groups, self.experts)
        })?;
        let divides = self.alike > 0 && self.experts.is_multiple_of(self.alike);
        require(divides, NAME, || format!("{} of {} scores alike", self.alike, self.experts))?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, wave))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, inside: Inside) -> Result<Step, SpecError> {
        if inside.routed {
            let call = "StreamRoute<S>::step(a, links, lds);";
            let step = Step::of("stream_experts.h", "RouteArgs", call, self.shape());
            let lds = Some("StreamRoute<S>::Shared");
            return Ok(Step { lds, of_all_blocks: true, takes_values: Some(self.experts), ..step });
        }
        // A wave of the block chooses.
        let call = "Meeting::wait(); if (wave_id() == 0) Route<S>::step(a, share);";
        Ok(Step::of("route.h", "RouteArgs", call, self.shape()))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (4 * self.experts + 8 * self.top))
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (n, scale) = (self.experts, 1.5f32);
        let mut scores = random.normals(size.tokens * n, 2.0);
        // Ties, also across lanes: the lower index must come first.
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
            let (gated, choice) = self.gate(row, &bias);
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
            // Scores in several lanes' registers, an expert chosen by each of its scores.
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
        list.add("route 8 of 128".to_owned(), plain.clone(), ONE)?;
        let grouped = RouteSpec {
            experts: 256,
            gating: Gating::Sigmoid,
            bias: true,
            groups: Some((8, 4)),
            ..plain.clone()
        };
        list.add("route 8 of 256 in groups".to_owned(), grouped, ONE)?;
        list.add("route 8 of 128 two alike".to_owned(), RouteSpec { alike: 2, ..plain }, ONE)
    }
}

impl RouteSpec {
    /// What each expert's share and what its choice goes by, in f64.
    fn gate(&self, row: &[f32], bias: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let raw: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
        let most = raw.iter().copied().fold(f64::MIN, f64::max);
        let all: f64 = raw.iter().map(|v| (v - most).exp()).sum();
        let gated: Vec<f64> = match self.gating {
            Gating::Softmax => raw.iter().map(|v| (v - most).exp() / all).collect(),
            Gating::Sigmoid => raw.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect(),
            Gating::Chosen => raw.clone(),
        };
        let plain = self.gating == Gating::Softmax && !self.bias && self.groups.is_none();
        let mut choice = if plain { raw } else { gated.clone() };
        choice.iter_mut().zip(bias).for_each(|(c, &b)| *c += f64::from(b));
        if let Some((count, used)) = self.groups {
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
}
