//! All-reduce or all-gather of rows over several devices (`gpu/reduce.h`).

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::step::{Step, StepContext};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// The largest number of devices.
pub const RANKS: usize = 8;

/// `y = residual + Σ over devices of x`, or the concatenation of the devices' `x`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReduceSpec {
    /// Number of devices.
    pub ranks: usize,
    /// Elements of a row of `x`.
    pub cols: usize,
    /// True: rows are concatenated. False: rows are added.
    pub join: bool,
    /// Whether a residual is added.
    pub residual: bool,
    /// True (for many rows): values are sent in stretches, each followed by one number. False: each
    /// value is sent with a number.
    pub stretches: bool,
    /// Whether all partial rows are already in the inbox, in order: a library gathers them for
    /// devices of several processes.
    pub gathered: bool,
}

arguments! {
    /// The arguments of a reduction.
    ReduceArgs {
        /// `rows × cols` f32: the part of this device.
        x: Pointer,
        /// Rows as in `y`, or null.
        residual: Pointer,
        /// `rows × cols` f32, `ranks` times as many with `join`; may be `residual`.
        y: Pointer,
        /// [`WORDS`] u32 of this device, zero before the first launch; shared by all launches.
        words: Pointer,
        /// u32 in host memory: not 0 after a wait has timed out. If gathered: the number of sums so
        /// far.
        late: Pointer,
        /// `2 × ranks × room` u64 of this device, zero before the first launch; shared by all
        /// launches. If gathered: `ranks × count` f32.
        inbox: Pointer,
        /// The inboxes of the ranks after this one, in order; null beyond `ranks`.
        to0: Pointer,
        /// As `to0`.
        to1: Pointer,
        /// As `to0`.
        to2: Pointer,
        /// As `to0`.
        to3: Pointer,
        /// As `to0`.
        to4: Pointer,
        /// As `to0`.
        to5: Pointer,
        /// As `to0`.
        to6: Pointer,
        /// `rows · cols`.
        count: U64,
        /// Number of packets, or values (then a multiple of [`STRETCH`]), that an inbox has for
        /// each rank.
        room: U64,
        /// The longest wait in nanoseconds.
        limit: U64,
        /// Rank of this device, below `ranks`.
        rank: U32,
        /// Number of blocks: at most as many as the device holds together.
        blocks: U32,
    }
}

/// Words of a device: number of exchanges so far, blocks that have read that number, whether a wait
/// has timed out.
pub const WORDS: usize = 3;
/// Number of values in a stretch.
pub const STRETCH: usize = 4 * EACH * BLOCK as usize;
/// Blocks that a compute unit always holds together.
pub const BLOCKS_PER_UNIT: u32 = 2;

const NAME: &str = "reduce";
const BLOCK: u32 = 256;
/// Quads of a stretch for each thread, as in `gpu/reduce.h`.
const EACH: usize = 4;

/// Number of u32 in an inbox for `room` values of each rank, in stretches: values, then numbers.
#[must_use]
pub fn words_of_stretches(ranks: usize, room: usize) -> usize {
    2 * ranks * (room + room.div_ceil(STRETCH))
}

impl ReduceSpec {
    /// Number of blocks with work for `rows` rows.
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

    fn inside(&self, _: &Target, inside: StepContext) -> Result<Step, SpecError> {
        require(!self.gathered, NAME, || {
            "partial sums of a library arrive between launches, not inside a persistent kernel"
                .to_owned()
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
        // This device's partial row, the partial rows sent to and received from the other devices,
        // the result.
        let wide = if self.join { self.ranks } else { 1 };
        let residual = if self.residual { wide } else { 0 };
        // If gathered, all partial rows are read; the library's transfers are not counted.
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
