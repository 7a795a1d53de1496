//! Cases of routing and of the experts' matrices.

use super::data::Matrix;
use super::matvec::{EPS, activations, gelu, prologue, silu};
use super::{Case, CaseArg, Expect, QUANTISED, Random, SINGLE, Storage, Tolerance, floats, input, output, words};
use crate::activations::{Form, Prologue};
use crate::experts::{ExpertFinish, ExpertSumSpec, ExpertsSpec, RouteSpec};
use crate::format::Format;
use crate::kernel::SpecError;
use crate::matvec::MatvecTuning;
use kjit_engine::Target;

pub(super) fn route(
    spec: &RouteSpec,
    target: &Target,
    (wave, tokens): (u32, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (n, scale) = (spec.experts, 1.5f32);
    let mut scores = random.normals(tokens * n, 2.0);
    // Ties, also across lanes: the lower index must come first.
    let most = scores[..n].iter().fold(f32::MIN, |a, &b| a.max(b)) + 1.0;
    scores[n - 1] = most;
    scores[n / 2] = most;
    if tokens > 1 {
        scores[n..2 * n].fill(0.25);
    }
    let (mut experts, mut shares) = (vec![], vec![]);
    for row in scores.chunks(n) {
        let most = row.iter().fold(f32::MIN, |a, &b| a.max(b));
        let e: Vec<f64> = row.iter().map(|&v| (f64::from(v) - f64::from(most)).exp()).collect();
        let all: f64 = e.iter().sum();
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        let chosen: f64 = order[..spec.top].iter().map(|&i| e[i] / all).sum();
        for &i in &order[..spec.top] {
            experts.extend((i as u32).to_le_bytes());
            shares.push(e[i] / all / if spec.renormalise { chosen } else { 1.0 } * f64::from(scale));
        }
    }
    let kernel = spec.kernel_at(target, wave)?;
    Ok(Case {
        name: format!("route {} of {n}, renormalise {}, wave {wave}", spec.top, spec.renormalise),
        geometry: kernel.launch(tokens as u32),
        kernel,
        args: vec![
            floats("scores", &scores),
            CaseArg::Buffer { name: "experts", before: vec![0xff; experts.len()], expect: Expect::Bytes(experts) },
            output("shares", Storage::F32, shares, SINGLE),
            CaseArg::F32(scale),
        ],
    })
}

pub(super) fn expert_sum(
    spec: &ExpertSumSpec,
    target: &Target,
    tokens: usize,
    random: &mut Random,
) -> Result<Case, SpecError> {
    let x = random.normals(tokens * spec.top * spec.cols, 1.0);
    let shares = random.normals(tokens * spec.top, 1.0);
    let residual = if spec.residual { random.normals(tokens * spec.cols, 1.0) } else { vec![] };
    let mut want = vec![];
    for t in 0..tokens {
        for c in 0..spec.cols {
            let slot =
                |s: usize| f64::from(shares[t * spec.top + s]) * f64::from(x[(t * spec.top + s) * spec.cols + c]);
            let sum: f64 = (0..spec.top).map(slot).sum();
            want.push(sum + residual.get(t * spec.cols + c).map_or(0.0, |&v| f64::from(v)));
        }
    }
    let kernel = spec.kernel(target)?;
    let mut geometry = kernel.launch(1);
    geometry.grid = spec.geometry(target, tokens as u32)?.grid;
    Ok(Case {
        name: format!("expert_sum {} × {}, residual {}", spec.top, spec.cols, spec.residual),
        geometry,
        kernel,
        args: vec![
            floats("x", &x),
            floats("shares", &shares),
            if spec.residual { floats("residual", &residual) } else { CaseArg::Null },
            output("out", Storage::F32, want, SINGLE),
        ],
    })
}

/// A case with `stack` experts' matrices on a device of `units` compute units.
pub(super) fn experts(
    spec: &ExpertsSpec,
    target: &Target,
    (units, stack): (u32, usize),
    random: &mut Random,
) -> Result<Case, SpecError> {
    let (cols, rows) = (spec.cols, spec.rows);
    let slots = spec.tokens * spec.top;
    let chosen: Vec<u32> = (0..slots).map(|i| ((i * 3 + 4) % stack) as u32).collect();
    let shares = random.normals(slots, 1.0);
    let x = random.activations(spec.columns() * cols);
    let aux = match spec.prologue {
        Prologue::None => vec![],
        Prologue::Norm => random.normals(cols, 1.0),
        Prologue::Silu | Prologue::Gelu => random.normals(spec.columns() * cols, 1.0),
    };
    let columns: Vec<Vec<f64>> = x
        .chunks(cols)
        .enumerate()
        .map(|(i, x)| {
            let at = if spec.prologue == Prologue::Norm { 0 } else { i * cols };
            prologue(spec.prologue, x, aux.get(at..).unwrap_or(&[]))
        })
        .collect();
    let gated = matches!(spec.finish, ExpertFinish::Silu | ExpertFinish::Gelu);
    let first = Matrix::random(spec.format, stack * rows, cols, random)?;
    let second = if gated { Some(Matrix::random(spec.format, stack * rows, cols, random)?) } else { None };
    let dots = |m: &Matrix| -> Vec<Vec<f64>> { columns.iter().map(|c| m.dots(c)).collect() };
    let (firsts, seconds) = (dots(&first), second.as_ref().map(dots));
    let dot = |dots: &[Vec<f64>], slot: usize, row: usize| {
        let column = if spec.per_slot { slot } else { slot / spec.top };
        dots[column][(chosen[slot] as usize * rows + row) % first.distinct]
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
                let slot = |s: usize| f64::from(shares[t * spec.top + s]) * dot(&firsts, t * spec.top + s, row);
                let sum: f64 = (0..spec.top).map(slot).sum();
                want.push(sum + residual.get(t * rows + row).map_or(0.0, |&v| f64::from(v)));
            }
        }
    } else {
        for slot in 0..slots {
            for row in 0..rows {
                let a = dot(&firsts, slot, row);
                let b = seconds.as_ref().map_or(1.0, |m| dot(m, slot, row));
                want.push(match spec.finish {
                    ExpertFinish::Silu => silu(a) * b,
                    ExpertFinish::Gelu => gelu(a) * b,
                    ExpertFinish::Store | ExpertFinish::Sum { .. } => a,
                });
            }
        }
    }
    let base = match spec.column()?.form {
        Form::Quantised { .. } => QUANTISED,
        Form::Plain { .. } => SINGLE,
    };
    let tolerance = Tolerance { norm: 2.0 * base.norm, each: 4.0 * base.each, ..base };
    let kernel = spec.kernel(target)?;
    let blocks = spec.blocks(target, units)?;
    let t = spec.tuning(target)?;
    let optional = |name, v: &[f32]| if v.is_empty() { CaseArg::Null } else { floats(name, v) };
    Ok(Case {
        name: format!(
            "experts {} {rows} × {cols}, {} tokens × {}, {:?}, {:?}, wave {} team {} rows {} batch {}",
            spec.format, spec.tokens, spec.top, spec.prologue, spec.finish, t.wave, t.team, t.rows, t.batch
        ),
        geometry: kernel.launch(blocks),
        kernel,
        args: vec![
            activations(spec.prepared, &spec.column()?, &x),
            optional("aux", &aux),
            words("experts", &chosen),
            floats("shares", &shares),
            optional("residual", &residual),
            input("w0", first.records),
            second.map_or(CaseArg::Null, |m| input("w1", m.records)),
            output("y", Storage::F32, want, tolerance),
            CaseArg::F32(EPS),
            CaseArg::U32(blocks),
        ],
    })
}

pub(super) fn cases(target: &Target, wave: u32, random: &mut Random, into: &mut Vec<Case>) -> Result<(), SpecError> {
    for (experts, top, renormalise) in [(128, 8, true), (7, 2, false), (65, 32, true)] {
        into.push(route(&RouteSpec { experts, top, renormalise }, target, (wave, 3), random)?);
    }
    into.push(expert_sum(&ExpertSumSpec { cols: 131, top: 8, residual: true }, target, 2, random)?);
    into.push(expert_sum(&ExpertSumSpec { cols: 64, top: 1, residual: false }, target, 2, random)?);
    let tuning = |team, rows, batch| {
        Some(MatvecTuning { wave, block: 2 * wave, team, rows, batch, blocks_per_unit: 1, alone: false })
    };
    for (format, rows, cols, tokens, top, per_slot, prologue, finish, tuning) in [
        ("Q4_K", 35, 512, 1, 4, false, Prologue::Norm, ExpertFinish::Silu, tuning(16, 1, 2)),
        ("Q6_K", 33, 768, 1, 4, true, Prologue::None, ExpertFinish::Sum { residual: true }, tuning(wave, 2, 1)),
        ("Q8_0", 17, 96, 3, 2, false, Prologue::None, ExpertFinish::Gelu, tuning(2 * wave, 1, 1)),
        ("F16", 19, 72, 2, 3, true, Prologue::Gelu, ExpertFinish::Sum { residual: false }, tuning(8, 1, 2)),
        ("MXFP4", 21, 160, 2, 2, true, Prologue::None, ExpertFinish::Store, tuning(4, 2, 3)),
        ("Q4_0", 18, 64, 27, 3, false, Prologue::None, ExpertFinish::Silu, tuning(8, 1, 1)),
    ] {
        let Some(format) = Format::by_name(format) else { continue };
        let prepared = false;
        let spec = ExpertsSpec { format, rows, cols, tokens, top, per_slot, prologue, prepared, finish, tuning };
        into.push(experts(&spec, target, (2, 5), random)?);
    }
    Ok(())
}
