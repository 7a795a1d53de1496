//! Short convolutions along the tokens: `gpu/conv.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// A causal convolution of each channel over the last tokens. The tokens before this launch are a
/// state, which is read and written.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvSpec {
    /// Number of channels.
    pub channels: usize,
    /// Number of tokens of a result, including its own: 2 to [`ConvSpec::MOST`].
    pub taps: usize,
    /// True: each token has a factor. False: the result is the oldest token.
    pub weights: bool,
    /// Whether offsets are added.
    pub bias: bool,
    /// Whether silu is applied.
    pub silu: bool,
    /// True: successive tokens of one sequence. False: one token of each sequence.
    pub one: bool,
}

arguments! {
    /// The arguments of a convolution.
    ConvArgs {
        /// `tokens × channels` f32.
        x: Pointer,
        /// `channels × taps` f32, or null.
        w: Pointer,
        /// `channels` f32, or null.
        b: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// A u32 per slot: tokens before the new ones.
        position: Pointer,
        /// [`ConvSpec::state`] f32 for each slot, slot `s` at `s · sequence_bytes`.
        state: Pointer,
        /// `tokens × channels` f32.
        y: Pointer,
        /// Number of tokens of this launch.
        tokens: U32,
        /// Bytes from one slot's state to that of the next slot.
        sequence_bytes: U64,
    }
}

const NAME: &str = "conv";
const BLOCK: u32 = 256;

impl ConvSpec {
    /// The most tokens of a result.
    pub const MOST: usize = 16;
    /// Number of tokens of one sequence that a block takes.
    pub const SLAB: u32 = 64;

    /// Number of f32 in the state of a sequence.
    #[must_use]
    pub fn state(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// Number of blocks that share a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.channels as u32).div_ceil(BLOCK)
    }
}

impl Family for ConvSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ConvArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.channels, self.taps)?;
        for (on, word) in
            [(!self.weights, ", oldest"), (self.bias, ", bias"), (self.silu, ", silu")]
        {
            f.write_str(if on { word } else { "" })?;
        }
        f.write_str(if self.one { ", one sequence" } else { "" })
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let fine =
            (2..=ConvSpec::MOST).contains(&self.taps) && (1..1 << 24).contains(&self.channels);
        let fine = fine && (self.weights || !self.bias);
        require(fine, NAME, || {
            format!(
                "{} channels over {} tokens: 2 to {} tokens are supported",
                self.channels,
                self.taps,
                ConvSpec::MOST
            )
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("CHANNELS", self.channels)
            .number("TAPS", self.taps)
            .number("SLAB", ConvSpec::SLAB)
            .flag("WEIGHTS", self.weights)
            .flag("BIAS", self.bias)
            .flag("SILU", self.silu)
            .flag("ONE", self.one);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        let rows = if self.one {
            (size.tokens as u32).div_ceil(ConvSpec::SLAB)
        } else {
            size.tokens as u32
        };
        Ok(Grid::of([self.blocks(), rows, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let sequences = if self.one { 1 } else { size.tokens };
        let weights =
            self.channels * (usize::from(self.weights) * self.taps + usize::from(self.bias));
        Work::moves(4 * (2 * size.tokens * self.channels + 2 * sequences * self.state() + weights))
    }
}
