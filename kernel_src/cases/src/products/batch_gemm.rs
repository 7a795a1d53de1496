//! Cases and samples of products with rows of a batch or of a prompt: every format, every width of
//! the products, rows and columns that do not fill a tile or a unit, tiles that several blocks
//! share, tiles of tokens.

use crate::case::{Case, CaseArg, FOLLOWS, input, optional, output};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Storage;
use crate::oracle::{finished, matrices, named, segment_args};
use crate::samples::{Samples, format};
use crate::tiled::{GATED, PRODUCT, turned, want_turned};
use kjit_engine::Target;
use kjit_formats::format::ALL;
use kjit_kernels::batch_gemm::{BatchGemmArgs, BatchGemmSpec, BatchGemmTuning, covers};
use kjit_kernels::mma::turned_bytes;
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::{Family, Size, SpecError};

fn case(
    spec: &BatchGemmSpec,
    target: &Target,
    units: u32,
    tokens: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    // A product reads all its tokens.
    let (mut x, values) = turned(tokens, spec.cols, random);
    x.resize(turned_bytes(spec.tokens, spec.cols), 0xff);
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
    let y = |s: usize| match spec.turned {
        true => {
            output("y", Storage::F16, want_turned(&result(s), spec.segments[s].rows), tolerance)
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
        "batch_gemm {} · {} cols, {tokens} of {} tokens, {:?}{}, {} blocks, {:?}",
        named(&spec.segments),
        spec.cols,
        spec.tokens,
        spec.finish,
        if spec.turned { " turned" } else { "" },
        launch.geometry.grid[0],
        spec.tuning(target)?
    );
    let args = BatchGemmArgs {
        x: input("x", x),
        residual: optional("residual", &residual),
        segments: segment_args(&matrices, spec.finish, y),
        parts: CaseArg::Null,
        counters: CaseArg::Null,
        tokens: FOLLOWS,
        blocks: FOLLOWS,
    };
    Case::of(name, spec, target, launch, args)
}

impl Cases for BatchGemmSpec {
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
        // Every format; numbers of tokens that are not a width of a product.
        for (i, f) in ALL.iter().enumerate() {
            let cols =
                if f.block_elems() > 32 { 128.max(f.block_elems()) } else { 96 + 64 * (i % 2) };
            let (most, tokens) = [(8, 3), (16, 16), (40, 31), (64, 57), (128, 70)][i % 5];
            let spec = BatchGemmSpec::new(f, 33 + 7 * i, cols, most);
            into.push(case(&spec, target, 2, tokens, random)?);
        }
        // Every width.
        for n in (8..64).step_by(8).chain((64..=256).step_by(32)) {
            let spec = BatchGemmSpec::new(format("Q4_0"), 70 + n, 224, n);
            into.push(case(&spec, target, 2, n - n % 5, random)?);
        }
        let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
        let tunings: [(usize, Option<BatchGemmTuning>); 8] = [
            (8, None),
            (16, Some(BatchGemmTuning::of([2, 1, 4, 4, 1, 2, 3]))),
            (24, Some(BatchGemmTuning::of([4, 1, 4, 3, 2, 1, 1]))),
            (64, None),
            (64, Some(BatchGemmTuning::of([2, 2, 2, 3, 4, 1, 1]))),
            (56, Some(BatchGemmTuning::of([2, 2, 3, 2, 2, 1, 3]))),
            (128, None),
            (256, None),
        ];
        for (j, &(most, tuning)) in tunings.iter().enumerate() {
            let with = |spec: BatchGemmSpec| BatchGemmSpec { tuning, ..spec };
            let specs = [
                // Three weights of two layouts, like Q, K and V of a mixed file.
                with(BatchGemmSpec {
                    segments: vec![
                        segment("Q4_K", 330, true),
                        segment("Q4_K", 33, false),
                        segment("Q6_K", 35, true),
                    ],
                    ..BatchGemmSpec::new(format("Q4_K"), 1, 512, most)
                }),
                // Few rows and many columns: many blocks share a tile.
                with(BatchGemmSpec {
                    finish: Finish::Add,
                    ..BatchGemmSpec::new(format("Q8_0"), 67, 5152, most)
                }),
                // Blocks that end and begin in the middle of tiles.
                with(BatchGemmSpec {
                    finish: Finish::Add,
                    ..BatchGemmSpec::new(format("Q4_K"), 9000, 768, most)
                }),
                with(BatchGemmSpec {
                    segments: vec![segment("Q5_1", 172, true), segment("Q5_1", 172, false)],
                    finish: [Finish::Silu, Finish::Gelu][j % 2],
                    turned: true,
                    ..BatchGemmSpec::new(format("Q5_1"), 1, 160, most)
                }),
            ];
            for (spec, less) in specs.iter().zip([1, 3, 0, 5]) {
                into.push(case(spec, target, 2, most - less, random)?);
            }
        }
        // Tokens of a prompt: several tiles of tokens, the last of any size.
        for (most, tokens) in [(512, 512), (700, 641), (700, 259), (700, 64)] {
            let specs = [
                BatchGemmSpec {
                    segments: vec![segment("Q4_K", 330, true), segment("Q6_K", 35, true)],
                    ..BatchGemmSpec::new(format("Q4_K"), 1, 512, most)
                },
                BatchGemmSpec {
                    finish: Finish::Add,
                    ..BatchGemmSpec::new(format("Q8_0"), 67, 2080, most)
                },
                BatchGemmSpec {
                    segments: vec![segment("Q5_1", 172, true), segment("Q5_1", 172, false)],
                    finish: Finish::Silu,
                    turned: true,
                    ..BatchGemmSpec::new(format("Q5_1"), 1, 160, most)
                },
            ];
            for spec in &specs {
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
            for tokens in [8, 16, 32, 64, 128, 256, 2048] {
                let spec = BatchGemmSpec {
                    finish: Finish::Add,
                    ..BatchGemmSpec::new(format(name), 4096, 4096, tokens)
                };
                list.add(format!("batch_gemm {name} × {tokens}"), spec, Size { tokens, past: 0 })?;
            }
        }
        Ok(())
    }
}
