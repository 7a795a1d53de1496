//! Linear attention: the past is one matrix for each head (`gpu/linear.h`).

use crate::state::lanes::{LONGEST, lanes};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Linear attention with decay, and with a correction (the delta rule, Yang et al. 2024, arXiv
/// 2412.06464; RWKV-7, arXiv 2503.14456) or a bonus (RWKV-6, arXiv 2404.05892). Each head's matrix
/// is a state, which is read and written: one row per value, with the keys as columns.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinearSpec {
    /// Number of heads.
    pub heads: usize,
    /// Elements of a head's key.
    pub keys: usize,
    /// Elements of a head's value.
    pub values: usize,
    /// True: each element of a key has its own decay. False: each head has one.
    pub each: bool,
    /// Whether the state is corrected (delta rule).
    pub corrected: bool,
    /// Whether a token's own key and value have a weight, and enter the state after its result.
    pub bonus: bool,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
}

arguments! {
    /// The arguments of linear attention.
    LinearArgs {
        /// `tokens × heads · keys` f32.
        q: Pointer,
        /// `tokens × heads · keys` f32.
        k: Pointer,
        /// `tokens × heads · values` f32.
        v: Pointer,
        /// `tokens × heads` f32, or `tokens × heads · keys`.
        w: Pointer,
        /// `tokens × heads · keys` f32, or null.
        a: Pointer,
        /// `tokens × heads · keys` f32, or null.
        b: Pointer,
        /// `heads × keys` f32, or null.
        u: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// [`LinearSpec::state`] f32 for each slot, slot `s` at `s · sequence_bytes`.
        state: Pointer,
        /// `tokens × heads · values` f32.
        y: Pointer,
        /// Number of tokens of this launch.
        tokens: U32,
        /// Bytes from one slot's state to that of the next slot.
        sequence_bytes: U64,
    }
}

const NAME: &str = "linear";
const BLOCK: u32 = 256;

impl LinearSpec {
    /// Number of f32 in the state of a sequence.
    #[must_use]
    pub fn state(&self) -> usize {
        self.heads * self.keys * self.values
    }

    /// Number of blocks for a sequence.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        ((self.heads * self.values * lanes(self.keys)) as u32).div_ceil(BLOCK)
    }
}

impl Family for LinearSpec {
    const NAME: &'static str = NAME;
    type Args<A> = LinearArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} keys × {} values", self.heads, self.keys, self.values)?;
        for (on, word) in [
            (self.each, ", decay of each"),
            (self.corrected, ", corrected"),
            (self.bonus, ", bonus"),
        ] {
            f.write_str(if on { word } else { "" })?;
        }
        f.write_str(if self.one { ", one sequence" } else { "" })
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let fine = self.heads > 0 && self.values > 0 && (1..=LONGEST).contains(&self.keys);
        require(fine && self.state() < 1 << 28, NAME, || {
            format!("{self:?}: keys of up to {LONGEST} elements are supported")
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("HEADS", self.heads)
            .number("VALUES", self.values)
            .number("N", self.keys)
            .number("LANES", lanes(self.keys))
            .flag("W_EACH", self.each)
            .flag("CORRECTED", self.corrected)
            .flag("BONUS", self.bonus)
            .flag("ONE", self.one);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), if self.one { 1 } else { size.tokens as u32 }, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let sequences = if self.one { 1 } else { size.tokens };
        let keys = 2 + 2 * usize::from(self.corrected) + usize::from(self.each);
        let token = self.heads * (keys * self.keys + 2 * self.values + usize::from(!self.each));
        let weights = if self.bonus { self.heads * self.keys } else { 0 };
        let bytes = 4 * (size.tokens * token + 2 * sequences * self.state() + weights);
        Work {
            bytes: bytes as u64,
            operations: ((6 + 4 * usize::from(self.corrected)) * size.tokens * self.state()) as u64,
        }
    }
}
