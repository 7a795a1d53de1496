//! Cases and samples of the matrix–vector product.

use crate::case::{Case, CaseArg, FOLLOWS, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::{Storage, Tolerance};
use crate::oracle::{
    EPS, activations, aux, exact, finished, matrices, named, prologues, segment_args,
};
use crate::samples::{Samples, format, segment as weight};
use kjit_engine::Target;
use kjit_formats::format::ALL;
use kjit_kernels::activations::Prologue;
use kjit_kernels::matvec::{MatvecArgs, MatvecSpec, MatvecTuning, takes_1024};
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::{Family, Size, SpecError};

/// A case of `spec` on a device of `units` compute units.
fn case(
    spec: &MatvecSpec,
    target: &Target,
    units: u32,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (cols, n) = (spec.cols, spec.columns);
    let x = random.activations(n * cols);
    let aux = aux(spec.prologue, n, cols, random);
    let columns = prologues(spec.prologue, cols, &x, &aux);
    let column = spec.column()?;
    let tolerance = exact(&column);
    let tolerance = match spec.finish {
        // A product of two results has the errors of both.
        Finish::Silu | Finish::Gelu => {
            Tolerance { norm: 2.0 * tolerance.norm, each: 4.0 * tolerance.each, ..tolerance }
        }
        Finish::Store | Finish::Add => tolerance,
    };
    let matrices = matrices(&spec.segments, cols, 1, random)?;
    let rows = spec.segments[0].rows;
    let residual = if spec.finish == Finish::Add { random.normals(n * rows, 1.0) } else { vec![] };
    // For each column, the products of each weight with each distinct row.
    let dots: Vec<Vec<Vec<f64>>> =
        columns.iter().map(|c| matrices.iter().map(|(m, _)| m.dots(c)).collect()).collect();
    let all = |s: usize| -> Vec<f64> {
        let mut y = vec![];
        for (i, dots) in dots.iter().enumerate() {
            let dot = |s: usize, row: usize| {
                let (matrix, bias) = &matrices[s];
                dots[s][row % matrix.distinct] + bias.get(row).map_or(0.0, |&b| f64::from(b))
            };
            let added = |row| residual.get(i * rows + row).copied().unwrap_or(0.0);
            y.extend(
                (0..spec.segments[s].rows)
                    .map(|row| finished(spec.finish, s, row, dot, added(row))),
            );
        }
        y
    };
    let size = Size { tokens: n, past: 0 };
    let (launch, t) = (spec.launch(target, units, size)?, spec.tuning(target)?);
    let name = format!(
        "matvec {} · {cols} cols, {n} columns, {:?}, {:?}, wave {} block {} team {} rows {} in \
         flight {}, {} blocks",
        named(&spec.segments),
        spec.prologue,
        spec.finish,
        t.wave,
        t.block,
        t.team,
        t.rows,
        t.in_flight,
        launch.geometry.grid[0]
    );
    let args = MatvecArgs {
        x: activations(spec.quantized, &column, &x),
        aux: optional("aux", &aux),
        residual: optional("residual", &residual),
        segments: segment_args(&matrices, spec.finish, |s| {
            output("y", Storage::F32, all(s), tolerance)
        }),
        eps: CaseArg::F32(EPS),
        blocks: FOLLOWS,
    };
    Case::of(name, spec, target, launch, args)
}

impl Cases for MatvecSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        _: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, random)
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
                block: 2 * wave.max(64),
                team,
                rows,
                in_flight,
                blocks_per_unit: 1,
                alone: false,
            })
        };
        // Every format, odd numbers of rows, units that do not fill the team.
        for (i, f) in ALL.iter().enumerate() {
            let cols = if f.block_elems() == 1 {
                1001 - 30 * i
            } else {
                (3 + i % 2) * 96usize.next_multiple_of(f.block_elems())
            };
            let mut spec = MatvecSpec::new(f, 31 + 2 * i, cols);
            spec.prologue = [Prologue::None, Prologue::Norm][i % 2];
            spec.segments[0].bias = i % 3 == 0;
            spec.tuning = tuning(
                [wave, 8, 2 * wave, wave / 2][i % 4],
                1 + (i % 2) as u32,
                1 + (i % 3) as u32,
            );
            into.push(case(&spec, target, 2, random)?);
        }
        let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
        let mut specs = [
            // Three weights of two layouts after a norm, like Q, K and V of a mixed file.
            MatvecSpec {
                prologue: Prologue::Norm,
                segments: vec![
                    segment("Q4_K", 67, true),
                    segment("Q4_K", 33, false),
                    segment("Q6_K", 35, true),
                ],
                tuning: tuning(wave, 1, 4),
                ..MatvecSpec::new(format("Q4_K"), 1, 768)
            },
            // Units of 16 and of 32 in one kernel.
            MatvecSpec {
                segments: vec![
                    segment("Q8_0", 40, false),
                    segment("Q4_0", 24, false),
                    segment("Q5_1", 17, false),
                ],
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
        for spec in &mut specs {
            if !spec.covered(target) {
                (spec.prologue, spec.quantized) = (Prologue::None, true);
            }
            if spec.tuning.is_some() || target.default_wave() == wave {
                into.push(case(spec, target, 2, random)?);
            }
        }
        // Blocks of 1024, whose waves have one row, two rows or none.
        if takes_1024(target) {
            let team = wave;
            let wide = MatvecSpec {
                prologue: Prologue::Norm,
                segments: vec![segment("Q4_K", 35, false), segment("Q6_K", 17, true)],
                tuning: Some(MatvecTuning {
                    wave,
                    block: 1024,
                    team,
                    rows: 1,
                    in_flight: 2,
                    blocks_per_unit: 1,
                    alone: false,
                }),
                ..MatvecSpec::new(format("Q4_K"), 1, 4096)
            };
            into.push(case(&wide, target, 2, random)?);
            into.push(case(
                &MatvecSpec { segments: vec![segment("Q8_0", 19, false)], ..wide },
                target,
                3,
                random,
            )?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for f in ALL {
            let spec = MatvecSpec { prologue: Prologue::Norm, ..MatvecSpec::new(f, 4096, 4096) };
            list.add(format!("matvec {f} norm"), spec, Size::ONE)?;
        }
        for [q, k, v] in [
            ["Q4_K", "Q4_K", "Q6_K"],
            ["Q8_0", "Q8_0", "Q8_0"],
            ["F16", "F16", "F16"],
            ["Q4_0", "Q5_0", "Q8_0"],
        ] {
            let segments = vec![weight(q, 4096), weight(k, 1024), weight(v, 1024)];
            let spec = MatvecSpec {
                prologue: Prologue::Norm,
                segments,
                ..MatvecSpec::new(format(q), 4096, 4096)
            };
            list.add(format!("matvec {q} {k} {v} norm"), spec, Size::ONE)?;
        }
        for name in ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS", "F16"] {
            let gated = MatvecSpec {
                prologue: Prologue::Norm,
                segments: vec![weight(name, 14336), weight(name, 14336)],
                finish: Finish::Silu,
                ..MatvecSpec::new(format(name), 14336, 4096)
            };
            list.add(format!("matvec {name} gated"), gated, Size::ONE)?;
            let down = MatvecSpec {
                finish: Finish::Add,
                quantized: name == "F16",
                ..MatvecSpec::new(format(name), 4096, 14336)
            };
            list.add(format!("matvec {name} down"), down, Size::ONE)?;
            for columns in [2, 4, 8] {
                let several = MatvecSpec {
                    columns,
                    quantized: true,
                    ..MatvecSpec::new(format(name), 4096, 4096)
                };
                list.add(format!("matvec {name} × {columns}"), several, Size::ONE)?;
            }
            let small =
                MatvecSpec { finish: Finish::Add, ..MatvecSpec::new(format(name), 576, 1536) };
            list.add(format!("matvec {name} small"), small, Size::ONE)?;
        }
        for wave in list.other_waves() {
            for name in ["F16", "Q8_0", "Q4_K", "Q6_K"] {
                let spec = MatvecSpec {
                    prologue: Prologue::Norm,
                    ..MatvecSpec::new(format(name), 4096, 4096)
                };
                let usual = spec.tuning(list.target)?;
                let team = if usual.team == usual.wave { wave } else { usual.team };
                let spec = spec.with(Some(MatvecTuning { wave, team, ..usual }));
                list.add(format!("matvec {name} norm @ wave {wave}"), spec, Size::ONE)?;
            }
        }
        Ok(())
    }
}
