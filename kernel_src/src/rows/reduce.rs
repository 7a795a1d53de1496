//! Rows that several devices have made parts of, on all of them: `gpu/reduce.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Devices at most.
pub const RANKS: usize = 8;

/// `y = residual + Σ over devices of x`, or the devices' `x` one behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceSpec {
    /// Devices.
    pub ranks: usize,
    /// Elements of a row of `x`.
    pub cols: usize,
    /// Rows are put one behind the other; else they are added.
    pub join: bool,
    /// A residual is added.
    pub residual: bool,
    /// For many rows: values go in stretches, with one number behind each; else each value with its
    /// own.
    pub stretches: bool,
    /// All parts lie in the inbox already, one behind the other: the devices are of several
    /// processes.
    pub gathered: bool,
}

arguments! {
    /// The arguments.
    ReduceArgs {
        /// `rows × cols` f32: this device's part.
        x: Pointer,
        /// Rows as those of `y`, or null.
        residual: Pointer,
        /// `rows × cols` f32, `ranks` times as many where they are joined; may be `residual`.
        y: Pointer,
        /// [`WORDS`] u32 of this device, zero before the first launch; all launches have the same.
        words: Pointer,
        /// u32 of the host: not 0 once a device has waited in vain; gathered, the sums so far.
        late: Pointer,
        /// `2 × ranks × room` u64 of this device, zero before the first launch; all launches have
        /// the same. Gathered: `ranks × count` f32.
        inbox: Pointer,
        /// The inboxes of the ranks behind this one, in turn; null beyond `ranks`.
        to0: Pointer,
        /// Likewise.
        to1: Pointer,
        /// Likewise.
        to2: Pointer,
        /// Likewise.
        to3: Pointer,
        /// Likewise.
        to4: Pointer,
        /// Likewise.
        to5: Pointer,
        /// Likewise.
        to6: Pointer,
        /// `rows · cols`.
        count: U64,
        /// Packets, or values (then a multiple of [`STRETCH`]), that an inbox has for each rank.
        room: U64,
        /// Nanoseconds that are waited at most.
        limit: U64,
        /// This device, below `ranks`.
        rank: U32,
        /// Blocks: no more than the device holds at once.
        blocks: U32,
    }
}

/// Words of a device: meetings so far, blocks that know the number, whether somebody has waited in
/// vain.
pub const WORDS: usize = 3;
/// Values of a stretch.
pub const STRETCH: usize = 4 * EACH * BLOCK as usize;
/// Blocks that a compute unit takes at once, whatever else it has.
pub const BLOCKS_PER_UNIT: u32 = 2;

const NAME: &str = "reduce";
const BLOCK: u32 = 256;
/// Quads of a stretch for each thread, as `gpu/reduce.h` has it.
const EACH: usize = 4;

/// u32 of an inbox with room for so many values of each rank, in stretches: values, then numbers.
#[must_use]
pub fn words_of_stretches(ranks: usize, room: usize) -> usize {
    2 * ranks * (room + room.div_ceil(STRETCH))
}

impl ReduceSpec {
    /// Blocks for which there is work, with so many rows.
    #[must_use]
    pub fn blocks(&self, rows: usize) -> u32 {
        let each = if self.stretches { STRETCH } else { BLOCK as usize };
        u32::try_from((rows * self.cols).div_ceil(each)).unwrap_or(u32::MAX).max(1)
    }

    fn shape(&self) -> Shape {
        let shape = Shape::new().number("RANKS", self.ranks).number("COLS", self.cols);
        let shape = shape
            .flag("JOIN", self.join)
            .flag("RESIDUAL", self.residual)
            .flag("STRETCHES", self.stretches);
        shape.flag("GATHERED", self.gathered)
    }
}

impl Family for ReduceSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ReduceArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.join { "joined" } else { "added" };
        let residual = if self.residual { ", residual" } else { "" };
        let stretches = if self.stretches { ", stretches" } else { "" };
        let gathered = if self.gathered { ", gathered" } else { "" };
        write!(f, "{} × {} {how}{residual}{stretches}{gathered}", self.ranks, self.cols)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let fine = (2..=RANKS).contains(&self.ranks) && self.cols > 0 && self.cols <= 1 << 30;
        let quads = !self.join && self.cols.is_multiple_of(4);
        require(
            fine && (quads || !self.stretches) && !(self.stretches && self.gathered),
            NAME,
            || format!("{self:?}"),
        )
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        Ok(of_shape(NAME, &self.shape(), Constants::new(), block.wave, block.threads))
    }

    fn inside(&self, _: &Target, inside: Inside) -> Result<Step, SpecError> {
        require(!self.gathered, NAME, || {
            "parts that a library brings come between launches".to_owned()
        })?;
        require(!self.stretches && self.ranks == inside.ranks, NAME, || format!("{self:?}"))?;
        let call = "Meeting::wait(); Meeting::delay(106); Reduce<S>::inside(a, share, \
            Sums::met(sum_of(c) - 1));";
        let step = Step::of("reduce.h", "ReduceArgs", call, self.shape());
        Ok(Step { of_all_blocks: true, sums: true, ..step })
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let blocks = self.blocks(size.tokens).min(units.saturating_mul(BLOCKS_PER_UNIT).max(1));
        Ok(Grid::of([blocks, 1, 1]).number("blocks", blocks))
    }

    fn work(&self, size: Size) -> Work {
        // Its part, what goes to each other device and comes from each, the row.
        let wide = if self.join { self.ranks } else { 1 };
        let residual = if self.residual { wide } else { 0 };
        // Gathered, all parts are read, and what a library moves is not this kernel's.
        let sent = match (self.gathered, self.stretches) {
            (true, _) => 4,
            (_, true) => 8,
            _ => 16,
        };
        Work::moves(
            size.tokens * self.cols * (4 + sent * (self.ranks - 1) + 4 * wide + 4 * residual),
        )
    }
}
