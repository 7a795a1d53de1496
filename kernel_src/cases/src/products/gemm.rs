//! Cases and samples of products of matrices.

use crate::case::{Case, CaseArg, FOLLOWS, input, optional, output, words};
use crate::cases::Cases;
use crate::data::Random;
use crate::expect::Storage;
use crate::oracle::{finished, matrices, named, segment_args};
use crate::samples::{PROMPT, Samples, format, segment as weight};
use crate::tiled::{GATED, PRODUCT, tiled, want_tiled};
use kjit_engine::{MatrixUnit, Target};
use kjit_formats::format::ALL;
use kjit_kernels::gemm::{GemmArgs, GemmSpec, GemmTuning};
use kjit_kernels::launch::Launch;
use kjit_kernels::segments::{Finish, Segment};
use kjit_kernels::{Family, Size, SpecError};

/// A case of `spec` with `tokens` tokens on a device of `units` compute units. With experts, the
/// expert of each tile (`None`: no work) instead of tokens.
fn case(
    spec: &GemmSpec,
    target: &Target,
    (tokens, units): (usize, u32),
    experts: &[Option<usize>],
    random: &mut Random,
) -> Result<Case, SpecError> {
    let tile = spec.tuning(target)?.tokens() as usize;
    let tokens = if experts.is_empty() { tokens } else { experts.len() * tile };
    let tiles = tiled(tokens, spec.cols, random);
    let values = &tiles.values;
    let matrices = matrices(&spec.segments, spec.cols, spec.experts, random)?;
    let first = spec.segments[0].rows;
    let residual =
        if spec.finish == Finish::Add { random.normals(tokens * first, 1.0) } else { vec![] };
    let tile_expert: Vec<u32> = experts.iter().map(|e| e.map_or(u32::MAX, |e| e as u32)).collect();
    // For each weight, the products of each distinct token with each distinct row.
    let dots: Vec<Vec<Vec<f64>>> =
        matrices.iter().map(|(m, _)| values.iter().map(|token| m.dots(token)).collect()).collect();
    let result = |s: usize| -> Vec<Option<Vec<f64>>> {
        let rows = spec.segments[s].rows;
        (0..tokens)
            .map(|t| {
                let expert = if experts.is_empty() { 0 } else { experts[t / tile]? };
                let dot = |s: usize, row: usize| {
                    let (matrix, bias) = &matrices[s];
                    let dot = dots[s][t % values.len()][(expert * rows + row) % matrix.distinct];
                    dot + bias.get(row).map_or(0.0, |&b| f64::from(b))
                };
                let added = |row| residual.get(t * rows + row).copied().unwrap_or(0.0);
                let one = |row| finished(spec.finish, s, row, dot, added(row));
                Some((0..rows).map(one).collect())
            })
            .collect()
    };
    let tolerance = if spec.finish.gated() { GATED } else { PRODUCT };
    let y = |s: usize| {
        if spec.tiled {
            return output(
                "y",
                Storage::F16,
                want_tiled(&result(s), spec.segments[s].rows),
                tolerance,
            );
        }
        let rows = result(s).into_iter();
        let flat =
            rows.flat_map(|r| r.unwrap_or_else(|| vec![f64::NAN; spec.segments[s].rows])).collect();
        output("y", Storage::F32, flat, tolerance)
    };
    let tuning = spec.tuning(target)?;
    let launch = Launch::of(spec.block(target, &tuning)?, spec.grid_rows(target, tokens, units)?);
    let name = format!(
        "gemm {} · {} cols, {tokens} tokens, {:?}{}, {} experts, {} splits, {tuning:?}",
        named(&spec.segments),
        spec.cols,
        spec.finish,
        if spec.tiled { " tiled" } else { "" },
        spec.experts,
        spec.launch_rows(target, tokens, units)?.splits,
    );
    let args = GemmArgs {
        x: input("x", tiles.content()),
        residual: optional("residual", &residual),
        segments: segment_args(&matrices, spec.finish, y),
        parts: CaseArg::Null,
        counters: CaseArg::Null,
        tile_expert: if experts.is_empty() {
            CaseArg::Null
        } else {
            words("tile_expert", &tile_expert)
        },
        tokens: FOLLOWS,
        splits: FOLLOWS,
        token_tiles: FOLLOWS,
        tiles: FOLLOWS,
        blocks: FOLLOWS,
    };
    Case::of(name, spec, target, launch, args)
}

impl Cases for GemmSpec {
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let tuning = self.tuning(target)?;
        let rows = self.rows(&tuning, size.tokens);
        let tiles = if self.experts > 1 { rows / tuning.tokens() as usize } else { 0 };
        let chosen: Vec<Option<usize>> =
            (0..tiles).map(|t| Some(t * self.experts / tiles)).collect();
        case(self, target, (rows, units), &chosen, random)
    }

    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        let mut tunings = vec![GemmSpec::waves(1, target, wave), GemmSpec::waves(33, target, wave)];
        if target.arch().matrix == MatrixUnit::Wgmma {
            for (tokens, stages, fillers) in [(16, 6, 2), (64, 6, 2), (128, 6, 2), (256, 4, 1)] {
                tunings.push(GemmTuning::Groups { tokens, stages, ahead: 1, fillers });
            }
        }
        let groups = |t: &GemmTuning| matches!(t, GemmTuning::Groups { .. });
        // Every format; numbers of tokens and rows that do not fill a tile; rows whose last step is
        // half a step.
        for (i, f) in ALL.iter().enumerate() {
            let cols =
                if f.block_elems() > 32 { 128.max(f.block_elems()) } else { 96 + 64 * (i % 2) };
            for (j, t) in tunings.iter().enumerate() {
                // Simulated products are slow: each format is tested in one wave shape, and in all
                // others only on a device that has them.
                if j < 2 && i % 2 != j || groups(t) && f.name == "F32" {
                    continue;
                }
                let spec = GemmSpec { tuning: Some(*t), ..GemmSpec::new(f, 33 + 2 * i, cols, 1) };
                into.push(case(&spec, target, ([1, 13, 31, 33][i % 4], 2), &[], random)?);
            }
        }
        let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
        for (j, &t) in tunings.iter().enumerate() {
            let with = |spec: GemmSpec| GemmSpec { tuning: Some(t), ..spec };
            let specs = [
                // Three weights of two layouts, like Q, K and V of a mixed file.
                with(GemmSpec {
                    segments: vec![
                        segment("Q4_K", 130, true),
                        segment("Q4_K", 33, false),
                        segment("Q6_K", 35, true),
                    ],
                    ..GemmSpec::new(format("Q4_K"), 1, 512, 1)
                }),
                with(GemmSpec {
                    segments: vec![segment("Q5_1", 72, true), segment("Q5_1", 72, false)],
                    finish: [Finish::Silu, Finish::Gelu][j % 2],
                    tiled: true,
                    ..GemmSpec::new(format("Q5_1"), 1, 160, 1)
                }),
                // Few tiles and many columns, so blocks share tiles.
                with(GemmSpec {
                    finish: Finish::Add,
                    ..GemmSpec::new(format("Q8_0"), 67, 1056, 1)
                }),
                with(GemmSpec { tiled: true, ..GemmSpec::new(format("F16"), 100, 128, 1) }),
            ];
            for (i, spec) in specs.iter().enumerate() {
                into.push(case(spec, target, ([65, 31, 9, 63][i], 2), &[], random)?);
            }
            let experts = with(GemmSpec { experts: 3, ..GemmSpec::new(format("Q4_0"), 40, 96, 1) });
            into.push(case(&experts, target, (0, 2), &[Some(2), None, Some(0)], random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let size = |tokens| Size { tokens, past: 0 };
        let prompt = size(PROMPT);
        for f in ALL {
            list.add(
                format!("gemm {f} · {PROMPT} tokens"),
                GemmSpec::new(f, 4096, 4096, PROMPT),
                prompt,
            )?;
        }
        for name in ["Q4_K", "Q6_K", "Q8_0", "F16"] {
            for tokens in [16, 32] {
                let spec = GemmSpec::new(format(name), 4096, 4096, tokens);
                list.add(format!("gemm {name} · {tokens} tokens"), spec, size(tokens))?;
            }
            let gated = GemmSpec {
                segments: vec![weight(name, 14336), weight(name, 14336)],
                finish: Finish::Silu,
                tiled: true,
                ..GemmSpec::new(format(name), 14336, 4096, PROMPT)
            };
            list.add(format!("gemm {name} gated"), gated, prompt)?;
            let down = GemmSpec {
                finish: Finish::Add,
                ..GemmSpec::new(format(name), 4096, 14336, PROMPT)
            };
            list.add(format!("gemm {name} down"), down, prompt)?;
        }
        for [q, k, v] in [["Q4_K", "Q4_K", "Q6_K"], ["Q8_0", "Q8_0", "Q8_0"], ["F16", "F16", "F16"]]
        {
            let biased = |name, rows| Segment { bias: true, ..weight(name, rows) };
            let segments = vec![biased(q, 4096), biased(k, 1024), biased(v, 1024)];
            let spec = GemmSpec { segments, ..GemmSpec::new(format(q), 4096, 4096, PROMPT) };
            list.add(format!("gemm {q} {k} {v}"), spec, prompt)?;
        }
        for name in ["Q4_K", "Q8_0"] {
            // Every token has eight experts.
            let gated = GemmSpec {
                segments: vec![weight(name, 768), weight(name, 768)],
                finish: Finish::Silu,
                tiled: true,
                experts: 128,
                ..GemmSpec::new(format(name), 768, 2048, 8 * PROMPT / 128)
            };
            list.add(format!("gemm {name} experts gated"), gated, prompt)?;
            let down = GemmSpec {
                experts: 128,
                ..GemmSpec::new(format(name), 2048, 768, 8 * PROMPT / 128)
            };
            list.add(format!("gemm {name} experts down"), down, prompt)?;
        }
        for wave in list.other_waves() {
            for name in ["F16", "Q8_0", "Q4_K", "Q6_K"] {
                for tokens in [16, PROMPT] {
                    let tuning = Some(GemmSpec::waves(tokens, list.target, wave));
                    let spec =
                        GemmSpec { tuning, ..GemmSpec::new(format(name), 4096, 4096, tokens) };
                    list.add(
                        format!("gemm {name} · {tokens} tokens @ wave {wave}"),
                        spec,
                        size(tokens),
                    )?;
                }
            }
        }
        Ok(())
    }
}
