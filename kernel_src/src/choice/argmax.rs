//! Chooses the most likely token on the device and advances the sequence: `gpu/argmax.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Variant, choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Chooses the largest logit for each sequence, and the lowest id among equals. The token is
/// written after the last token of the sequence, and the position advances by one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArgmaxSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Threads of the block; `None`: the default of the family.
    pub tuning: Option<ChoiceTuning>,
}

arguments! {
    /// The arguments of a greedy choice.
    ArgmaxArgs {
        /// `sequences × vocab` f32.
        logits: Pointer,
        /// `sequences × blocks` u64 of working memory.
        part: Pointer,
        /// A u32 per sequence, zero before the first launch and after each launch.
        counters: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// `slots × capacity` u32.
        tokens: Pointer,
        /// A u32 per slot: the position of the last token (the source of the logits).
        position: Pointer,
        /// Number of positions of a slot.
        capacity: U32,
        /// Number of blocks per sequence.
        blocks: U32,
    }
}

/// Threads of the block, and lanes of its waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChoiceTuning {
    /// Lanes in a wave.
    pub wave: u32,
    /// Threads of a block.
    pub block: u32,
}

impl Variant for ChoiceTuning {}

impl ChoiceTuning {
    pub(crate) fn check(
        self,
        kernel: &'static str,
        target: &Target,
        vocab: usize,
    ) -> Result<(), SpecError> {
        require((1..1 << 22).contains(&vocab), kernel, || {
            format!("a vocabulary of {vocab} is not supported")
        })?;
        let fine = target.waves().contains(&self.wave)
            && self.block.is_multiple_of(self.wave)
            && (self.wave..=1024).contains(&self.block);
        require(fine, kernel, || format!("tuning {self:?} is not supported on {target}"))
    }

    /// All candidates.
    pub(crate) fn all(target: &Target) -> Vec<ChoiceTuning> {
        let waves = target.waves().iter();
        waves.flat_map(|&wave| [256, 512, 1024].map(|block| ChoiceTuning { wave, block })).collect()
    }
}

const NAME: &str = "argmax";
impl ArgmaxSpec {
    /// Number of blocks per sequence; also the last argument.
    #[must_use]
    pub fn blocks(&self, units: u32) -> u32 {
        (self.vocab as u32).div_ceil(2048).clamp(1, units.max(1))
    }

    /// The grid of `blocks` blocks for each sequence, and the arguments that follow from it.
    #[must_use]
    pub fn grid_of(blocks: u32, sequences: usize) -> Grid {
        let grid = Grid::of([blocks, sequences as u32, 1]).number("blocks", blocks);
        grid.memory("part", 8 * sequences * blocks as usize).counters("counters", sequences)
    }
}

impl Family for ArgmaxSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ArgmaxArgs<A>;
    choice!(ChoiceTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}", self.vocab)
    }

    fn usual(&self, target: &Target) -> Result<ChoiceTuning, SpecError> {
        Ok(ChoiceTuning { wave: target.default_wave(), block: 512 })
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

    fn render(&self, _: &Target, _: &ChoiceTuning, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new().number("VOCAB", self.vocab);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(
        &self,
        _: &Target,
        _: &ChoiceTuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError> {
        Ok(ArgmaxSpec::grid_of(self.blocks(units), size.tokens.max(1)))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(4 * self.vocab * size.tokens)
    }
}
