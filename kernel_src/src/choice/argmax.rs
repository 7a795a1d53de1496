//! The likeliest token, chosen on the device, and the sequence moved on: `gpu/argmax.h`.

use crate::cases::chosen::{largest, moved};
use crate::cases::{Case, CaseArg, FOLLOWS, Random, floats};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Variant, choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Chooses the largest logit for each sequence, the lower id first among equals. It is written
/// behind the token that the logits came from, and the position advanced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArgmaxSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// The block; `None`: the family's.
    pub tuning: Option<ChoiceTuning>,
}

arguments! {
    /// The arguments.
    ArgmaxArgs {
        /// `sequences × vocab` f32.
        logits: Pointer,
        /// `sequences × blocks` u64 of working memory.
        part: Pointer,
        /// A u32 per sequence, zero before the first launch and after every one.
        counters: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// `slots × capacity` u32.
        tokens: Pointer,
        /// A u32 per slot: the position of the token that the logits came from.
        position: Pointer,
        /// Positions of a slot.
        capacity: U32,
        /// Blocks of a sequence.
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
        require((1..1 << 22).contains(&vocab), kernel, || format!("a vocabulary of {vocab}"))?;
        let fine = target.waves().contains(&self.wave)
            && self.block.is_multiple_of(self.wave)
            && (self.wave..=1024).contains(&self.block);
        require(fine, kernel, || format!("{self:?} on {target}"))
    }

    /// What is worth trying.
    pub(crate) fn all(target: &Target) -> Vec<ChoiceTuning> {
        let waves = target.waves().iter();
        waves.flat_map(|&wave| [256, 512, 1024].map(|block| ChoiceTuning { wave, block })).collect()
    }
}

const NAME: &str = "argmax";
/// Positions that a case may move on: as often as it is launched.
pub(crate) const MOVES: u32 = 4096;

impl ArgmaxSpec {
    /// Blocks for each sequence: also the last argument.
    #[must_use]
    pub fn blocks(&self, units: u32) -> u32 {
        (self.vocab as u32).div_ceil(2048).clamp(1, units.max(1))
    }

    fn grid_of(blocks: u32, sequences: usize) -> Grid {
        let grid = Grid::of([blocks, sequences as u32, 1]).number("blocks", blocks);
        grid.memory("part", 8 * sequences * blocks as usize).counters("counters", sequences)
    }

    /// A case of these logits in so many blocks for each sequence.
    fn of(
        &self,
        target: &Target,
        (blocks, capacity): (u32, u32),
        logits: &[f32],
    ) -> Result<Case, SpecError> {
        let chosen: Vec<u32> = logits.chunks(self.vocab).map(largest).collect();
        let n = chosen.len();
        let positions: Vec<u32> = (0..n as u32).map(|s| s % 5).collect();
        let [slots, tokens, position] = moved(&positions, capacity, &chosen);
        let tuning = self.tuning(target)?;
        let launch = Launch::of(self.block(target, &tuning)?, ArgmaxSpec::grid_of(blocks, n));
        let args = ArgmaxArgs {
            logits: floats("logits", logits),
            part: CaseArg::Null,
            counters: CaseArg::Null,
            slots,
            tokens,
            position,
            capacity: CaseArg::U32(capacity),
            blocks: FOLLOWS,
        };
        Case::of(
            format!("argmax {n} × {}, wave {}", self.vocab, tuning.wave),
            self,
            target,
            launch,
            args,
        )
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

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let logits = random.normals(size.tokens.max(1) * self.vocab, 3.0);
        self.of(target, (self.blocks(units), MOVES), &logits)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let spec =
            |vocab| ArgmaxSpec { vocab, tuning: Some(ChoiceTuning { wave, block: 2 * wave }) };
        let logits = coarse(1009, random);
        into.push(spec(1009).of(target, (3, 9), &logits)?);
        into.push(spec(7).of(target, (3, 9), &[-3.0, -2.0, f32::NAN, -2.0, -5.0, -9.0, -2.5])?);
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("argmax".to_owned(), ArgmaxSpec { vocab: 128_256, tuning: None }, ONE)
    }
}

/// Logits of four sequences: coarse, so that there are equals everywhere; a NaN, zeros of both
/// signs, an infinity.
pub(crate) fn coarse(vocab: usize, random: &mut Random) -> Vec<f32> {
    let mut logits: Vec<f32> =
        random.normals(4 * vocab, 3.0).iter().map(|v| (v * 4.0).round() / 4.0).collect();
    logits[17] = f32::NAN;
    logits[vocab..2 * vocab].fill(-0.0);
    logits[vocab + 700] = 0.0;
    logits[2 * vocab + 99] = f32::INFINITY;
    logits
}
