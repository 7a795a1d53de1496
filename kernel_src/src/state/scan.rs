//! The recurrence of selective state spaces: `gpu/scan.h`.

use crate::cases::{Case, CaseArg, Expect, Random, SINGLE, Storage, floats, output, words};
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

/// A selective state space (Gu & Dao 2023, arXiv 2312.00752; Dao & Gu 2024, arXiv 2405.21060): what
/// its channels keep is a state, which is read and written.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScanSpec {
    /// Heads, each with a step of its own.
    pub heads: usize,
    /// Channels of a head.
    pub channels: usize,
    /// Numbers that a channel keeps.
    pub n: usize,
    /// Groups of neighbouring heads that share what goes into the state and what comes out.
    pub groups: usize,
    /// Each of the `n` numbers has a rate of decay; else a head has one.
    pub each: bool,
    /// The tokens are one sequence's, one behind the other; else each is a sequence's.
    pub one: bool,
}

arguments! {
    /// The arguments.
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
        /// Tokens at hand.
        tokens: U32,
        /// Bytes from one slot's state to the next one's.
        sequence_bytes: U64,
    }
}

const NAME: &str = "scan";
const BLOCK: u32 = 256;

impl ScanSpec {
    /// Numbers that a sequence keeps.
    #[must_use]
    pub fn state(&self) -> usize {
        self.heads * self.channels * self.n
    }

    /// Blocks for a sequence.
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
                "{self:?}: up to {LONGEST} numbers of a channel are covered, whole groups of heads"
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
        // A channel a head and many; numbers around the threads of a row; groups; beginnings and
        // later tokens.
        for (heads, channels, n, groups, each, sequences) in [
            (37, 1, 16, 1, true, Sequences::One { past: 0, tokens: 5 }),
            (19, 1, 24, 1, true, Sequences::One { past: 3, tokens: 11 }),
            (4, 8, 128, 2, false, Sequences::One { past: 7, tokens: 9 }),
            (6, 5, 19, 3, false, Sequences::One { past: 0, tokens: 1 }),
            (3, 7, 5, 1, false, Sequences::One { past: 1, tokens: 33 }),
            (2, 3, 1, 2, false, Sequences::One { past: 2, tokens: 4 }),
            (2, 2, 512, 1, false, Sequences::Several(vec![6])),
            (8, 4, 32, 2, false, Sequences::Several(vec![0, 5, 1, 0])),
            (21, 1, 8, 1, true, Sequences::Several(vec![9, 0, 2])),
        ] {
            let one = matches!(sequences, Sequences::One { .. });
            let spec = ScanSpec { heads, channels, n, groups, each, one };
            into.push(case(&spec, target, 2, &sequences, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec = ScanSpec { heads: 32, channels: 128, n: 256, groups: 1, each: false, one: true };
        list.add("scan 32 × 128 × 256".to_owned(), spec, CHUNK)
    }
}

/// What must come out, in f64.
fn case(
    spec: &ScanSpec,
    target: &Target,
    units: u32,
    sequences: &Sequences,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let &ScanSpec { heads, channels, n, groups, each, .. } = spec;
    let (rows, width) = (sequences.rows(), heads * channels);
    let mut numbers = |count: usize, by: f64| random.normals(count, by);
    let (x, b, c) = (
        numbers(rows * width, 1.0),
        numbers(rows * groups * n, 1.0),
        numbers(rows * groups * n, 1.0),
    );
    // Steps above zero and rates below, from what stays whole to what is gone.
    let dt: Vec<f32> = numbers(rows * heads, 1.0).iter().map(|v| v.abs() + 1e-3).collect();
    let a: Vec<f32> =
        numbers(heads * if each { n } else { 1 }, 1.5).iter().map(|v| -v.abs()).collect();
    let d = numbers(heads, 1.0);
    let past = Before::of(sequences, spec.state(), random);
    let f = |v: &[f32], i: usize| f64::from(v[i]);
    let (mut want, mut after) = (vec![f64::NAN; rows * width], past.poison());
    for s in past.each() {
        let state = &mut after[s.slot * spec.state()..][..spec.state()];
        state
            .iter_mut()
            .enumerate()
            .for_each(|(i, h)| *h = s.kept.get(i).map_or(0.0, |&v| f64::from(v)));
        for t in s.first..s.first + s.tokens {
            for (row, h) in state.chunks_exact_mut(n).enumerate() {
                let (head, x) = (row / channels, f(&x, t * width + row));
                let (dt, at) = (f(&dt, t * heads + head), (t * groups + head * groups / heads) * n);
                let mut sum = 0.0;
                for (i, h) in h.iter_mut().enumerate() {
                    let rate = if each { f(&a, head * n + i) } else { f(&a, head) };
                    *h = (dt * rate).exp() * *h + dt * x * f(&b, at + i);
                    sum += *h * f(&c, at + i);
                }
                want[t * width + row] = sum + f(&d, head) * x;
            }
        }
    }
    let launch = spec.launch(target, units, Size { tokens: rows, past: 0 })?;
    let args = ScanArgs {
        x: floats("x", &x),
        dt: floats("dt", &dt),
        b: floats("b", &b),
        c: floats("c", &c),
        a: floats("a", &a),
        d: floats("d", &d),
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
