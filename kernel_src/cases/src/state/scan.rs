//! Cases and samples of `scan`.

use crate::case::{Case, CaseArg, floats, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::Samples;
use crate::state::sequences::{InitialStates, Sequences};
use kjit_engine::Target;
use kjit_kernels::scan::{ScanArgs, ScanSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for ScanSpec {
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
        // One channel per head and many; numbers around the threads of a row; groups; beginnings
        // and later tokens.
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
        list.add("scan 32 × 128 × 256".to_owned(), spec, Size::CHUNK)
    }
}

/// Expected results, in f64.
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
    // Positive steps and negative rates, with decay from none to complete.
    let dt: Vec<f32> = numbers(rows * heads, 1.0).iter().map(|v| v.abs() + 1e-3).collect();
    let a: Vec<f32> =
        numbers(heads * if each { n } else { 1 }, 1.5).iter().map(|v| -v.abs()).collect();
    let d = numbers(heads, 1.0);
    let past = InitialStates::of(sequences, spec.state(), random);
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
