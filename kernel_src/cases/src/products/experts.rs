//! Cases and samples of products with experts' matrices.

use crate::case::{Case, CaseArg, FOLLOWS, floats, input, optional, output, words};
use crate::cases::Cases;
use crate::data::{Matrix, Random};
use crate::expect::{Storage, Tolerance};
use crate::oracle::{EPS, activations, aux, exact, gelu, prologues, silu};
use crate::samples::{Samples, format};
use kjit_engine::Target;
use kjit_formats::format::Format;
use kjit_kernels::activations::Prologue;
use kjit_kernels::experts::{ExpertFinish, ExpertsArgs, ExpertsSpec};
use kjit_kernels::matvec::MatvecTuning;
use kjit_kernels::{Family, Size, SpecError};

/// A case with `stack` experts' matrices on a device of `units` compute units. The last `idle`
/// tokens of the spec are not in use: their activations, choices and shares are poison, and their
/// results must stay unwritten.
fn case(
    spec: &ExpertsSpec,
    target: &Target,
    (units, stack, idle): (u32, usize, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (cols, rows) = (spec.cols, spec.rows);
    let (slots, used) = (spec.tokens * spec.top, spec.tokens - idle);
    let number = |i: usize| if spec.all { i % spec.top } else { (i * 3 + 4) % stack };
    let mut chosen: Vec<u32> = (0..slots).map(|i| number(i) as u32).collect();
    let mut shares = random.normals(slots, 1.0);
    let mut x = random.activations(spec.columns() * cols);
    let aux = aux(spec.prologue, spec.columns(), cols, random);
    let columns = prologues(spec.prologue, cols, &x, &aux);
    let gated = spec.gated();
    let first = Matrix::random(spec.format, stack * rows, cols, random)?;
    let second =
        if gated { Some(Matrix::random(spec.format, stack * rows, cols, random)?) } else { None };
    let limit = 1.5;
    let biases = [spec.bias, spec.bias && gated]
        .map(|b| if b { random.normals(stack * rows, 1.0) } else { vec![] });
    let dots = |m: &Matrix| -> Vec<Vec<f64>> { columns.iter().map(|c| m.dots(c)).collect() };
    let (firsts, seconds) = (dots(&first), second.as_ref().map(dots));
    let dot = |dots: &[Vec<f64>], bias: &[f32], slot: usize, row: usize| {
        let column = if spec.per_slot { slot } else { slot / spec.top };
        let at = chosen[slot] as usize * rows + row;
        dots[column][at % first.distinct] + bias.get(at).map_or(0.0, |&b| f64::from(b))
    };
    let residual = if spec.finish == (ExpertFinish::Sum { residual: true }) {
        random.normals(spec.tokens * rows, 1.0)
    } else {
        vec![]
    };
    let mut want = vec![];
    if let ExpertFinish::Sum { .. } = spec.finish {
        for t in 0..spec.tokens {
            for row in 0..rows {
                let slot = |s: usize| {
                    f64::from(shares[t * spec.top + s])
                        * dot(&firsts, &biases[0], t * spec.top + s, row)
                };
                let sum: f64 = (0..spec.top).map(slot).sum();
                want.push(sum + residual.get(t * rows + row).map_or(0.0, |&v| f64::from(v)));
            }
        }
    } else {
        for slot in 0..slots {
            for row in 0..rows {
                let a = dot(&firsts, &biases[0], slot, row);
                let b = seconds.as_ref().map_or(1.0, |m| dot(m, &biases[1], slot, row));
                want.push(match spec.finish {
                    ExpertFinish::Silu => silu(a) * b,
                    ExpertFinish::Gelu => gelu(a) * b,
                    ExpertFinish::ClampedSilu => {
                        let (l, g) = (f64::from(limit), a.min(f64::from(limit)));
                        g / (1.0 + (-1.702 * g).exp()) * (b.clamp(-l, l) + 1.0)
                    }
                    ExpertFinish::Store | ExpertFinish::Sum { .. } => a,
                });
            }
        }
    }
    // Never written: used as an index, poison is far beyond the matrices.
    chosen[used * spec.top..].fill(u32::MAX);
    shares[used * spec.top..].fill(f32::NAN);
    x[spec.columns() / spec.tokens * used * cols..].fill(f32::NAN);
    let width = want.len() / spec.tokens;
    want[used * width..].fill(f64::NAN);
    let base = exact(&spec.column()?);
    let tolerance = Tolerance { norm: 2.0 * base.norm, each: 4.0 * base.each, ..base };
    let t = spec.tuning(target)?;
    let name = format!(
        "experts {} {rows} × {cols}, {used} of {} tokens × {}, {:?}, {:?}, offsets {}, all {}, \
         wave {} team {} rows {} in flight {}",
        spec.format,
        spec.tokens,
        spec.top,
        spec.prologue,
        spec.finish,
        spec.bias,
        spec.all,
        t.wave,
        t.team,
        t.rows,
        t.in_flight
    );
    let args = ExpertsArgs {
        x: activations(spec.quantized, &spec.column()?, &x),
        aux: optional("aux", &aux),
        chosen: if spec.all { CaseArg::Null } else { words("chosen", &chosen) },
        shares: floats("shares", &shares),
        residual: optional("residual", &residual),
        w0: input("w0", first.records),
        w1: second.map_or(CaseArg::Null, |m| input("w1", m.records)),
        b0: optional("b0", &biases[0]),
        b1: optional("b1", &biases[1]),
        y: output("y", Storage::F32, want, tolerance),
        eps: CaseArg::F32(EPS),
        limit: CaseArg::F32(limit),
        tokens: FOLLOWS,
        blocks: FOLLOWS,
    };
    let size = Size { tokens: used, past: 0 };
    Case::of(name, spec, target, spec.launch(target, units, size)?, args)
}

impl Cases for ExpertsSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        _: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        // Twice as many matrices as are chosen, so that reads of other matrices are detected.
        case(self, target, (units, 2 * self.top * self.tokens + 1, 0), random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let tuning = |team, rows, in_flight| {
            Some(MatvecTuning {
                wave,
                block: 2 * wave,
                team,
                rows,
                in_flight,
                blocks_per_unit: 1,
                alone: false,
            })
        };
        for (format, rows, cols, (tokens, idle), top, per_slot, prologue, finish, tuning, bias) in [
            (
                "Q4_K",
                35,
                512,
                (1, 0),
                4,
                false,
                Prologue::Norm,
                ExpertFinish::Silu,
                tuning(16, 1, 2),
                false,
            ),
            (
                "Q6_K",
                33,
                768,
                (1, 0),
                4,
                true,
                Prologue::None,
                ExpertFinish::Sum { residual: true },
                tuning(wave, 2, 1),
                false,
            ),
            (
                "Q8_0",
                17,
                96,
                (3, 1),
                2,
                false,
                Prologue::None,
                ExpertFinish::Gelu,
                tuning(2 * wave, 1, 1),
                false,
            ),
            (
                "F16",
                19,
                72,
                (2, 0),
                3,
                true,
                Prologue::Gelu,
                ExpertFinish::Sum { residual: false },
                tuning(8, 1, 2),
                false,
            ),
            (
                "Q5_K",
                18,
                256,
                (5, 4),
                4,
                true,
                Prologue::None,
                ExpertFinish::Sum { residual: true },
                tuning(wave, 1, 1),
                false,
            ),
            (
                "MXFP4",
                21,
                160,
                (2, 0),
                2,
                true,
                Prologue::None,
                ExpertFinish::Store,
                tuning(4, 2, 3),
                false,
            ),
            (
                "IQ2_XS",
                23,
                512,
                (2, 1),
                2,
                false,
                Prologue::Norm,
                ExpertFinish::Silu,
                tuning(4, 2, 1),
                false,
            ),
            (
                "NVFP4",
                13,
                192,
                (2, 0),
                3,
                true,
                Prologue::None,
                ExpertFinish::Sum { residual: false },
                tuning(wave, 1, 2),
                false,
            ),
            (
                "Q4_0",
                18,
                64,
                (27, 10),
                3,
                false,
                Prologue::None,
                ExpertFinish::Silu,
                tuning(8, 1, 1),
                false,
            ),
            (
                "MXFP4",
                35,
                192,
                (2, 1),
                4,
                false,
                Prologue::Norm,
                ExpertFinish::ClampedSilu,
                tuning(8, 2, 1),
                true,
            ),
            (
                "MXFP4",
                33,
                64,
                (2, 0),
                4,
                true,
                Prologue::None,
                ExpertFinish::Sum { residual: true },
                tuning(4, 1, 2),
                true,
            ),
            (
                "Q8_0",
                17,
                96,
                (3, 1),
                2,
                true,
                Prologue::None,
                ExpertFinish::Store,
                tuning(wave, 1, 1),
                true,
            ),
            (
                "F16",
                19,
                72,
                (1, 0),
                3,
                false,
                Prologue::None,
                ExpertFinish::Silu,
                tuning(8, 1, 2),
                true,
            ),
        ] {
            let Some(format) = Format::by_name(format) else { continue };
            let (quantized, all) = (false, false);
            let spec = ExpertsSpec {
                format,
                rows,
                cols,
                tokens,
                top,
                per_slot,
                prologue,
                quantized,
                all,
                bias,
                finish,
                tuning,
            };
            into.push(case(&spec, target, (2, 5, idle), random)?);
            if prologue == Prologue::None && !bias {
                // With all `top` matrices.
                let spec = ExpertsSpec { all: true, finish: ExpertFinish::Store, ..spec };
                into.push(case(&spec, target, (2, top, idle), random)?);
            }
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for name in ["Q4_K", "Q6_K", "Q8_0"] {
            let gated = ExpertsSpec {
                format: format(name),
                rows: 768,
                cols: 2048,
                tokens: 1,
                top: 8,
                per_slot: false,
                prologue: Prologue::Norm,
                quantized: false,
                all: false,
                bias: false,
                finish: ExpertFinish::Silu,
                tuning: None,
            };
            list.add(format!("experts {name} gated"), gated.clone(), Size::ONE)?;
            let finish = ExpertFinish::Sum { residual: true };
            let sum = ExpertsSpec {
                rows: 2048,
                cols: 768,
                per_slot: true,
                prologue: Prologue::None,
                finish,
                ..gated
            };
            list.add(format!("experts {name} sum"), sum, Size::ONE)?;
        }
        Ok(())
    }
}
