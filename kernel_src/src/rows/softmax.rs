//! Softmax of rows: `gpu/softmax.h`.

use crate::rows::norm::{WIDEST, threads};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Softmax of rows, one block per row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SoftmaxSpec {
    /// Width of a row, up to 65536.
    pub cols: usize,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments of a softmax.
    SoftmaxArgs {
        /// `rows × cols` f32.
        x: Pointer,
        /// As `x`; may be `x`.
        y: Pointer,
        /// Factor on `x`.
        scale: F32,
    }
}

const NAME: &str = "softmax";

impl Family for SoftmaxSpec {
    const NAME: &'static str = NAME;
    type Args<A> = SoftmaxArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cols)
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        let fine = (1..=WIDEST).contains(&self.cols);
        require(fine, NAME, || {
            format!("rows of {} elements: 1 to {WIDEST} are supported", self.cols)
        })?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        Ok(Block::of(wave, threads(self.cols, wave)))
    }

    fn render(&self, _: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new().number("COLS", self.cols);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(8 * self.cols * size.tokens)
    }
}
