//! What samplers do to logits before a token is chosen, on the device: `gpu/adjust.h`.

use crate::cases::chosen::slots;
use crate::cases::{Case, CaseArg, Expect, FOLLOWS, Random, words};
use crate::choice::changes;
use crate::choice::changes::{Entry, HEAD, MOST};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Biases, a mask and penalties for rows of logits, by a list in each one's slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AdjustSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
}

arguments! {
    /// The arguments.
    AdjustArgs {
        /// `sequences × vocab` f32, changed in place.
        logits: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// [`changes::stride`] u32 per slot.
        lists: Pointer,
        /// Blocks of a sequence.
        blocks: U32,
    }
}

const NAME: &str = "adjust";
const BLOCK: u32 = 256;

impl AdjustSpec {
    /// Blocks for each sequence: also the last argument.
    #[must_use]
    pub fn blocks(&self, units: u32) -> u32 {
        (self.vocab as u32).div_ceil(4096).clamp(1, units.max(1))
    }

    /// A case of so many rows: every second slot has a mask, every third no entries.
    fn of(
        &self,
        target: &Target,
        blocks: u32,
        n: usize,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (vocab, stride) = (self.vocab, changes::stride(self.vocab));
        let logits = random.normals(n * vocab, 3.0);
        let mut lists = vec![0u32; n * stride];
        let mut want: Vec<f32> = logits.clone();
        let (order, slots) = slots(n);
        for (row, &slot) in order.iter().enumerate() {
            let (masked, repeat) = (slot % 2 == 1, 1.0 + random.unit() as f32);
            let some = if slot % 3 == 2 { 0 } else { (vocab / 3).clamp(1, MOST) };
            // Each id once, in no order.
            let step = (1..vocab).rev().find(|step| gcd(*step, vocab) == 1).unwrap_or(1);
            let entries: Vec<Entry> = (0..some)
                .map(|i| Entry {
                    id: ((i * step + 1) % vocab) as u32,
                    bias: if i % 7 == 3 {
                        f32::NEG_INFINITY
                    } else {
                        (random.unit() as f32 - 0.5) * 4.0
                    },
                    minus: random.unit() as f32,
                    repeated: i % 2 == 0,
                })
                .collect();
            let mask: Vec<u32> =
                (0..changes::mask(vocab)).map(|_| (random.unit() * 4e9) as u32).collect();
            let place = &mut lists[slot as usize * stride..][..stride];
            let words = changes::words(&entries, masked, repeat);
            place[..words.len()].copy_from_slice(&words);
            // One that does not count is there all the same.
            place[HEAD + 4 * MOST..][..mask.len()].copy_from_slice(&mask);
            let x = &mut want[row * vocab..][..vocab];
            for e in &entries {
                let v = &mut x[e.id as usize];
                *v += e.bias;
                if e.repeated {
                    *v = if *v > 0.0 { *v / repeat } else { *v * repeat };
                }
                *v -= e.minus;
            }
            for (id, v) in x.iter_mut().enumerate().filter(|_| masked) {
                if mask[id / 32] >> (id % 32) & 1 == 0 {
                    *v = f32::NEG_INFINITY;
                }
            }
        }
        let before = logits.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
        let expect = Expect::Bytes(want.iter().flat_map(|v| v.to_le_bytes()).collect());
        let args = AdjustArgs {
            logits: CaseArg::Buffer { name: "logits", before, expect },
            slots,
            lists: words("lists", &lists),
            blocks: FOLLOWS,
        };
        let grid = Grid::of([blocks, n as u32, 1]).number("blocks", blocks);
        let launch = Launch::of(self.block(target, &Fixed)?, grid);
        Case::of(format!("adjust {n} × {vocab}, {blocks} blocks"), self, target, launch, args)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Family for AdjustSpec {
    const NAME: &'static str = NAME;
    type Args<A> = AdjustArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}", self.vocab)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        require((1..1 << 22).contains(&self.vocab), NAME, || {
            format!("a vocabulary of {}", self.vocab)
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let stride = changes::stride(self.vocab);
        let shape =
            Shape::new().number("VOCAB", self.vocab).number("MOST", MOST).number("STRIDE", stride);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        let blocks = self.blocks(units);
        Ok(Grid::of([blocks, size.tokens.max(1) as u32, 1]).number("blocks", blocks))
    }

    fn work(&self, size: Size) -> Work {
        // As if each had a mask.
        Work::moves(4 * self.vocab * size.tokens)
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        self.of(target, self.blocks(units), size.tokens.max(1), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for (vocab, blocks, n) in [(1009, 3, 4), (2052, 1, 2), (7, 2, 3), (64, 5, 1), (4133, 2, 2)]
        {
            into.push(AdjustSpec { vocab }.of(target, blocks, n, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("adjust".to_owned(), AdjustSpec { vocab: 128_256 }, ONE)
    }
}
