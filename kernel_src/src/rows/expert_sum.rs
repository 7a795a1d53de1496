//! Weighted sums of experts' results: `gpu/expert_sum.h`.

use crate::cases::{Case, Random, SINGLE, Storage, floats, optional, output};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// `out = residual + Σ shares · x` over slots.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExpertSumSpec {
    /// Width of a row.
    pub cols: usize,
    /// Slots.
    pub top: usize,
    /// A residual is added.
    pub residual: bool,
}

arguments! {
    /// The arguments.
    ExpertSumArgs {
        /// `tokens × top × cols` f32.
        x: Pointer,
        /// `tokens × top` f32.
        shares: Pointer,
        /// `tokens × cols` f32, or null.
        residual: Pointer,
        /// `tokens × cols` f32; may be `residual`.
        out: Pointer,
    }
}

const NAME: &str = "expert_sum";
const BLOCK: u32 = 128;

impl ExpertSumSpec {
    /// Blocks for a token.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.cols as u32).div_ceil(BLOCK)
    }
}

impl Family for ExpertSumSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ExpertSumArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}{}", self.top, self.cols, if self.residual { ", residual" } else { "" })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("COLS", self.cols)
            .number("TOP", self.top)
            .flag("RESIDUAL", self.residual);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let rows = self.top + if self.residual { 2 } else { 1 };
        Work::moves(size.tokens * 4 * (rows * self.cols + self.top))
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let tokens = size.tokens;
        let x = random.normals(tokens * self.top * self.cols, 1.0);
        let shares = random.normals(tokens * self.top, 1.0);
        let residual = if self.residual { random.normals(tokens * self.cols, 1.0) } else { vec![] };
        let mut want = vec![];
        for t in 0..tokens {
            for c in 0..self.cols {
                let slot = |s: usize| {
                    f64::from(shares[t * self.top + s])
                        * f64::from(x[(t * self.top + s) * self.cols + c])
                };
                let sum: f64 = (0..self.top).map(slot).sum();
                want.push(sum + residual.get(t * self.cols + c).map_or(0.0, |&v| f64::from(v)));
            }
        }
        let name = format!("expert_sum {} × {}, residual {}", self.top, self.cols, self.residual);
        let args = ExpertSumArgs {
            x: floats("x", &x),
            shares: floats("shares", &shares),
            residual: optional("residual", &residual),
            out: output("out", Storage::F32, want, SINGLE),
        };
        Case::of(name, self, target, self.launch(target, units, size)?, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (cols, top, residual) in [(131, 8, true), (64, 1, false)] {
            let spec = ExpertSumSpec { cols, top, residual };
            into.push(spec.case(target, 2, Size { tokens: 2, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("expert_sum".to_owned(), ExpertSumSpec { cols: 2048, top: 8, residual: true }, ONE)
    }
}
