//! Cases of the kernels for prompts: tiles, products of matrices, grouping by expert.

use super::data::Matrix;
use super::matvec::{gelu, prologue, silu};
use super::{Case, CaseArg, Expect, Random, SINGLE, Storage, Tolerance, floats, input, output};
use crate::activations::Prologue;
use crate::format::{ALL, Format};
use crate::gemm::{GemmSpec, GemmTuning};
use crate::kernel::SpecError;
use crate::moe::{MoeSpec, MoeStep};
use crate::product::{strip_bytes, strip_index, tiled_bytes, tiled_index};
use crate::segments::{Finish, MOST, Segment};
use crate::tiles::TilesSpec;
use half::f16;
use kjit_engine::{MatrixUnit, Target};

/// Weights and their groups' scales are rounded to halves: 2⁻¹¹ each, more where an offset takes most of a weight away (Q2_K, Q4_1).
pub(super) const PRODUCT: Tolerance =
    Tolerance { norm: 1.2e-3, each: 1e-2, reason: "weights and scales rounded to half precision" };
/// A product of two such results, itself rounded to a half.
pub(super) const GATED: Tolerance =
    Tolerance { norm: 3e-3, each: 4e-2, reason: "two results of weights rounded to half precision, multiplied" };

/// Results rounded to halves: 2⁻¹¹ of each, and a few are fifty times as large as most.
const ROUNDED: Tolerance = Tolerance { norm: 4e-4, each: 6e-2, reason: "results rounded to half precision" };

/// Different tokens among many.
const DISTINCT: usize = 61;

/// Random halves as tiles, with NaN in the rows behind the last, and the values of the rows that differ.
fn tiled(rows: usize, cols: usize, random: &mut Random) -> (Vec<u8>, Vec<Vec<f64>>) {
    let mut bytes = vec![0xff; tiled_bytes(rows, cols)];
    let mut all: Vec<Vec<f16>> = vec![];
    // As for rows of a matrix: many tokens are some in turn.
    for _ in 0..if rows > 256 { DISTINCT } else { rows } {
        all.push(random.activations(cols).iter().map(|&v| f16::from_f32(v)).collect());
    }
    for (row, halves) in (0..rows).zip(all.iter().cycle()) {
        for col in 0..cols.next_multiple_of(64) {
            let v = halves.get(col).copied().unwrap_or(f16::ZERO);
            bytes[2 * tiled_index(row, col, cols)..][..2].copy_from_slice(&v.to_le_bytes());
        }
    }
    (bytes, all.iter().map(|row| row.iter().map(|v| v.to_f64()).collect()).collect())
}

/// What a tiled buffer must hold: the rows' values, zeros behind a row, nothing (NaN) in other rows.
pub(super) fn want_tiled(rows: &[Option<Vec<f64>>], cols: usize) -> Vec<f64> {
    let mut want = vec![f64::NAN; tiled_bytes(rows.len(), cols) / 2];
    for (row, values) in rows.iter().enumerate() {
        let Some(values) = values else { continue };
        for col in 0..cols.next_multiple_of(64) {
            want[tiled_index(row, col, cols)] = values.get(col).copied().unwrap_or(0.0);
        }
    }
    want
}

/// The same for strips.
pub(super) fn want_strips(rows: &[Option<Vec<f64>>], cols: usize) -> Vec<f64> {
    let mut want = vec![f64::NAN; strip_bytes(rows.len(), cols) / 2];
    for (row, values) in rows.iter().enumerate() {
        let values = values.iter().flatten().enumerate();
        values.for_each(|(col, &v)| want[strip_index(row, col, cols)] = v);
    }
    want
}

fn said(whether: bool, what: &str) -> &str {
    if whether { what } else { "" }
}

pub(super) fn working(name: &'static str, bytes: usize) -> CaseArg {
    if bytes == 0 {
        return CaseArg::Null;
    }
    CaseArg::Buffer { name, before: vec![0xff; bytes], expect: Expect::Anything }
}

fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The arguments `x, residual, w0, b0, y0, w1, …` of a product; `y` makes the output of a segment.
pub(super) fn operands(
    x: Vec<u8>,
    residual: &[f32],
    matrices: &[(Matrix, Vec<f32>)],
    finish: Finish,
    y: impl Fn(usize) -> CaseArg,
) -> Vec<CaseArg> {
    let optional = |name, v: &[f32]| if v.is_empty() { CaseArg::Null } else { floats(name, v) };
    let mut args = vec![input("x", x), optional("residual", residual)];
    for s in 0..MOST {
        let Some((matrix, bias)) = matrices.get(s) else {
            args.extend([CaseArg::Null, CaseArg::Null, CaseArg::Null]);
            continue;
        };
        args.extend([input("w", matrix.records.clone()), optional("b", bias)]);
        args.push(if finish.gated() && s == 1 { CaseArg::Null } else { y(s) });
    }
    args
}

/// The arguments `parts, counters` of a product whose blocks may share a result.
pub(super) fn shared_sums(part_bytes: usize, counters: usize) -> [CaseArg; 2] {
    let counters = match counters {
        0 => CaseArg::Null,
        n => CaseArg::Buffer { name: "counters", before: vec![0; 4 * n], expect: Expect::Same },
    };
    [working("parts", part_bytes), counters]
}

/// A case of `spec` with `tokens` tokens on a device of `units` compute units; with experts, the expert of each tile (`None`: nothing to do)
/// instead of tokens.
pub(super) fn product(
    spec: &GemmSpec,
    target: &Target,
    (tokens, units): (usize, u32),
    experts: &[Option<usize>],
    random: &mut Random,
) -> Result<Case, SpecError> {
    let tile = spec.tuning(target)?.tokens() as usize;
    let tokens = if experts.is_empty() { tokens } else { experts.len() * tile };
    let launch = spec.launch(target, tokens, units)?;
    let (x, values) = tiled(tokens, spec.cols, random);
    let mut matrices = vec![];
    for s in &spec.segments {
        let bias = if s.bias { random.normals(s.rows, 0.5) } else { vec![] };
        matrices.push((Matrix::random(s.format, s.rows * spec.experts, spec.cols, random)?, bias));
    }
    let first = spec.segments[0].rows;
    let residual = if spec.finish == Finish::Add { random.normals(tokens * first, 1.0) } else { vec![] };
    let tile_expert: Vec<u32> = experts.iter().map(|e| e.map_or(u32::MAX, |e| e as u32)).collect();
    // Of each weight, each different token's products with each different row.
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
                let one = |row| match spec.finish {
                    Finish::Store => dot(s, row),
                    Finish::Add => dot(s, row) + f64::from(residual[t * rows + row]),
                    Finish::Silu => silu(dot(0, row)) * dot(1, row),
                    Finish::Gelu => gelu(dot(0, row)) * dot(1, row),
                };
                Some((0..rows).map(one).collect())
            })
            .collect()
    };
    let tolerance = if spec.finish.gated() { GATED } else { PRODUCT };
    let y = |s: usize| {
        if spec.tiled {
            return output("y", Storage::F16, want_tiled(&result(s), spec.segments[s].rows), tolerance);
        }
        let rows = result(s).into_iter();
        let flat = rows.flat_map(|r| r.unwrap_or_else(|| vec![f64::NAN; spec.segments[s].rows])).collect();
        output("y", Storage::F32, flat, tolerance)
    };
    let mut args = operands(x, &residual, &matrices, spec.finish, y);
    args.extend(shared_sums(launch.parts_bytes, launch.counters));
    args.push(if experts.is_empty() { CaseArg::Null } else { input("tile_expert", u32s(&tile_expert)) });
    let numbers = [tokens as u32, launch.splits, launch.token_tiles, launch.tiles, launch.blocks];
    args.extend(numbers.map(CaseArg::U32));
    let formats: Vec<String> = spec.segments.iter().map(|s| format!("{}×{}", s.format, s.rows)).collect();
    let name = format!(
        "gemm {} · {} cols, {tokens} tokens, {:?}{}, {} experts, {} splits, {:?}",
        formats.join(" "),
        spec.cols,
        spec.finish,
        if spec.tiled { " tiled" } else { "" },
        spec.experts,
        launch.splits,
        spec.tuning(target)?
    );
    Ok(Case { name, geometry: launch.geometry, kernel: spec.kernel(target)?, args })
}

pub(super) fn format(name: &str) -> &'static Format {
    Format::by_name(name).unwrap_or(&ALL[0])
}

fn products(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    let mut tunings = vec![GemmSpec::waves(1, target, wave), GemmSpec::waves(33, target, wave)];
    if target.arch().matrix == MatrixUnit::Wgmma {
        for (tokens, stages, fillers) in [(16, 6, 2), (64, 6, 2), (128, 6, 2), (256, 4, 1)] {
            tunings.push(GemmTuning::Groups { tokens, stages, ahead: 1, fillers });
        }
    }
    let groups = |t: &GemmTuning| matches!(t, GemmTuning::Groups { .. });
    // Every format, numbers of tokens and rows that fill no tile, rows whose last step is half a step.
    for (i, f) in ALL.iter().enumerate() {
        let cols = if f.block_elems() == 256 { 256 } else { 96 + 64 * (i % 2) };
        for (j, t) in tunings.iter().enumerate() {
            // A simulated product takes its time: each format in one of the shapes of waves, and in all others on a device that has them.
            if j < 2 && i % 2 != j || groups(t) && f.name == "F32" {
                continue;
            }
            let spec = GemmSpec { tuning: Some(*t), ..GemmSpec::new(f, 33 + 2 * i, cols, 1) };
            into.push(product(&spec, target, ([1, 13, 31, 33][i % 4], 2), &[], random)?);
        }
    }
    let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
    for (j, &t) in tunings.iter().enumerate() {
        let with = |spec: GemmSpec| GemmSpec { tuning: Some(t), ..spec };
        let specs = [
            // Three weights of two layouts, as Q, K and V of a mixed file.
            with(GemmSpec {
                segments: vec![segment("Q4_K", 130, true), segment("Q4_K", 33, false), segment("Q6_K", 35, true)],
                ..GemmSpec::new(format("Q4_K"), 1, 512, 1)
            }),
            with(GemmSpec {
                segments: vec![segment("Q5_1", 72, true), segment("Q5_1", 72, false)],
                finish: [Finish::Silu, Finish::Gelu][j % 2],
                tiled: true,
                ..GemmSpec::new(format("Q5_1"), 1, 160, 1)
            }),
            // Few tiles and many columns: split.
            with(GemmSpec { finish: Finish::Add, ..GemmSpec::new(format("Q8_0"), 67, 1056, 1) }),
            with(GemmSpec { tiled: true, ..GemmSpec::new(format("F16"), 100, 128, 1) }),
        ];
        for (i, spec) in specs.iter().enumerate() {
            into.push(product(spec, target, ([65, 31, 9, 63][i], 2), &[], random)?);
        }
        let experts = with(GemmSpec { experts: 3, ..GemmSpec::new(format("Q4_0"), 40, 96, 1) });
        into.push(product(&experts, target, (0, 2), &[Some(2), None, Some(0)], random)?);
    }
    Ok(())
}

fn tiles(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    let cases = [
        (96, 5, Prologue::None, false, false),
        (2500, 3, Prologue::Norm, false, false),
        (576, 9, Prologue::Norm, true, false),
        (1000, 3, Prologue::Silu, false, false),
        (161, 3, Prologue::Gelu, false, false),
        (96, 5, Prologue::None, false, true),
        (1056, 11, Prologue::Norm, false, true),
    ];
    for (cols, rows, prologue, gather, strips) in cases {
        let source: Vec<u32> = if gather { vec![4, u32::MAX, 0, 8, 4] } else { vec![] };
        into.push(tile(&TilesSpec { cols, prologue, gather, strips }, target, (wave, rows), &source, random)?);
    }
    Ok(())
}

/// A case with `rows` rows of values, of which `source` picks.
pub(super) fn tile(
    spec: &TilesSpec,
    target: &Target,
    (wave, rows): (u32, usize),
    source: &[u32],
    random: &mut Random,
) -> Result<Case, SpecError> {
    let TilesSpec { cols, prologue: kind, gather, strips } = *spec;
    let kernel = spec.kernel_at(target, wave)?;
    let x = random.activations(rows * cols);
    let aux = match kind {
        Prologue::None => vec![],
        Prologue::Norm => random.normals(cols, 1.0),
        Prologue::Silu | Prologue::Gelu => random.normals(rows * cols, 1.0),
    };
    let made: Vec<Vec<f64>> = (0..rows)
        .map(|r| {
            let at = if kind == Prologue::Norm { 0 } else { r * cols };
            prologue(kind, &x[r * cols..][..cols], aux.get(at..).unwrap_or(&[]))
        })
        .collect();
    let want: Vec<Option<Vec<f64>>> = match gather {
        true => source.iter().map(|&s| made.get(s as usize).cloned()).collect(),
        false => made.iter().cloned().map(Some).collect(),
    };
    let args = vec![
        floats("x", &x),
        if aux.is_empty() { CaseArg::Null } else { floats("aux", &aux) },
        output("y", Storage::F16, if strips { want_strips(&want, cols) } else { want_tiled(&want, cols) }, ROUNDED),
        if gather { input("source", u32s(source)) } else { CaseArg::Null },
        CaseArg::F32(1e-5),
    ];
    let (gathered, form) = (said(gather, ", gathered"), said(strips, ", strips"));
    let name = format!("tiles {rows} × {cols}, {kind:?}{gathered}{form}");
    Ok(Case { name, geometry: kernel.launch(want.len() as u32), kernel, args })
}

fn moe(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    for (experts, top, tile, tokens, cols) in [(5, 2, 16, 33, 70), (131, 8, 64, 65, 33), (3, 1, 32, 1, 300)] {
        into.extend(moe_steps(&MoeSpec { experts, top, tile, cols }, target, (wave, tokens), random)?);
    }
    Ok(())
}

/// Counting, placing, summing, in this order.
pub(super) fn moe_steps(
    spec: &MoeSpec,
    target: &Target,
    (wave, tokens): (u32, usize),
    random: &mut Random,
) -> Result<[Case; 3], SpecError> {
    let MoeSpec { experts, top, tile, cols } = *spec;
    // The first expert is everybody's second choice, so that tiles are uneven and some experts have none.
    let chosen: Vec<u32> = (0..tokens)
        .flat_map(|_| {
            let first = random.below(experts) as u32;
            (0..top as u32).map(move |s| if s == 1 && first != 0 { 0 } else { (first + s * 3) % experts as u32 })
        })
        .collect();
    let pairs = chosen.len();
    let counts: Vec<u32> = (0..experts).map(|e| chosen.iter().filter(|&&c| c == e as u32).count() as u32).collect();
    let tiles = spec.tiles(tokens);
    let (mut tile_expert, mut source, mut place) = (vec![u32::MAX; tiles], vec![], vec![0u32; pairs]);
    let mut untouched = vec![];
    for e in 0..experts as u32 {
        let first = source.len();
        for (i, _) in chosen.iter().enumerate().filter(|(_, c)| **c == e) {
            place[i] = source.len() as u32;
            source.push((i / top) as u32);
        }
        source.resize(source.len().next_multiple_of(tile), u32::MAX);
        tile_expert[first / tile..source.len() / tile].fill(e);
    }
    untouched.resize(4 * (tiles * tile - source.len()), 0xff);
    let bytes = |name, values: &[u32], rest: &[u8]| {
        let want = [u32s(values), rest.to_vec()].concat();
        CaseArg::Buffer { name, before: vec![0xff; want.len()], expect: Expect::Bytes(want) }
    };
    let launch = |step| -> Result<_, SpecError> {
        let kernel = spec.kernel_at(step, target, wave)?;
        let blocks = if step == MoeStep::Sum { tokens } else { experts };
        Ok((kernel.launch(blocks as u32), kernel))
    };
    let title = format!("{tokens} tokens, {top} of {experts} experts, tiles of {tile}");
    let (geometry, kernel) = launch(MoeStep::Count)?;
    let args = vec![input("experts", u32s(&chosen)), bytes("counts", &counts, &[]), CaseArg::U32(pairs as u32)];
    let count = Case { name: format!("moe count: {title}"), kernel, geometry, args };
    let (geometry, kernel) = launch(MoeStep::Place)?;
    let args = vec![
        input("experts", u32s(&chosen)),
        input("counts", u32s(&counts)),
        bytes("tile_expert", &tile_expert, &[]),
        bytes("source", &source, &untouched),
        bytes("place", &place, &[]),
        CaseArg::U32(pairs as u32),
        CaseArg::U32(tiles as u32),
    ];
    let place_case = Case { name: format!("moe place: {title}"), kernel, geometry, args };
    let (geometry, kernel) = launch(MoeStep::Sum)?;
    let y = random.normals(tiles * tile * cols, 1.0);
    let shares: Vec<f32> = (0..pairs).map(|_| random.unit() as f32).collect();
    let residual = if top == 1 { vec![] } else { random.normals(tokens * cols, 1.0) };
    let mut want = vec![];
    for t in 0..tokens {
        for c in 0..cols {
            let part = |s: usize| {
                let i = t * top + s;
                f64::from(shares[i]) * f64::from(y[place[i] as usize * cols + c])
            };
            want.push((0..top).map(part).sum::<f64>() + residual.get(t * cols + c).map_or(0.0, |&r| f64::from(r)));
        }
    }
    let args = vec![
        floats("y", &y),
        input("place", u32s(&place)),
        floats("shares", &shares),
        if residual.is_empty() { CaseArg::Null } else { floats("residual", &residual) },
        output("out", Storage::F32, want, SINGLE),
    ];
    let sum = Case { name: format!("moe sum: {title}"), kernel, geometry, args };
    Ok([count, place_case, sum])
}

pub(super) fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    tiles(target, wave, random, into)?;
    moe(target, wave, random, into)?;
    products(target, wave, random, into)
}
