//! Copies of rows: `gpu/rows.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// `out[r] = x[which[r]]`, rows of 32-bit words. One kernel is for all widths.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CopyRowsSpec {
    /// Number of words in a row.
    pub words: usize,
}

arguments! {
    /// The arguments of copying.
    CopyRowsArgs {
        /// Rows of words.
        x: Pointer,
        /// A u32 for each row of `out`.
        which: Pointer,
        /// Rows of words.
        out: Pointer,
        /// Number of words in a row.
        words: U32,
    }
}

const NAME: &str = "rows";
const BLOCK: u32 = 256;

impl CopyRowsSpec {
    /// Number of blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.words as u32).div_ceil(BLOCK)
    }
}

impl Family for CopyRowsSpec {
    const NAME: &'static str = NAME;
    type Args<A> = CopyRowsArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {} words", self.words)
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &Shape::new(), Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(8 * size.tokens * self.words)
    }
}
