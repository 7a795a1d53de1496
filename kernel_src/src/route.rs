//! The choice of experts: `gpu/route.h`.

use crate::arguments;
use crate::cases::{Case, CaseArg, Expect, Random, SINGLE, Storage, floats, output};
use crate::family::{Block, Family, Grid, Size, Wave, Work, choice_of_wave};
use crate::kernel::{Kernel, SpecError, of_shape, require};
use crate::matrix::{ONE, Samples};
use crate::render::Shape;
use kjit_engine::{Constants, Target};
use std::fmt;

/// Chooses experts for each token, by the softmax of their scores.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteSpec {
    /// Experts there are, up to 1024.
    pub experts: usize,
    /// Experts chosen, up to 32.
    pub top: usize,
    /// Shares of the chosen sum to one before `scale`.
    pub renormalise: bool,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments.
    RouteArgs {
        /// `tokens × experts` f32.
        scores: Pointer,
        /// Out: `tokens × top` u32, in falling order of score, the lower index first among equals.
        experts: Pointer,
        /// Out: their shares, f32, times `scale`.
        shares: Pointer,
        /// Factor on shares.
        scale: F32,
    }
}

const NAME: &str = "route";

impl Family for RouteSpec {
    const NAME: &'static str = NAME;
    type Args<A> = RouteArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}{}", self.top, self.experts, if self.renormalise { ", to one" } else { "" })
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        let fine = (1..=1024).contains(&self.experts) && (1..=self.experts.min(32)).contains(&self.top);
        require(fine, NAME, || format!("{} of {} experts: up to 32 of 1024 are covered", self.top, self.experts))?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, wave))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new().number("EXPERTS", self.experts).number("TOP", self.top);
        let shape = shape.flag("RENORMALISE", self.renormalise);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (4 * self.experts + 8 * self.top))
    }

    fn case(&self, target: &Target, units: u32, size: Size, random: &mut Random) -> Result<Case, SpecError> {
        let (n, scale) = (self.experts, 1.5f32);
        let mut scores = random.normals(size.tokens * n, 2.0);
        // Ties, also across lanes: the lower index must come first.
        let most = scores[..n].iter().fold(f32::MIN, |a, &b| a.max(b)) + 1.0;
        scores[n - 1] = most;
        scores[n / 2] = most;
        if size.tokens > 1 {
            scores[n..2 * n].fill(0.25);
        }
        let (mut experts, mut shares) = (vec![], vec![]);
        for row in scores.chunks(n) {
            let most = row.iter().fold(f32::MIN, |a, &b| a.max(b));
            let e: Vec<f64> = row.iter().map(|&v| (f64::from(v) - f64::from(most)).exp()).collect();
            let all: f64 = e.iter().sum();
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let chosen: f64 = order[..self.top].iter().map(|&i| e[i] / all).sum();
            for &i in &order[..self.top] {
                experts.extend((i as u32).to_le_bytes());
                shares.push(e[i] / all / if self.renormalise { chosen } else { 1.0 } * f64::from(scale));
            }
        }
        let name =
            format!("route {} of {n}, renormalise {}, wave {}", self.top, self.renormalise, self.tuning(target)?.wave);
        let args = RouteArgs {
            scores: floats("scores", &scores),
            experts: CaseArg::Buffer {
                name: "experts",
                before: vec![0xff; experts.len()],
                expect: Expect::Bytes(experts),
            },
            shares: output("shares", Storage::F32, shares, SINGLE),
            scale: CaseArg::F32(scale),
        };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
        for (experts, top, renormalise) in [(128, 8, true), (7, 2, false), (65, 32, true)] {
            let spec = RouteSpec { experts, top, renormalise, tuning: Some(Wave { wave }) };
            into.push(spec.case(target, 2, Size { tokens: 3, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec = RouteSpec { experts: 128, top: 8, renormalise: true, tuning: None };
        list.add("route 8 of 128".to_owned(), spec, ONE)
    }
}
