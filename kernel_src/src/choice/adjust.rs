//! Changes to logits before a token is chosen, on the device: `gpu/adjust.h`.

use crate::choice::changes;
use crate::choice::changes::MOST;
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Applies biases, a mask and penalties to rows of logits, from a list in each slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AdjustSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
}

arguments! {
    /// The arguments of an adjustment.
    AdjustArgs {
        /// `sequences × vocab` f32, changed in place.
        logits: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// [`changes::stride`] u32 per slot.
        lists: Pointer,
        /// Number of blocks per sequence.
        blocks: U32,
    }
}

const NAME: &str = "adjust";
const BLOCK: u32 = 256;

impl AdjustSpec {
    /// Number of blocks per sequence; also the last argument.
    #[must_use]
    pub fn blocks(&self, units: u32) -> u32 {
        (self.vocab as u32).div_ceil(4096).clamp(1, units.max(1))
    }
}

impl Family for AdjustSpec {
    const NAME: &'static str = NAME;
    type Args<A> = AdjustArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}", self.vocab)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        require((1..1 << 22).contains(&self.vocab), NAME, || {
            format!("a vocabulary of {} is not supported", self.vocab)
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let stride = changes::stride(self.vocab);
        let shape =
            Shape::new().number("VOCAB", self.vocab).number("MOST", MOST).number("STRIDE", stride);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let blocks = self.blocks(units);
        Ok(Grid::of([blocks, size.tokens.max(1) as u32, 1]).number("blocks", blocks))
    }

    fn work(&self, size: Size) -> Work {
        // Counted as if each row had a mask.
        Work::moves(4 * self.vocab * size.tokens)
    }
}
