//! Cases and samples of `linear`.

use crate::case::{Case, CaseArg, floats, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Expect, SINGLE, Storage};
use crate::samples::Samples;
use crate::state::sequences::{InitialStates, Sequences};
use kjit_engine::Target;
use kjit_kernels::linear::{LinearArgs, LinearSpec};
use kjit_kernels::{Family, Size, SpecError};

impl Cases for LinearSpec {
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
        // Numbers of keys around the threads of a row; values of other sizes; each variant;
        // beginnings and later tokens.
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
        list.add("linear 32 × 128 × 128 corrected".to_owned(), spec, Size::CHUNK)
    }
}

/// Expected results, in f64.
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
    // Keys of about unit length, as in models: otherwise the correction grows without bound.
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
    let past = InitialStates::of(sequences, spec.state(), random);
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
