//! Draws a token at random on the device and advances the sequence: `gpu/draw.h`.

use crate::choice::argmax::ChoiceTuning;
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::choice;
use kjit_engine::{Constants, Dot, Target, Vendor};
use std::fmt;

/// Draws a token for each sequence: top-k, temperature, top-p, min-p, in this order. The token is
/// written after the last token of the sequence, and the position advances by one. Several blocks
/// share the logits of a sequence; they synchronise in device memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DrawSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Threads of a block; `None`: the default of the family.
    pub tuning: Option<ChoiceTuning>,
}

arguments! {
    /// The arguments of a draw.
    DrawArgs {
        /// `sequences × vocab` f32.
        logits: Pointer,
        /// A u64 for each slot: the seed of its noise, with the token's position and id
        /// ([`crate::noise`]).
        seeds: Pointer,
        /// `slots × 4` words: the four arguments below for each slot. Null: the arguments apply to
        /// all slots.
        options: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// `slots × capacity` u32.
        tokens: Pointer,
        /// A u32 per slot: the position of the last token (the source of the logits).
        position: Pointer,
        /// [`WORK`] bytes per sequence, zero before the first launch and after each launch.
        work: Pointer,
        /// [`SAID`] bytes of working memory per sequence.
        said: Pointer,
        /// Number of positions of a slot.
        capacity: U32,
        /// Number of most likely tokens to draw from; 0: all.
        top_k: U32,
        /// Factor of logits: [`crate::noise::inverse`] of the temperature.
        inverse: F32,
        /// Draws from the most likely tokens whose probabilities reach this sum; 1: all.
        top_p: F32,
        /// Draws from tokens with at least this fraction of the largest probability; 0: all.
        min_p: F32,
        /// Number of blocks per sequence. With more than one the launch is cooperative, because
        /// blocks wait for each other.
        blocks: U32,
    }
}

const NAME: &str = "draw";

/// Threads of a block without a measured tuning.
pub const THREADS: u32 = 512;
/// The most blocks for one row of logits: with 32 a thread has eight loads in flight for a
/// vocabulary of 128k. With many candidates (top-k off, or above 64) sixteen blocks draw.
const MOST_BLOCKS: u32 = 32;

/// Bytes of the barrier state and bins of one sequence: three sets of 2048 weights and counts, two
/// counters (`DrawMeeting` in `gpu/draw.h`).
pub const WORK: usize = 3 * 2048 * (8 + 4) + 8;

/// Bytes for the exchange of the most likely tokens, extremes, sums and an id between blocks
/// (`DrawSaid`).
pub const SAID: usize = MOST_BLOCKS as usize * 64 * 8 + 16 * (16 + 8) + 8;

impl DrawSpec {
    /// Number of blocks for each of `sequences` sequences; also the last argument. All must be
    /// resident. A block has at least 2048 logits, because each barrier takes time.
    #[must_use]
    pub fn blocks(&self, units: u32, sequences: u32) -> u32 {
        (units / sequences.max(1)).min(MOST_BLOCKS).min((self.vocab as u32).div_ceil(2048)).max(1)
    }

    /// The grid of `blocks` blocks for each sequence, and the arguments that follow from it.
    #[must_use]
    pub fn grid_of(blocks: u32, sequences: usize) -> Grid {
        let grid = Grid::of([blocks, sequences as u32, 1])
            .number("blocks", blocks)
            .cooperative(blocks > 1);
        grid.zeroed("work", WORK * sequences).memory("said", SAID * sequences)
    }
}

impl Family for DrawSpec {
    const NAME: &'static str = NAME;
    type Args<A> = DrawArgs<A>;
    choice!(ChoiceTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}", self.vocab)
    }

    /// With 1024 threads each thread has 64 registers, and 13 spilled on sm_90.
    fn usual(&self, target: &Target) -> Result<ChoiceTuning, SpecError> {
        let wave = target.default_wave();
        Ok(ChoiceTuning { wave, block: THREADS })
    }

    fn check(&self, target: &Target, tuning: &ChoiceTuning) -> Result<(), SpecError> {
        tuning.check(NAME, target, self.vocab)
    }

    fn candidates(&self, target: &Target) -> Vec<ChoiceTuning> {
        ChoiceTuning::all(target)
    }

    fn block(&self, _: &Target, t: &ChoiceTuning) -> Result<Block, SpecError> {
        Ok(Block::of(t.wave, t.block))
    }

    fn render(&self, target: &Target, _: &ChoiceTuning, block: Block) -> Result<Kernel, SpecError> {
        let mut macros = Constants::new();
        if target.vendor() == Vendor::Nvidia {
            // Without this bound ptxas reserves registers for two blocks per multiprocessor on
            // sm_90, and five spill.
            macros = macros.set("KJ_MIN_BLOCKS", 1);
        }
        // With both algorithms in one kernel three scalar registers spill on gfx803, gfx900 and
        // similar chips.
        let few = target.arch().waves != [64] || target.arch().dot != Dot::None;
        let shape = Shape::new().number("VOCAB", self.vocab).flag("FEW", few);
        Ok(of_shape(NAME, &shape, macros, block.wave, block.threads))
    }

    fn grid(
        &self,
        _: &Target,
        _: &ChoiceTuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError> {
        Ok(DrawSpec::grid_of(self.blocks(units, size.tokens as u32), size.tokens.max(1)))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(4 * self.vocab * size.tokens)
    }
}
