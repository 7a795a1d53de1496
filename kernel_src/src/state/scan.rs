//! The recurrence of selective state spaces: `gpu/scan.h`.

use crate::state::lanes::{LONGEST, lanes};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// A selective state space (Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024, arXiv 2405.21060). Each
/// channel has a state, which is read and written.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScanSpec {
    /// Number of heads, each with its own step.
    pub heads: usize,
    /// Number of channels in a head.
    pub channels: usize,
    /// Number of f32 in the state of a channel.
    pub n: usize,
    /// Number of groups of neighbouring heads that share `b` and `c`.
    pub groups: usize,
    /// True: each of the `n` numbers has its own decay. False: each head has one.
    pub each: bool,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
}

arguments! {
    /// The arguments of a scan.
    ScanArgs {
        /// `tokens × heads · channels` f32.
        x: Pointer,
        /// `tokens × heads` f32.
        dt: Pointer,
        /// `tokens × groups · n` f32.
        b: Pointer,
        /// `tokens × groups · n` f32.
        c: Pointer,
        /// `heads` f32, or `heads × n`.
        a: Pointer,
        /// `heads` f32.
        d: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// [`ScanSpec::state`] f32 for each slot, slot `s` at `s · sequence_bytes`.
        state: Pointer,
        /// `tokens × heads · channels` f32.
        y: Pointer,
        /// Number of tokens of this launch.
        tokens: U32,
        /// Bytes from one slot's state to that of the next slot.
        sequence_bytes: U64,
    }
}

const NAME: &str = "scan";
const BLOCK: u32 = 256;

impl ScanSpec {
    /// Number of f32 in the state of a sequence.
    #[must_use]
    pub fn state(&self) -> usize {
        self.heads * self.channels * self.n
    }

    /// Number of blocks for a sequence.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        ((self.heads * self.channels * lanes(self.n)) as u32).div_ceil(BLOCK)
    }
}

impl Family for ScanSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ScanArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} × {}, groups {}", self.heads, self.channels, self.n, self.groups)?;
        f.write_str(if self.each { ", rates of each" } else { "" })?;
        f.write_str(if self.one { ", one sequence" } else { "" })
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let fine = self.heads > 0
            && self.channels > 0
            && self.groups > 0
            && self.heads.is_multiple_of(self.groups);
        require(fine && (1..=LONGEST).contains(&self.n) && self.state() < 1 << 28, NAME, || {
            format!(
                "{self:?}: up to {LONGEST} numbers per channel and whole groups of heads are supported"
            )
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("HEADS", self.heads)
            .number("CHANNELS", self.channels)
            .number("N", self.n)
            .number("GROUPS", self.groups)
            .number("LANES", lanes(self.n))
            .flag("A_EACH", self.each)
            .flag("ONE", self.one);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), if self.one { 1 } else { size.tokens as u32 }, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let sequences = if self.one { 1 } else { size.tokens };
        let token = 2 * self.heads * self.channels + self.heads + 2 * self.groups * self.n;
        let weights = self.heads * (1 + if self.each { self.n } else { 1 });
        let bytes = 4 * (size.tokens * token + 2 * sequences * self.state() + weights);
        Work { bytes: bytes as u64, operations: (6 * size.tokens * self.state()) as u64 }
    }
}
