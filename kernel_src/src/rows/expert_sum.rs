//! Weighted sums of experts' results: `gpu/expert_sum.h`.

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
    /// Number of slots.
    pub top: usize,
    /// Whether a residual is added.
    pub residual: bool,
}

arguments! {
    /// The arguments of the sum.
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
    /// Number of blocks for a token.
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
}
