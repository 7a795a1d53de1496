//! Quantises activations once for all blocks of the following products: `gpu/quantize.h`.

use crate::vocabulary::activations::{Column, Prologue, PrologueLabel};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Quantises columns of activations (for plain weights: reorders them) in global memory, if they
/// are too many or too long to do it in each block of a product. One block per column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuantizeSpec {
    /// Form of the columns.
    pub column: Column,
    /// Transformation of the activations before quantisation.
    pub prologue: Prologue,
}

arguments! {
    /// The arguments of quantisation.
    QuantizeArgs {
        /// `columns × cols` f32.
        x: Pointer,
        /// The norm's weight (`cols` f32) or the other factor of a gated unit (`columns × cols`
        /// f32); null without either.
        aux: Pointer,
        /// [`Column::bytes`] for each column.
        out: Pointer,
        /// Epsilon of the norm.
        eps: F32,
    }
}

const NAME: &str = "quantize";
const BLOCK: u32 = 256;

impl Family for QuantizeSpec {
    const NAME: &'static str = NAME;
    type Args<A> = QuantizeArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {:?}{}",
            self.column.cols,
            self.column.form,
            PrologueLabel(self.prologue, false)
        )
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = self.column.shape(self.prologue);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (4 * self.column.cols + self.column.bytes()))
    }
}
