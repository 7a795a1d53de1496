//! Cases of the matrix–vector product.

use super::data::Matrix;
use super::{Case, CaseArg, QUANTISED, Random, SINGLE, Storage, Tolerance, floats, input, output};
use crate::activations::{Column, Form, Prologue};
use crate::format::{ALL, Format};
use crate::kernel::SpecError;
use crate::matvec::{MatvecSpec, MatvecTuning};
use crate::segments::{Finish, Segment};
use kjit_engine::Target;

pub(super) const EPS: f32 = 1e-5;

/// `silu` and the tanh form of `gelu`, in f64.
pub(super) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub(super) fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// What a prologue makes of a column, in f64.
pub(super) fn prologue(p: Prologue, x: &[f32], aux: &[f32]) -> Vec<f64> {
    let pairs = x.iter().zip(aux).map(|(&x, &a)| (f64::from(x), f64::from(a)));
    match p {
        Prologue::None => x.iter().map(|&x| f64::from(x)).collect(),
        Prologue::Norm => {
            let mean = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            pairs.map(|(x, a)| x * scale * a).collect()
        }
        Prologue::Silu => pairs.map(|(x, a)| silu(x) * a).collect(),
        Prologue::Gelu => pairs.map(|(x, a)| gelu(x) * a).collect(),
    }
}

/// A case of `spec` on a device of `units` compute units.
pub fn case(spec: &MatvecSpec, target: &Target, units: u32, random: &mut Random) -> Result<Case, SpecError> {
    let (cols, n) = (spec.cols, spec.columns);
    let kernel = spec.kernel(target)?;
    let x = random.activations(n * cols);
    let aux = match spec.prologue {
        Prologue::None => vec![],
        Prologue::Norm => random.normals(cols, 1.0),
        Prologue::Silu | Prologue::Gelu => random.normals(n * cols, 1.0),
    };
    let columns: Vec<Vec<f64>> = x
        .chunks(cols)
        .enumerate()
        .map(|(i, x)| {
            let per_column = if spec.prologue == Prologue::Norm { 0 } else { i * cols };
            prologue(spec.prologue, x, aux.get(per_column..).unwrap_or(&[]))
        })
        .collect();
    let tolerance = match spec.column()?.form {
        Form::Quantised { .. } => QUANTISED,
        Form::Plain { .. } => SINGLE,
    };
    let tolerance = match spec.finish {
        // A product of two results has the errors of both.
        Finish::Silu | Finish::Gelu => {
            Tolerance { norm: 2.0 * tolerance.norm, each: 4.0 * tolerance.each, ..tolerance }
        }
        Finish::Store | Finish::Add => tolerance,
    };

    let mut matrices = vec![];
    for s in &spec.segments {
        let bias = if s.bias { random.normals(s.rows, 0.5) } else { vec![] };
        matrices.push((Matrix::random(s.format, s.rows, cols, random)?, bias));
    }
    let rows = spec.segments[0].rows;
    let residual = if spec.finish == Finish::Add { random.normals(n * rows, 1.0) } else { vec![] };
    let all = |s: usize| -> Vec<f64> {
        let mut y = vec![];
        for (i, c) in columns.iter().enumerate() {
            let dots: Vec<Vec<f64>> = matrices.iter().map(|(m, _)| m.dots(c)).collect();
            let result = |s: usize, row: usize| {
                let (matrix, bias) = &matrices[s];
                dots[s][row % matrix.distinct] + bias.get(row).map_or(0.0, |&b| f64::from(b))
            };
            for row in 0..spec.segments[s].rows {
                y.push(match spec.finish {
                    Finish::Store => result(s, row),
                    Finish::Add => result(s, row) + f64::from(residual[i * rows + row]),
                    Finish::Silu => silu(result(0, row)) * result(1, row),
                    Finish::Gelu => gelu(result(0, row)) * result(1, row),
                });
            }
        }
        y
    };
    let optional = |name, v: &[f32]| if v.is_empty() { CaseArg::Null } else { floats(name, v) };
    let mut args = vec![activations(spec.prepared, &spec.column()?, &x), optional("aux", &aux)];
    args.push(optional("residual", &residual));
    let gated = spec.finish.gated();
    for s in 0..3 {
        let Some((matrix, bias)) = matrices.get(s) else {
            args.extend([CaseArg::Null, CaseArg::Null, CaseArg::Null]);
            continue;
        };
        args.extend([input("w", matrix.records.clone()), optional("b", bias)]);
        args.push(if gated && s == 1 { CaseArg::Null } else { output("y", Storage::F32, all(s), tolerance) });
    }
    let blocks = spec.blocks(target, units)?;
    args.extend([CaseArg::F32(EPS), CaseArg::U32(blocks)]);
    let formats: Vec<String> = spec.segments.iter().map(|s| format!("{}×{}", s.format, s.rows)).collect();
    let t = spec.tuning(target)?;
    let name = format!(
        "matvec {} · {cols} cols, {n} columns, {:?}, {:?}, wave {} block {} team {} rows {} batch {}, {blocks} blocks",
        formats.join(" "),
        spec.prologue,
        spec.finish,
        t.wave,
        t.block,
        t.team,
        t.rows,
        t.batch
    );
    Ok(Case { name, geometry: kernel.launch(blocks), kernel, args })
}

/// Activations as they are, or as prepared columns.
pub(super) fn activations(prepared: bool, column: &Column, x: &[f32]) -> CaseArg {
    match prepared {
        true => input("x", x.chunks(column.cols).flat_map(|x| column.pack(x)).collect()),
        false => floats("x", x),
    }
}

fn format(name: &str) -> &'static Format {
    Format::by_name(name).unwrap_or(&ALL[0])
}

pub(super) fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    let tuning = |team, rows, batch| {
        Some(MatvecTuning { wave, block: 2 * wave.max(64), team, rows, batch, blocks_per_unit: 1, alone: false })
    };
    // Every format, odd numbers of rows, units that do not fill the team.
    for (i, f) in ALL.iter().enumerate() {
        let cols = if f.block_elems() == 1 { 1001 - 50 * i } else { (3 + i % 2) * f.block_elems().max(96) };
        let mut spec = MatvecSpec::new(f, 31 + 2 * i, cols);
        spec.prologue = [Prologue::None, Prologue::Norm][i % 2];
        spec.segments[0].bias = i % 3 == 0;
        spec.tuning = tuning([wave, 8, 2 * wave, wave / 2][i % 4], 1 + (i % 2) as u32, 1 + (i % 3) as u32);
        into.push(case(&spec, target, 2, random)?);
    }
    let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
    let specs = [
        // Three weights of two layouts with a norm in front, as Q, K and V of a mixed file.
        MatvecSpec {
            prologue: Prologue::Norm,
            segments: vec![segment("Q4_K", 67, true), segment("Q4_K", 33, false), segment("Q6_K", 35, true)],
            tuning: tuning(wave, 1, 4),
            ..MatvecSpec::new(format("Q4_K"), 1, 768)
        },
        // Units of 16 beside units of 32.
        MatvecSpec {
            segments: vec![segment("Q8_0", 40, false), segment("Q4_0", 24, false), segment("Q5_1", 17, false)],
            tuning: tuning(16, 2, 2),
            ..MatvecSpec::new(format("Q8_0"), 1, 288)
        },
        MatvecSpec {
            prologue: Prologue::Norm,
            segments: vec![segment("Q4_0", 65, false), segment("Q4_0", 65, false)],
            finish: Finish::Silu,
            tuning: tuning(wave / 2, 2, 1),
            ..MatvecSpec::new(format("Q4_0"), 1, 576)
        },
        MatvecSpec {
            segments: vec![segment("F16", 37, true), segment("F16", 37, true)],
            finish: Finish::Gelu,
            tuning: tuning(2 * wave, 1, 2),
            ..MatvecSpec::new(format("F16"), 1, 640)
        },
        MatvecSpec {
            prologue: Prologue::Silu,
            finish: Finish::Add,
            tuning: tuning(2 * wave, 2, 2),
            ..MatvecSpec::new(format("Q6_K"), 63, 1536)
        },
        MatvecSpec {
            prologue: Prologue::Gelu,
            finish: Finish::Add,
            tuning: tuning(4, 1, 3),
            ..MatvecSpec::new(format("BF16"), 129, 250)
        },
        MatvecSpec {
            columns: 3,
            finish: Finish::Add,
            tuning: tuning(8, 2, 1),
            ..MatvecSpec::new(format("Q5_K"), 33, 512)
        },
        MatvecSpec {
            columns: 8,
            prologue: Prologue::Norm,
            tuning: tuning(wave, 1, 1),
            ..MatvecSpec::new(format("Q4_1"), 31, 352)
        },
        MatvecSpec { tuning: None, ..MatvecSpec::new(format("Q8_0"), 50, 576) },
    ];
    for spec in &specs {
        if spec.tuning.is_some() || target.default_wave() == wave {
            into.push(case(spec, target, 2, random)?);
        }
    }
    Ok(())
}
