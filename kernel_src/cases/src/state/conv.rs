//! Cases and samples of `conv`.

use crate::case::{Case, CaseArg, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::Samples;
use crate::state::sequences::{InitialStates, Sequences};
use kjit_engine::Target;
use kjit_kernels::conv::{ConvArgs, ConvSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for ConvSpec {
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
        // Fewer tokens than the state has, a whole slab and more; channels around the size of a
        // block; the first tokens of a sequence, and later ones; all epilogues.
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
        list.add("conv 8192 × 4 silu".to_owned(), spec, Size::CHUNK)
    }
}

/// Expected results, in f64.
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
    let past = InitialStates::of(sequences, spec.state(), random);
    let (mut want, mut after) = (vec![f64::NAN; rows * channels], past.poison());
    for s in past.each() {
        // Tokens are counted from the oldest one in the state.
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
