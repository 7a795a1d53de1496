//! Code of oracles that several families share, in f64.

use crate::case::{CaseArg, floats, input, optional};
use crate::data::{Matrix, Random};
use crate::expect::{QUANTISED, SINGLE, Tolerance};
use kjit_kernels::SpecError;
use kjit_kernels::activations::{Column, Form, Prologue};
use kjit_kernels::arguments::SegmentArgs;
use kjit_kernels::heads::{HeadsForm, Scores};
use kjit_kernels::segments::{Finish, MOST, Segment};

/// The epsilon of norms.
pub(crate) const EPS: f32 = 1e-5;

/// `silu` and the tanh form of `gelu`, in f64.
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// A prologue applied to a column, in f64.
pub(crate) fn prologue(p: Prologue, x: &[f32], aux: &[f32]) -> Vec<f64> {
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

/// The other input of a prologue: the weight of a norm, or the other factors of a gated unit.
pub(crate) fn aux(p: Prologue, columns: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    match p {
        Prologue::None => vec![],
        Prologue::Norm => random.normals(cols, 1.0),
        Prologue::Silu | Prologue::Gelu => random.normals(columns * cols, 1.0),
    }
}

/// A prologue applied to columns of `cols`, in f64.
pub(crate) fn prologues(p: Prologue, cols: usize, x: &[f32], aux: &[f32]) -> Vec<Vec<f64>> {
    let one = |(i, x): (usize, &[f32])| {
        let at = if p == Prologue::Norm { 0 } else { i * cols };
        prologue(p, x, aux.get(at..).unwrap_or(&[]))
    };
    x.chunks(cols).enumerate().map(one).collect()
}

/// The tolerance of products with 16-bit or f32 activations.
pub(crate) const fn exact(column: &Column) -> Tolerance {
    match column.form {
        Form::Quantised { .. } => QUANTISED,
        Form::Plain { .. } => SINGLE,
    }
}

/// Activations as f32, or as quantised columns.
pub(crate) fn activations(quantized: bool, column: &Column, x: &[f32]) -> CaseArg {
    match quantized {
        true => input("x", x.chunks(column.cols).flat_map(|x| column.pack(x)).collect::<Vec<u8>>()),
        false => floats("x", x),
    }
}

/// The epilogue of a row: `dot(s, row)` is the product with a row of segment `s`, `residual` is
/// added.
pub(crate) fn finished(
    finish: Finish,
    s: usize,
    row: usize,
    dot: impl Fn(usize, usize) -> f64,
    residual: f32,
) -> f64 {
    match finish {
        Finish::Store => dot(s, row),
        Finish::Add => dot(s, row) + f64::from(residual),
        Finish::Silu => silu(dot(0, row)) * dot(1, row),
        Finish::Gelu => gelu(dot(0, row)) * dot(1, row),
    }
}

/// Random weights of a product with their biases.
pub(crate) fn matrices(
    segments: &[Segment],
    cols: usize,
    experts: usize,
    random: &mut Random,
) -> Result<Vec<(Matrix, Vec<f32>)>, SpecError> {
    let one = |s: &Segment| {
        let bias = if s.bias { random.normals(s.rows, 0.5) } else { vec![] };
        Ok((Matrix::random(s.format, s.rows * experts, cols, random)?, bias))
    };
    segments.iter().map(one).collect()
}

/// The arguments of a product for its weights. `y` returns the output of a segment.
pub(crate) fn segment_args(
    matrices: &[(Matrix, Vec<f32>)],
    finish: Finish,
    y: impl Fn(usize) -> CaseArg,
) -> [SegmentArgs<CaseArg>; MOST] {
    std::array::from_fn(|s| match matrices.get(s) {
        Some((matrix, bias)) => SegmentArgs {
            w: input("w", matrix.records.clone()),
            b: optional("b", bias),
            y: if finish.gated() && s == 1 { CaseArg::Null } else { y(s) },
        },
        None => SegmentArgs { w: CaseArg::Null, b: CaseArg::Null, y: CaseArg::Null },
    })
}

/// Weights in a case's name: `Q4_K×130 Q6_K×35`.
pub(crate) fn named(segments: &[Segment]) -> String {
    segments.iter().map(|s| format!("{}×{}", s.format, s.rows)).collect::<Vec<_>>().join(" ")
}

/// The probabilities of the positions that a head sees from `here`, of `all`, and the first of
/// these positions. `dot` is the scaled product with the key of a position, `sink` the head's score
/// without a value.
pub(crate) fn shares(
    scores: &Scores,
    (head, heads): (usize, usize),
    (here, all): (usize, usize),
    sink: Option<f32>,
    dot: impl Fn(usize) -> f64,
) -> (usize, Vec<f64>) {
    let first = (0..=here)
        .find(|p| {
            scores.around.is_none_or(|n| here - p <= n)
                && scores.window.is_none_or(|w| here - p < w)
                && scores.chunk.is_none_or(|n| here / n == p / n)
        })
        .unwrap_or(here);
    let slope = scores.alibi.map_or(0.0, |most| {
        let n = 1usize << heads.ilog2();
        let exponent = if head < n { (head + 1) as f64 } else { (head - n) as f64 + 0.5 };
        (-f64::from(most) * exponent / n as f64).exp2()
    });
    let score = |p: usize| {
        let s = dot(p);
        let s = scores.soft_cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh());
        s - slope * here.abs_diff(p) as f64
    };
    let end = scores.around.map_or(here + 1, |n| (here + 1).saturating_add(n).min(all));
    let seen: Vec<f64> = (first..end).map(score).collect();
    let sink = sink.map(f64::from);
    let most = seen.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = seen.iter().copied().chain(sink).map(|s| (s - most).exp()).sum();
    (first, seen.iter().map(|s| (s - most).exp() / sum).collect())
}

/// Sinks (scores without a value), one for each head if there are any: some above all scores, some
/// far below.
pub(crate) fn sinks(scores: &Scores, heads: usize, random: &mut Random) -> Vec<f32> {
    if scores.sinks { random.normals(heads, 4.0) } else { vec![] }
}

/// The epsilon of the norms of heads.
pub(crate) const HEADS_EPS: f32 = 1e-6;

/// Norm and rotation of a head, in f64.
pub(crate) fn ready(
    form: &HeadsForm,
    x: &[f32],
    norm: &[f32],
    table: &[f32],
    position: usize,
) -> Vec<f64> {
    let mut v: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    if form.qk_norm {
        let mean = v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        let scale = 1.0 / (mean + f64::from(HEADS_EPS)).sqrt();
        v.iter_mut().zip(norm).for_each(|(x, &w)| *x *= scale * f64::from(w));
    }
    for i in 0..form.rope.dims / 2 {
        let at = 2 * (position * form.rope.dims / 2 + i);
        let (c, s) = (f64::from(table[at]), f64::from(table[at + 1]));
        let (a, b) =
            if form.rope.halves { (i, i + form.rope.dims / 2) } else { (2 * i, 2 * i + 1) };
        (v[a], v[b]) = (v[a] * c - v[b] * s, v[a] * s + v[b] * c);
    }
    v
}
