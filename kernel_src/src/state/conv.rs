//! Short convolutions along the tokens: `gpu/conv.h`.

use crate::cases::{
    Case, CaseArg, Expect, Random, SINGLE, Storage, floats, optional, output, words,
};
use crate::matrix::{CHUNK, Samples};
use crate::state::lanes::{Before, Sequences};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// A causal convolution of each channel by itself over the last tokens; those before the ones at
/// hand are a state, which is read and written.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvSpec {
    /// Channels.
    pub channels: usize,
    /// Tokens that go into one, itself included: from 2 to [`ConvSpec::MOST`].
    pub taps: usize,
    /// Each has a factor; else the oldest of them is the result.
    pub weights: bool,
    /// Offsets are added.
    pub bias: bool,
    /// The silu of it.
    pub silu: bool,
    /// The tokens are one sequence's, one behind the other; else each is a sequence's.
    pub one: bool,
}

arguments! {
    /// The arguments.
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
        /// Tokens at hand.
        tokens: U32,
        /// Bytes from one slot's state to the next one's.
        sequence_bytes: U64,
    }
}

const NAME: &str = "conv";
const BLOCK: u32 = 256;

impl ConvSpec {
    /// Tokens that go into one at most.
    pub const MOST: usize = 16;
    /// Tokens of one sequence that a block takes.
    pub const SLAB: u32 = 64;

    /// Numbers that a sequence keeps.
    #[must_use]
    pub fn state(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// Blocks that share a row.
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
            format!("{} channels over {} tokens: 2 to {}", self.channels, self.taps, ConvSpec::MOST)
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

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, &Sequences::of(self.one, size), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        // Fewer tokens than are kept, a whole slab and more; channels around a block; the first
        // tokens of a sequence, and later ones; all ends.
        for (channels, taps, ends, sequences) in [
            (5, 2, 0b001, Sequences::One { past: 0, tokens: 1 }),
            (257, 4, 0b111, Sequences::One { past: 9, tokens: 2 }),
            (300, 4, 0b101, Sequences::One { past: 0, tokens: 131 }),
            (64, 3, 0b001, Sequences::One { past: 3, tokens: 64 }),
            (70, 16, 0b011, Sequences::One { past: 70, tokens: 65 }),
            (33, 16, 0b001, Sequences::One { past: 2, tokens: 7 }),
            (48, 2, 0b000, Sequences::One { past: 5, tokens: 66 }),
            (48, 2, 0b000, Sequences::One { past: 0, tokens: 3 }),
            (256, 3, 0b001, Sequences::Several(vec![4])),
            (130, 4, 0b111, Sequences::Several(vec![0, 7, 1, 0, 30])),
            (48, 2, 0b000, Sequences::Several(vec![3, 0])),
        ] {
            let [weights, bias, silu] = [0, 1, 2].map(|bit| ends >> bit & 1 == 1);
            let one = matches!(sequences, Sequences::One { .. });
            let spec = ConvSpec { channels, taps, weights, bias, silu, one };
            into.push(case(&spec, target, 2, &sequences, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec =
            ConvSpec { channels: 8192, taps: 4, weights: true, bias: true, silu: true, one: true };
        list.add("conv 8192 × 4 silu".to_owned(), spec, CHUNK)
    }
}

/// What must come out, in f64.
fn case(
    spec: &ConvSpec,
    target: &Target,
    units: u32,
    sequences: &Sequences,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (channels, taps, before) = (spec.channels, spec.taps, spec.taps - 1);
    let rows = sequences.rows();
    let x = random.normals(rows * channels, 1.0);
    let w = if spec.weights { random.normals(channels * taps, 0.7) } else { vec![] };
    let b = if spec.bias { random.normals(channels, 0.5) } else { vec![] };
    let past = Before::of(sequences, spec.state(), random);
    let (mut want, mut after) = (vec![f64::NAN; rows * channels], past.poison());
    for s in past.each() {
        // Tokens from the oldest that is kept on.
        let token = |at: usize, c: usize| match at.checked_sub(before) {
            None => s.kept.get(at * channels + c).map_or(0.0, |&v| f64::from(v)),
            Some(t) => f64::from(x[(s.first + t) * channels + c]),
        };
        for t in 0..s.tokens {
            for c in 0..channels {
                let sum: f64 = (0..taps)
                    .map(|k| w.get(c * taps + k).map_or(0.0, |&w| f64::from(w)) * token(t + k, c))
                    .sum();
                let v = if spec.weights {
                    sum + b.get(c).map_or(0.0, |&b| f64::from(b))
                } else {
                    token(t, c)
                };
                want[(s.first + t) * channels + c] =
                    if spec.silu { v / (1.0 + (-v).exp()) } else { v };
            }
        }
        for i in 0..spec.state() {
            after[s.slot * spec.state() + i] = token(s.tokens + i / channels, i % channels);
        }
    }
    let launch = spec.launch(target, units, Size { tokens: rows, past: 0 })?;
    let name = format!("conv {channels} × {taps} {spec:?} of {sequences:?}");
    let args = ConvArgs {
        x: floats("x", &x),
        w: optional("w", &w),
        b: optional("b", &b),
        slots: past.slots(),
        position: words("position", &past.positions),
        state: CaseArg::Buffer {
            name: "state",
            before: past.bytes().into(),
            expect: Expect::Real { storage: Storage::F32, want: after, tolerance: SINGLE },
        },
        y: output("y", Storage::F32, want, SINGLE),
        tokens: CaseArg::U32(rows as u32),
        sequence_bytes: CaseArg::U64(4 * spec.state() as u64),
    };
    Case::of(name, spec, target, launch, args)
}
