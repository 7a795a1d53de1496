//! Cases and samples of products with a few rows: every format, numbers of tokens that do not fill
//! a block, rows and columns that do not fill a step.

use crate::case::{Case, CaseArg, FOLLOWS, input, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Storage;
use crate::oracle::{finished, matrices, named, segment_args};
use crate::samples::{Samples, format};
use crate::tiled::{GATED, PRODUCT, panels, want_panels};
use kjit_engine::Target;
use kjit_formats::format::ALL;
use kjit_kernels::mma::panel_bytes;
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::small_gemm::{SmallGemmArgs, SmallGemmSpec, SmallGemmTuning, covers};
use kjit_kernels::{Family, Size, SpecError};

fn case(
    spec: &SmallGemmSpec,
    target: &Target,
    units: u32,
    tokens: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    // A block reads all its tokens.
    let (mut x, values) = panels(tokens, spec.cols, random);
    x.resize(panel_bytes(spec.tokens, spec.cols), 0xff);
    let matrices = matrices(&spec.segments, spec.cols, 1, random)?;
    let first = spec.segments[0].rows;
    let residual =
        if spec.finish == Finish::Add { random.normals(tokens * first, 1.0) } else { vec![] };
    // For each token, the products of each weight with each distinct row.
    let dots: Vec<Vec<Vec<f64>>> =
        values.iter().map(|x| matrices.iter().map(|(m, _)| m.dots(x)).collect()).collect();
    let result = |s: usize| -> Vec<Option<Vec<f64>>> {
        let rows = spec.segments[s].rows;
        let one = |t: usize, row: usize| {
            let dot = |s: usize, row: usize| {
                let (matrix, bias) = &matrices[s];
                dots[t][s][row % matrix.distinct] + bias.get(row).map_or(0.0, |&b| f64::from(b))
            };
            finished(spec.finish, s, row, dot, residual.get(t * rows + row).copied().unwrap_or(0.0))
        };
        (0..tokens).map(|t| Some((0..rows).map(|row| one(t, row)).collect())).collect()
    };
    let tolerance = if spec.finish.gated() { GATED } else { PRODUCT };
    let y = |s: usize| match spec.panels {
        true => {
            output("y", Storage::F16, want_panels(&result(s), spec.segments[s].rows), tolerance)
        }
        false => output(
            "y",
            Storage::F32,
            result(s).into_iter().flatten().flatten().collect(),
            tolerance,
        ),
    };
    let launch = spec.launch(target, units, Size { tokens, past: 0 })?;
    let name = format!(
        "small_gemm {} · {} cols, {tokens} of {} tokens, {:?}{}, {} splits, {:?}",
        named(&spec.segments),
        spec.cols,
        spec.tokens,
        spec.finish,
        if spec.panels { " panels" } else { "" },
        launch.geometry.grid[1],
        spec.tuning(target)?
    );
    let args = SmallGemmArgs {
        x: input("x", x),
        residual: optional("residual", &residual),
        segments: segment_args(&matrices, spec.finish, y),
        parts: CaseArg::Null,
        counters: CaseArg::Null,
        tokens: FOLLOWS,
        splits: FOLLOWS,
    };
    Case::of(name, spec, target, launch, args)
}

impl Cases for SmallGemmSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        case(self, target, units, size.tokens.min(self.tokens), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        if !covers(target) {
            return Ok(());
        }
        let tuning = |waves, rows, tiles, ahead| {
            Some(SmallGemmTuning { waves, rows, tiles, ahead, blocks_per_unit: 1 })
        };
        let tunings = [None, tuning(4, 1, 1, 1), tuning(8, 4, 1, 3), tuning(4, 2, 2, 2)];
        for (i, f) in ALL.iter().enumerate() {
            let cols =
                if f.block_elems() > 32 { 128.max(f.block_elems()) } else { 96 + 64 * (i % 2) };
            let (most, tokens) = [(8, 3), (16, 16), (40, 31), (64, 33)][i % 4];
            let spec = SmallGemmSpec {
                tuning: tunings[i % 3],
                ..SmallGemmSpec::new(f, 33 + 2 * i, cols, most)
            };
            into.push(case(&spec, target, 2, tokens, random)?);
        }
        let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
        for (j, &tuning) in tunings.iter().enumerate() {
            let with = |spec: SmallGemmSpec| SmallGemmSpec { tuning, ..spec };
            let gated = tuning.is_none_or(|t| t.rows * t.tiles >= 2);
            let specs = [
                // Three weights of two layouts, like Q, K and V of a mixed file.
                with(SmallGemmSpec {
                    segments: vec![
                        segment("Q4_K", 130, true),
                        segment("Q4_K", 33, false),
                        segment("Q6_K", 35, true),
                    ],
                    ..SmallGemmSpec::new(format("Q4_K"), 1, 512, [8, 16, 24, 64][j])
                }),
                // Few rows and many columns, so blocks share results.
                with(SmallGemmSpec {
                    finish: Finish::Add,
                    ..SmallGemmSpec::new(format("Q8_0"), 67, 5152, 8)
                }),
                with(SmallGemmSpec {
                    finish: Finish::Add,
                    ..SmallGemmSpec::new(format("Q4_K"), 40, 4096, 64)
                }),
                with(SmallGemmSpec {
                    panels: true,
                    ..SmallGemmSpec::new(format("F16"), 104, 128, 16)
                }),
                with(SmallGemmSpec {
                    segments: vec![segment("Q5_1", 72, true), segment("Q5_1", 72, false)],
                    finish: [Finish::Silu, Finish::Gelu][j % 2],
                    panels: true,
                    ..SmallGemmSpec::new(format("Q5_1"), 1, 160, [64, 16, 32, 8][j])
                }),
            ];
            for (spec, tokens) in specs.iter().zip([7, 5, 61, 9, 8]).take(if gated { 5 } else { 4 })
            {
                into.push(case(spec, target, 2, tokens, random)?);
            }
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        if !covers(list.target) {
            return Ok(());
        }
        for name in ["Q4_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS", "F16"] {
            // From 40 rows on a lane spills up to a dozen words. This was the fastest variant
            // (`docs/performance.md`), so it is exempt from the rule here.
            for tokens in [8, 16, 32] {
                let spec = SmallGemmSpec {
                    finish: Finish::Add,
                    ..SmallGemmSpec::new(format(name), 4096, 4096, tokens)
                };
                list.add(format!("small_gemm {name} × {tokens}"), spec, Size { tokens, past: 0 })?;
            }
        }
        Ok(())
    }
}
