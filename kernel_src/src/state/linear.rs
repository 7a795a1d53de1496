//! Attention whose past is one matrix for each head: `gpu/linear.h`.

use crate::cases::{
    Case, CaseArg, Expect, Random, SINGLE, Storage, floats, optional, output, words,
};
use crate::matrix::{CHUNK, Samples};
use crate::state::lanes::{Before, LONGEST, Sequences, lanes};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Linear attention with decay, and with a correction (the delta rule, Yang et al. 2024, arXiv
/// 2412.06464; RWKV-7, arXiv 2503.14456) or a bonus (RWKV-6, arXiv 2404.05892): each head's matrix
/// is a state, which is read and written. The state lies value by value, the keys of one side by
/// side.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinearSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a head's key.
    pub keys: usize,
    /// Elements of a head's value.
    pub values: usize,
    /// Each element of a key decays by itself; else a head does.
    pub each: bool,
    /// The state is corrected.
    pub corrected: bool,
    /// A token's own key and value count by a weight, and go into the state behind its result.
    pub bonus: bool,
    /// The tokens are one sequence's, one behind the other; else each is a sequence's.
    pub one: bool,
}

arguments! {
    /// The arguments.
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
        /// Tokens at hand.
        tokens: U32,
        /// Bytes from one slot's state to the next one's.
        sequence_bytes: U64,
    }
}

const NAME: &str = "linear";
const BLOCK: u32 = 256;

impl LinearSpec {
    /// Numbers that a sequence keeps.
    #[must_use]
    pub fn state(&self) -> usize {
        self.heads * self.keys * self.values
    }

    /// Blocks for a sequence.
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
            format!("{self:?}: keys of up to {LONGEST} are covered")
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
        // Keys around the threads of a row; values of other sizes; with each end; beginnings and
        // later tokens.
        for (heads, keys, values, ends, sequences) in [
            (4, 32, 32, 0b010, Sequences::One { past: 0, tokens: 7 }),
            (2, 128, 20, 0b010, Sequences::One { past: 5, tokens: 19 }),
            (3, 19, 11, 0b011, Sequences::One { past: 2, tokens: 4 }),
            (2, 64, 64, 0b011, Sequences::One { past: 0, tokens: 1 }),
            (3, 5, 9, 0b101, Sequences::One { past: 4, tokens: 12 }),
            (2, 64, 33, 0b101, Sequences::One { past: 0, tokens: 6 }),
            (5, 16, 7, 0b000, Sequences::One { past: 1, tokens: 3 }),
            (1, 512, 3, 0b010, Sequences::Several(vec![8])),
            (2, 32, 16, 0b010, Sequences::Several(vec![0, 5, 1, 0])),
            (2, 24, 16, 0b101, Sequences::Several(vec![3, 0])),
        ] {
            let [each, corrected, bonus] = [0, 1, 2].map(|bit| ends >> bit & 1 == 1);
            let one = matches!(sequences, Sequences::One { .. });
            let spec = LinearSpec { heads, keys, values, each, corrected, bonus, one };
            into.push(case(&spec, target, 2, &sequences, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec = LinearSpec {
            heads: 32,
            keys: 128,
            values: 128,
            each: true,
            corrected: true,
            bonus: false,
            one: true,
        };
        list.add("linear 32 × 128 × 128 corrected".to_owned(), spec, CHUNK)
    }
}

/// What must come out, in f64.
fn case(
    spec: &LinearSpec,
    target: &Target,
    units: u32,
    sequences: &Sequences,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let &LinearSpec { heads, keys, values, each, corrected, bonus, .. } = spec;
    let rows = sequences.rows();
    let mut numbers = |count: usize, by: f64| random.normals(count, by);
    // Keys of length one or so, as models make them: else the correction grows without bound.
    let by = 1.0 / (keys as f64).sqrt();
    let (q, k) = (numbers(rows * heads * keys, 1.0), numbers(rows * heads * keys, by));
    let v = numbers(rows * heads * values, 1.0);
    let w: Vec<f32> = numbers(rows * heads * if each { keys } else { 1 }, 1.0)
        .iter()
        .map(|v| (-v.abs()).exp())
        .collect();
    let mut some = |on: bool, count: usize, by: f64| if on { numbers(count, by) } else { vec![] };
    let a = some(corrected, rows * heads * keys, by);
    let b = some(corrected, rows * heads * keys, by);
    let u = some(bonus, heads * keys, 1.0);
    let past = Before::of(sequences, spec.state(), random);
    let f = |v: &[f32], i: usize| f64::from(v[i]);
    let (mut want, mut after) = (vec![f64::NAN; rows * heads * values], past.poison());
    for s in past.each() {
        let state = &mut after[s.slot * spec.state()..][..spec.state()];
        state
            .iter_mut()
            .enumerate()
            .for_each(|(i, h)| *h = s.kept.get(i).map_or(0.0, |&v| f64::from(v)));
        for t in s.first..s.first + s.tokens {
            for (row, column) in state.chunks_exact_mut(keys).enumerate() {
                let at = t * heads + row / values;
                let value = f(&v, t * heads * values + row);
                let taken: f64 = if corrected {
                    (0..keys).map(|j| f(&a, at * keys + j) * column[j]).sum()
                } else {
                    0.0
                };
                let mut sum = 0.0;
                for (i, h) in column.iter_mut().enumerate() {
                    let (before, own) = (*h, f(&k, at * keys + i) * value);
                    *h = f(&w, if each { at * keys + i } else { at }) * before + own;
                    if corrected {
                        *h += f(&b, at * keys + i) * taken;
                    }
                    let seen =
                        if bonus { before + f(&u, row / values * keys + i) * own } else { *h };
                    sum += f(&q, at * keys + i) * seen;
                }
                want[t * heads * values + row] = sum;
            }
        }
    }
    let launch = spec.launch(target, units, Size { tokens: rows, past: 0 })?;
    let args = LinearArgs {
        q: floats("q", &q),
        k: floats("k", &k),
        v: floats("v", &v),
        w: floats("w", &w),
        a: optional("a", &a),
        b: optional("b", &b),
        u: optional("u", &u),
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
    Case::of(format!("{spec:?} of {sequences:?}"), spec, target, launch, args)
}
