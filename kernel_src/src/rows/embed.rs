//! Copies rows of the embedding, for token ids on the device: `gpu/embed.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step;
use crate::vocabulary::step::{Step, StepContext};
use crate::vocabulary::variant::{Fixed, no_choice};
use crate::vocabulary::weights;
use kjit_engine::{Constants, Target};
use kjit_formats::layout::Layout;
use std::fmt;

/// `out[r] = scale · table[token of r]`; rows with ids from 2³¹ on stay as they are. Rows are the
/// tokens of one sequence from its position on, or one token of each sequence, at that sequence's
/// position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EmbedSpec {
    /// Layout of the table.
    pub layout: Layout,
    /// True: one row per sequence. False: one row per token of one sequence.
    pub each_own: bool,
}

arguments! {
    /// The arguments of an embedding.
    EmbedArgs {
        /// Row records of the layout.
        table: Pointer,
        /// u32: the ids of a whole context, slot after slot. Ids below 2³¹ must be below the
        /// number of rows of the table.
        tokens: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`. Not read for tokens of
        /// one sequence.
        slots: Pointer,
        /// A u32 per slot: the position of the row's token; for one sequence the position of the
        /// first token.
        position: Pointer,
        /// `rows × cols` f32.
        out: Pointer,
        /// Factor on the rows.
        scale: F32,
        /// Number of positions of a slot.
        capacity: U32,
    }
}

const NAME: &str = "embed";
const BLOCK: u32 = 128;
impl EmbedSpec {
    /// Number of blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.layout.units() as u32).div_ceil(BLOCK)
    }

    fn shape(&self) -> Shape {
        let shape = Shape::new().number("COLS", self.layout.cols).flag("EACH_OWN", self.each_own);
        shape.inner("W", weights::records(&self.layout))
    }
}

impl Family for EmbedSpec {
    const NAME: &'static str = NAME;
    type Args<A> = EmbedArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = if self.each_own { ", one a sequence" } else { "" };
        write!(f, "{} × {}{each}", self.layout.format, self.layout.cols)
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, inside: StepContext) -> Result<Step, SpecError> {
        step::covered(NAME, &self.layout)?;
        let shares = (self.layout.units() as u32).div_ceil(inside.threads);
        let call = "Meeting::wait(); Embed<S>::step(a, share);";
        Ok(Step { shares: Some(shares), ..Step::of("embed.h", "EmbedArgs", call, self.shape()) })
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens * (self.layout.row_bytes + 4 * self.layout.cols))
    }
}
