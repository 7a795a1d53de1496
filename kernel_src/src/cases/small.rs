//! Cases of norms, softmax, sums, gated units, the embedding and copies of rows.

use super::data::Matrix;
use super::matvec::{gelu, silu};
use super::{Case, CaseArg, Expect, Random, SINGLE, Storage, Tolerance, floats, input, output, words};
use crate::elementwise::{Combine, CombineSpec, RowsSpec};
use crate::embed::EmbedSpec;
use crate::format::ALL;
use crate::kernel::SpecError;
use crate::layout::Layout;
use crate::norm::{NormKind, NormSpec, SoftmaxSpec};
use kjit_engine::Target;

const EPS: f32 = 1e-5;

pub(super) fn norm(
    spec: &NormSpec,
    target: &Target,
    (wave, rows): (u32, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let cols = spec.cols;
    let x: Vec<f32> = random.activations(rows * cols).iter().map(|v| v + 0.3).collect();
    let (weight, bias) = (random.normals(cols, 1.0), random.normals(cols, 1.0));
    let residual = if spec.residual { random.normals(rows * cols, 1.0) } else { vec![] };
    let mut want = vec![];
    for (r, row) in x.chunks(cols).enumerate() {
        let n = cols as f64;
        let mean = if spec.kind == NormKind::Rms { 0.0 } else { row.iter().map(|&v| f64::from(v)).sum::<f64>() / n };
        let var = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (var + f64::from(EPS)).sqrt();
        for (c, &v) in row.iter().enumerate() {
            let mut y = (f64::from(v) - mean) * scale * f64::from(weight[c]);
            if spec.kind == (NormKind::Layer { bias: true }) {
                y += f64::from(bias[c]);
            }
            want.push(y + residual.get(r * cols + c).map_or(0.0, |&v| f64::from(v)));
        }
    }
    let kernel = spec.kernel_at(target, wave)?;
    Ok(Case {
        name: format!("norm_rows {:?} · {rows} × {cols}, residual {}, wave {wave}", spec.kind, spec.residual),
        geometry: kernel.launch(rows as u32),
        kernel,
        args: vec![
            floats("x", &x),
            floats("weight", &weight),
            if spec.kind == (NormKind::Layer { bias: true }) { floats("bias", &bias) } else { CaseArg::Null },
            if spec.residual { floats("residual", &residual) } else { CaseArg::Null },
            output("y", Storage::F32, want, SINGLE),
            CaseArg::F32(EPS),
        ],
    })
}

pub(super) fn softmax(
    cols: usize,
    target: &Target,
    (wave, rows): (u32, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let scale = 0.7f32;
    let x = random.normals(rows * cols, 8.0);
    let mut want = vec![];
    for row in x.chunks(cols) {
        let most = row.iter().fold(f32::MIN, |a, &b| a.max(b * scale));
        let e: Vec<f64> = row.iter().map(|&v| (f64::from(v) * f64::from(scale) - f64::from(most)).exp()).collect();
        let sum: f64 = e.iter().sum();
        want.extend(e.iter().map(|e| e / sum));
    }
    let kernel = SoftmaxSpec { cols }.kernel_at(target, wave)?;
    let tolerance = Tolerance { norm: 5e-6, each: 4e-5, reason: "scores of up to 30 in single precision" };
    Ok(Case {
        name: format!("softmax · {rows} × {cols}, wave {wave}"),
        geometry: kernel.launch(rows as u32),
        kernel,
        args: vec![floats("x", &x), output("y", Storage::F32, want, tolerance), CaseArg::F32(scale)],
    })
}

/// A case of `n` elements in so many blocks.
pub(super) fn combine(
    op: Combine,
    target: &Target,
    (n, blocks): (usize, u32),
    random: &mut Random,
) -> Result<Case, SpecError> {
    // From where the activation vanishes to where it is the identity, and infinities that must not turn into NaN.
    let mut a = random.normals(n, 6.0);
    a[0] = 0.0;
    a[1] = 90.0;
    a[2] = -90.0;
    a[3] = 1e-6;
    let b = random.normals(n, 1.0);
    let want = a.iter().zip(&b).map(|(&a, &b)| {
        let (a, b) = (f64::from(a), f64::from(b));
        match op {
            Combine::Add => a + b,
            Combine::Silu => silu(a) * b,
            Combine::Gelu => gelu(a) * b,
        }
    });
    let kernel = CombineSpec { op }.kernel(target)?;
    Ok(Case {
        name: format!("combine {op:?} · {n}"),
        geometry: kernel.launch(blocks),
        kernel,
        args: vec![
            floats("a", &a),
            floats("b", &b),
            output("y", Storage::F32, want.collect(), SINGLE),
            CaseArg::U64(n as u64),
            CaseArg::U32(blocks),
        ],
    })
}

/// A case of `rows` rows of a table of `vocab`.
pub(super) fn embed(
    spec: &EmbedSpec,
    target: &Target,
    (rows, vocab): (usize, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let capacity = rows + 6;
    let cols = spec.layout.cols;
    let table = Matrix::random(spec.layout.format, vocab, cols, random)?;
    let tokens: Vec<u32> = (0..capacity * rows).map(|_| random.below(vocab) as u32).collect();
    let position: Vec<u32> = if spec.batch { (0..rows as u32).map(|p| (8 + p) % 9).collect() } else { vec![4] };
    // Another order than the rows'.
    let slots: Vec<u32> = (0..rows as u32).map(|r| (r + rows as u32 - 1) % rows as u32).collect();
    let scale = 1.75f32;
    let mut want = vec![];
    for (r, &slot) in slots.iter().enumerate() {
        let place = slot as usize;
        let at = if spec.batch { place * capacity + position[place] as usize } else { position[0] as usize + r };
        let row = &table.values[tokens[at] as usize % table.distinct * cols..][..cols];
        want.extend(row.iter().map(|&v| f64::from(v) * f64::from(scale)));
    }
    let kernel = spec.kernel(target)?;
    let mut geometry = kernel.launch(1);
    geometry.grid = spec.geometry(target, rows as u32)?.grid;
    Ok(Case {
        name: format!("embed {} · {cols} cols, batch {}", spec.layout.format, spec.batch),
        geometry,
        kernel,
        args: vec![
            input("table", table.records),
            words("tokens", &tokens),
            if spec.batch { words("slots", &slots) } else { CaseArg::Null },
            words("position", &position),
            output("out", Storage::F32, want, SINGLE),
            CaseArg::F32(scale),
            CaseArg::U32(capacity as u32),
        ],
    })
}

/// A case of rows of `width` words, picked of seven.
pub(super) fn rows(target: &Target, width: usize, random: &mut Random) -> Result<Case, SpecError> {
    let which = [6u32, 0, 6, 3];
    let x = random.normals(7 * width, 1.0);
    let want: Vec<u8> =
        which.iter().flat_map(|&r| &x[r as usize * width..][..width]).flat_map(|v| v.to_le_bytes()).collect();
    let kernel = RowsSpec.kernel(target)?;
    let mut geometry = kernel.launch(1);
    geometry.grid = RowsSpec.geometry(target, which.len() as u32, width as u32)?.grid;
    Ok(Case {
        name: format!("rows · {} of {width}", which.len()),
        geometry,
        kernel,
        args: vec![
            floats("x", &x),
            words("which", &which),
            CaseArg::Buffer { name: "out", before: vec![0xff; want.len()], expect: Expect::Bytes(want) },
            CaseArg::U32(width as u32),
        ],
    })
}

pub(super) fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    for (cols, kind, residual) in [
        (1, NormKind::Rms, false),
        (63, NormKind::Rms, true),
        (576, NormKind::Rms, false),
        (4099, NormKind::Rms, true),
        (65, NormKind::Layer { bias: true }, false),
        (1021, NormKind::Layer { bias: false }, true),
    ] {
        into.push(norm(&NormSpec { cols, kind, residual }, target, (wave, 3), random)?);
    }
    for cols in [33, 2053] {
        into.push(softmax(cols, target, (wave, 2), random)?);
    }
    for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
        into.push(combine(op, target, (1009, 2), random)?);
    }
    for (i, format) in ALL.iter().enumerate() {
        let cols = if format.block_elems() == 1 { 61 + i } else { 2 * format.block_elems() };
        into.push(embed(
            &EmbedSpec { layout: Layout::new(format, cols)?, batch: i % 2 == 1 },
            target,
            (3, 41),
            random,
        )?);
    }
    into.push(rows(target, 301, random)?);
    Ok(())
}
