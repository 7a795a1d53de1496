//! A token drawn at random on the device, and the sequence moved on: `gpu/draw.h`.

use crate::cases::chosen::{largest, moved, slots};
use crate::cases::{Case, CaseArg, FOLLOWS, Random, floats, words};
use crate::choice::argmax::{ChoiceTuning, MOVES, coarse};
use crate::choice::noise::{Noise, inverse};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::choice;
use kjit_engine::{Constants, Dot, Target, Vendor};
use std::fmt;

/// Draws a token for each sequence: top-k, temperature, top-p, min-p, in this order. It is written
/// behind the token that the logits came from, and the position advanced. Several blocks share a
/// sequence's logits and meet in device memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DrawSpec {
    /// Size of the vocabulary.
    pub vocab: usize,
    /// The block; `None`: the family's.
    pub tuning: Option<ChoiceTuning>,
}

arguments! {
    /// The arguments.
    DrawArgs {
        /// `sequences × vocab` f32.
        logits: Pointer,
        /// A u64 for each slot: what its noise is made of, with the token's position and id
        /// ([`crate::noise`]).
        seeds: Pointer,
        /// The last four arguments for each slot, or null: then the arguments count for all.
        options: Pointer,
        /// A u32 per sequence, its slot; null: sequence `s` has slot `s`.
        slots: Pointer,
        /// `slots × capacity` u32.
        tokens: Pointer,
        /// A u32 per slot: the position of the token that the logits came from.
        position: Pointer,
        /// [`WORK`] bytes a sequence, zero before the first launch and after every one.
        work: Pointer,
        /// [`SAID`] bytes a sequence of working memory.
        said: Pointer,
        /// Positions of a slot.
        capacity: U32,
        /// Among so many of the likeliest; 0: all.
        top_k: U32,
        /// Multiplies logits: [`crate::noise::inverse`] of the temperature.
        inverse: F32,
        /// Among the likeliest whose probabilities reach this; 1: all.
        top_p: F32,
        /// Among those at least this times as likely as the likeliest; 0: all.
        min_p: F32,
        /// Blocks of a sequence. With more than one the launch is cooperative: they meet.
        blocks: U32,
    }
}

const NAME: &str = "draw";

/// Threads of a block.
const THREADS: u32 = 512;
/// Blocks that draw from one row of logits at most: with 32 a thread reads eight logits of a
/// vocabulary of 128k at once. Among many (top-k off, or above 64) sixteen of them draw.
const MOST_BLOCKS: u32 = 32;

/// Bytes in which the blocks of one sequence meet: three sets of 2048 weights and counts, two
/// counters (`DrawMeeting` in `gpu/draw.h`).
pub const WORK: usize = 3 * 2048 * (8 + 4) + 8;

/// Bytes in which they tell each other the likeliest of each, extremes, sums and an id
/// (`DrawSaid`).
pub const SAID: usize = MOST_BLOCKS as usize * 64 * 8 + 16 * (16 + 8) + 8;

/// Top-k, temperature, top-p, min-p.
type Chances = (u32, f32, f32, f32);

/// The host's definition: cuts in f64, the draw as [`crate::noise`] has it.
fn choose(row: &[f32], (top_k, temperature, top_p, min_p): Chances, noise: Noise) -> u32 {
    let mut order: Vec<usize> = (0..row.len()).filter(|&i| !row[i].is_nan()).collect();
    let best_first = |&a: &usize, &b: &usize| {
        row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b))
    };
    let top_k = top_k as usize;
    if (1..order.len()).contains(&top_k) {
        order.select_nth_unstable_by(top_k - 1, best_first);
        order.truncate(top_k);
    }
    order.sort_unstable_by(best_first);
    let weight = |i: usize| (f64::from(row[i] - row[order[0]]) / f64::from(temperature)).exp();
    let sum: f64 = order.iter().map(|&i| weight(i)).sum();
    let mut kept = vec![];
    let mut so_far = 0.0;
    for &i in &order {
        kept.push(i);
        so_far += weight(i);
        if top_p < 1.0 && so_far >= f64::from(top_p) * sum {
            break;
        }
    }
    kept.retain(|&i| weight(i) >= f64::from(min_p));
    let largest = row[order[0]];
    noise
        .draw(kept.iter().map(|&i| (i as u32, row[i] - largest)), inverse(temperature))
        .unwrap_or(order[0] as u32)
}

impl DrawSpec {
    /// Blocks for each of so many sequences: also the last argument. All must be resident; fewer
    /// than 2048 logits a block are not worth a meeting.
    #[must_use]
    pub fn blocks(&self, units: u32, sequences: u32) -> u32 {
        (units / sequences.max(1)).min(MOST_BLOCKS).min((self.vocab as u32).div_ceil(2048)).max(1)
    }

    fn grid_of(blocks: u32, sequences: usize) -> Grid {
        let grid = Grid::of([blocks, sequences as u32, 1])
            .number("blocks", blocks)
            .cooperative(blocks > 1);
        grid.zeroed("work", WORK * sequences).memory("said", SAID * sequences)
    }

    /// A case of these logits in so many blocks for each sequence; with options of their own where
    /// `own`.
    fn of(
        &self,
        target: &Target,
        (blocks, capacity): (u32, u32),
        (logits, options, own): (&[f32], Chances, bool),
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let n = logits.len() / self.vocab;
        let seeds: Vec<u64> = (0..n).map(|_| random.bits()).collect();
        let positions: Vec<u32> = (0..n as u32).map(|s| s % 8).collect();
        // With options of their own, every second slot is greedy.
        let of = |slot: u32| if own && slot % 2 == 1 { (1, 1.0, 1.0, 0.0) } else { options };
        let chosen: Vec<u32> = logits
            .chunks(self.vocab)
            .zip(slots(n).0)
            .map(|(row, slot)| {
                let (first, at) = (largest(row), slot as usize);
                let noise = Noise { seed: seeds[at], position: positions[at] + 1 };
                if row[first as usize].is_finite() { choose(row, of(slot), noise) } else { first }
            })
            .collect();
        let each: Vec<u32> = (0..n as u32)
            .map(of)
            .flat_map(|(top_k, temperature, top_p, min_p)| {
                [top_k, inverse(temperature).to_bits(), top_p.to_bits(), min_p.to_bits()]
            })
            .collect();
        let halves: Vec<u32> = seeds.iter().flat_map(|s| [*s as u32, (s >> 32) as u32]).collect();
        let [slots, tokens, position] = moved(&positions, capacity, &chosen);
        // What is not to be read is wrong.
        let (top_k, temperature, top_p, min_p) =
            if own { (1, f32::NAN, f32::NAN, f32::NAN) } else { options };
        let tuning = self.tuning(target)?;
        let chances = format!(
            "top-k {top_k} temperature {temperature} top-p {top_p} min-p {min_p}, own {own}"
        );
        let name =
            format!("draw {n} × {}, {chances}, {blocks} blocks, wave {}", self.vocab, tuning.wave);
        let launch = Launch::of(self.block(target, &tuning)?, DrawSpec::grid_of(blocks, n));
        let args = DrawArgs {
            logits: floats("logits", logits),
            seeds: words("seeds", &halves),
            options: if own { words("options", &each) } else { CaseArg::Null },
            slots,
            tokens,
            position,
            work: CaseArg::Null,
            said: CaseArg::Null,
            capacity: CaseArg::U32(capacity),
            top_k: CaseArg::U32(top_k),
            inverse: CaseArg::F32(inverse(temperature)),
            top_p: CaseArg::F32(top_p),
            min_p: CaseArg::F32(min_p),
            blocks: FOLLOWS,
        };
        Case::of(name, self, target, launch, args)
    }
}

impl Family for DrawSpec {
    const NAME: &'static str = NAME;
    type Args<A> = DrawArgs<A>;
    choice!(ChoiceTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "of {}", self.vocab)
    }

    /// 1024 threads leave each 64 registers, and 13 spilled on sm_90.
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
            // Not told that one block a unit is enough, ptxas makes room for two on sm_90, and five
            // registers spill.
            macros = macros.set("KJ_MIN_BLOCKS", 1);
        }
        // Three scalar registers spill with both ways in one kernel on gfx803 and gfx900 and their
        // kin.
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

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let logits = random.normals(size.tokens.max(1) * self.vocab, 3.0);
        self.of(
            target,
            (self.blocks(units, size.tokens as u32), MOVES),
            (&logits, (40, 0.8, 0.95, 0.05), false),
            random,
        )
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let spec = |vocab| DrawSpec { vocab, tuning: Some(ChoiceTuning { wave, block: 2 * wave }) };
        let vocab = 1009;
        let logits = coarse(vocab, random);
        // Blocks that meet must all be resident: seven of four sequences are on any device, the
        // simulated one included.
        let all = [
            (0, 1.0, 1.0, 0.0),
            (40, 0.8, 1.0, 0.0),
            (0, 1.3, 0.9, 0.0),
            (100, 0.7, 0.95, 0.05),
            (1, 1.0, 1.0, 0.0),
        ];
        for options in all {
            into.push(spec(vocab).of(target, (2, 9), (&logits, options, false), random)?);
        }
        // Among few: one, as many as there may be, one more; equals at the border of top-k and of
        // top-p; by one block that reads its logits in several rounds, and by more than fit into a
        // wave.
        for (blocks, options) in [
            (1, (64, 0.9, 1.0, 0.0)),
            (7, (64, 1.1, 0.9, 0.0)),
            (3, (65, 1.1, 0.9, 0.0)),
            (5, (2, 2.0, 0.5, 0.0)),
            (4, (63, 50.0, 0.999, 0.5)),
            (6, (1, 0.7, 0.5, 0.1)),
        ] {
            into.push(spec(vocab).of(
                target,
                (blocks, 9),
                (&logits[3 * vocab..], options, false),
                random,
            )?);
        }
        into.push(spec(vocab).of(
            target,
            (2, 9),
            (&logits, (40, 0.9, 0.95, 0.02), true),
            random,
        )?);
        into.push(spec(vocab).of(
            target,
            (1, 9),
            (&logits, (40, 0.9, 0.95, 0.02), true),
            random,
        )?);
        into.push(spec(vocab).of(
            target,
            (7, 9),
            (&logits[3 * vocab..], (100, 0.7, 0.95, 0.05), false),
            random,
        )?);
        into.push(spec(5).of(
            target,
            (7, 9),
            (&[0.5, 0.5, -1.0, 0.5, 0.25], (2, 1.0, 0.9, 0.0), false),
            random,
        )?);
        // A vocabulary that is read four at a time, hardly any equals, and what has no finite
        // distance from the rest.
        let vocab = 2052;
        let mut logits = random.normals(3 * vocab, 5.0);
        logits[..vocab].iter_mut().step_by(3).for_each(|v| *v = f32::NEG_INFINITY);
        logits[vocab..vocab + 2000].fill(2.5);
        logits[2 * vocab + 5] = 3e38;
        logits[2 * vocab + 6] = -3e38;
        logits[2 * vocab + 7] = f32::NAN;
        for options in [
            (40, 0.8, 0.95, 0.05),
            (2000, 100.0, 0.5, 0.0),
            (0, 1e-3, 0.9, 0.0),
            (0, 4.0, 0.999, 0.0),
            (0, 1e30, 1.0, 0.1),
        ] {
            into.push(spec(vocab).of(target, (2, 9), (&logits, options, false), random)?);
            into.push(spec(vocab).of(target, (1, 9), (&logits, options, false), random)?);
        }
        // Hardly any tokens, and none that is a number.
        for (vocab, options) in
            [(1, (0, 1.0, 0.5, 0.0)), (33, (33, 0.7, 1e-6, 0.0)), (65, (70, 1.0, 1.0, 1.0))]
        {
            let logits = random.normals(2 * vocab, 2.0);
            into.push(spec(vocab).of(target, (3, 9), (&logits, options, false), random)?);
        }
        into.push(spec(31).of(
            target,
            (3, 9),
            (&[f32::NAN; 31], (0, 1.0, 0.9, 0.0), false),
            random,
        )?);
        into.push(spec(64).of(
            target,
            (3, 9),
            (&[f32::NEG_INFINITY; 64], (5, 1.0, 0.9, 0.0), false),
            random,
        )?);
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("draw".to_owned(), DrawSpec { vocab: 128_256, tuning: None }, ONE)?;
        for wave in list.other_waves() {
            let spec =
                DrawSpec { vocab: 128_256, tuning: Some(ChoiceTuning { wave, block: THREADS }) };
            list.add(format!("draw @ wave {wave}"), spec, ONE)?;
        }
        Ok(())
    }
}
