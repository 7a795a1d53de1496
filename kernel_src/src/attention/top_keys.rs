//! Selects the positions of the best scores, as a list: `gpu/top_keys.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// The positions with the best scores that each token sees, in ascending order. Among equal scores
/// the earlier positions are chosen. If a token sees fewer, all are chosen. −0 equals 0, NaN is the
/// lowest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopKeysSpec {
    /// Number of chosen positions.
    pub top: usize,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
}

arguments! {
    /// The arguments of the selection.
    TopKeysArgs {
        /// One row of `capacity` f32 for each row of the grid; row 0 is for token `first`.
        scores: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// Output: `tokens × top` u32; [`TopKeysSpec::NONE`] after the last.
        chosen: Pointer,
        /// The token of the first row.
        first: U32,
        /// Number of new tokens.
        tokens: U32,
        /// Number of positions of a row.
        capacity: U32,
    }
}

const NAME: &str = "top_keys";
const BLOCK: u32 = 512;

impl TopKeysSpec {
    /// Entry without a position.
    pub const NONE: u32 = u32::MAX;
}

impl Family for TopKeysSpec {
    const NAME: &'static str = NAME;
    type Args<A> = TopKeysArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.top, if self.one { ", one sequence" } else { "" })
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        require((1..1 << 24).contains(&self.top), NAME, || format!("{} positions", self.top))
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new().number("TOP", self.top).flag("ONE", self.one);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        let tokens = size.tokens.max(1) as u32;
        Ok(Grid::of([tokens, 1, 1]).number("tokens", tokens))
    }

    fn work(&self, Size { tokens, past }: Size) -> Work {
        let seen: usize = (0..tokens).map(|t| past + t + 1).sum();
        Work::moves(4 * (seen + tokens * self.top))
    }
}
