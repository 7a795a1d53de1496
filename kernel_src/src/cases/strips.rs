//! Cases of products with a few rows: every format, numbers of tokens that fill no block, rows and columns that fill no step.

use super::data::Matrix;
use super::matvec::{gelu, silu};
use super::prompt::{GATED, PRODUCT, format, operands, shared_sums, want_strips};
use super::{Case, CaseArg, Random, Storage, output};
use crate::format::ALL;
use crate::kernel::SpecError;
use crate::product::{strip_bytes, strip_index};
use crate::segments::{Finish, Segment};
use crate::strips::{StripsSpec, StripsTuning, covers};
use half::f16;
use kjit_engine::Target;

/// Random halves as strips, with NaN wherever no token is and behind the columns, and their values.
fn strips(rows: usize, cols: usize, random: &mut Random) -> (Vec<u8>, Vec<Vec<f64>>) {
    let mut bytes = vec![0xff; strip_bytes(rows, cols)];
    let mut all = vec![];
    for row in 0..rows {
        let halves: Vec<f16> = random.activations(cols).iter().map(|&v| f16::from_f32(v)).collect();
        for (col, v) in halves.iter().enumerate() {
            bytes[2 * strip_index(row, col, cols)..][..2].copy_from_slice(&v.to_le_bytes());
        }
        all.push(halves.into_iter().map(f16::to_f64).collect());
    }
    (bytes, all)
}

pub(super) fn product(
    spec: &StripsSpec,
    target: &Target,
    tokens: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (geometry, splits) = (spec.geometry(target)?, spec.splits(target)?);
    // A block's tokens are read whole.
    let (mut x, values) = strips(tokens, spec.cols, random);
    x.resize(strip_bytes(spec.tokens, spec.cols), 0xff);
    let mut matrices = vec![];
    for s in &spec.segments {
        let bias = if s.bias { random.normals(s.rows, 0.5) } else { vec![] };
        matrices.push((Matrix::random(s.format, s.rows, spec.cols, random)?, bias));
    }
    let first = spec.segments[0].rows;
    let residual = if spec.finish == Finish::Add { random.normals(tokens * first, 1.0) } else { vec![] };
    let result = |s: usize| -> Vec<Option<Vec<f64>>> {
        let dot = |t: usize, s: usize, row: usize| {
            matrices[s].0.dot(row, &values[t]) + matrices[s].1.get(row).map_or(0.0, |&b| f64::from(b))
        };
        let rows = spec.segments[s].rows;
        let one = |t: usize, row: usize| match spec.finish {
            Finish::Store => dot(t, s, row),
            Finish::Add => dot(t, s, row) + f64::from(residual[t * rows + row]),
            Finish::Silu => silu(dot(t, 0, row)) * dot(t, 1, row),
            Finish::Gelu => gelu(dot(t, 0, row)) * dot(t, 1, row),
        };
        (0..tokens).map(|t| Some((0..rows).map(|row| one(t, row)).collect())).collect()
    };
    let tolerance = if spec.finish.gated() { GATED } else { PRODUCT };
    let y = |s: usize| match spec.strips {
        true => output("y", Storage::F16, want_strips(&result(s), spec.segments[s].rows), tolerance),
        false => output("y", Storage::F32, result(s).into_iter().flatten().flatten().collect(), tolerance),
    };
    let mut args = operands(x, &residual, &matrices, spec.finish, y);
    args.extend(shared_sums(spec.part_bytes(target)?, spec.counters(target)?));
    args.extend([tokens as u32, splits].map(CaseArg::U32));
    let formats: Vec<String> = spec.segments.iter().map(|s| format!("{}×{}", s.format, s.rows)).collect();
    let name = format!(
        "strips {} · {} cols, {tokens} of {} tokens, {:?}{}, {splits} splits, {:?}",
        formats.join(" "),
        spec.cols,
        spec.tokens,
        spec.finish,
        if spec.strips { " strips" } else { "" },
        spec.tuning(target)?
    );
    Ok(Case { name, geometry, kernel: spec.kernel(target)?, args })
}

pub(super) fn cases(target: &Target, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    if !covers(target) {
        return Ok(());
    }
    let tuning = |waves, rows, tiles, ahead| Some(StripsTuning { waves, rows, tiles, ahead, blocks_per_unit: 1 });
    let tunings = [None, tuning(4, 1, 1, 1), tuning(8, 4, 1, 3), tuning(4, 2, 2, 2)];
    for (i, f) in ALL.iter().enumerate() {
        let cols = if f.block_elems() == 256 { 256 } else { 96 + 64 * (i % 2) };
        let (most, tokens) = [(8, 3), (16, 16), (40, 31), (64, 33)][i % 4];
        let spec = StripsSpec { tuning: tunings[i % 3], ..StripsSpec::new(f, 33 + 2 * i, cols, most) };
        into.push(product(&spec, target, tokens, random)?);
    }
    let segment = |name, rows, bias| Segment { format: format(name), rows, bias };
    for (j, &tuning) in tunings.iter().enumerate() {
        let with = |spec: StripsSpec| StripsSpec { tuning, ..spec };
        let gated = tuning.is_none_or(|t| t.rows * t.tiles >= 2);
        let specs = [
            // Three weights of two layouts, as Q, K and V of a mixed file.
            with(StripsSpec {
                segments: vec![segment("Q4_K", 130, true), segment("Q4_K", 33, false), segment("Q6_K", 35, true)],
                ..StripsSpec::new(format("Q4_K"), 1, 512, [8, 16, 24, 64][j])
            }),
            // Few rows and many columns: split.
            with(StripsSpec { finish: Finish::Add, ..StripsSpec::new(format("Q8_0"), 67, 5152, 8) }),
            with(StripsSpec { finish: Finish::Add, ..StripsSpec::new(format("Q4_K"), 40, 4096, 64) }),
            with(StripsSpec { strips: true, ..StripsSpec::new(format("F16"), 104, 128, 16) }),
            with(StripsSpec {
                segments: vec![segment("Q5_1", 72, true), segment("Q5_1", 72, false)],
                finish: [Finish::Silu, Finish::Gelu][j % 2],
                strips: true,
                ..StripsSpec::new(format("Q5_1"), 1, 160, [64, 16, 32, 8][j])
            }),
        ];
        for (spec, tokens) in specs.iter().zip([7, 5, 61, 9, 8]).take(if gated { 5 } else { 4 }) {
            into.push(product(spec, target, tokens, random)?);
        }
    }
    Ok(())
}
