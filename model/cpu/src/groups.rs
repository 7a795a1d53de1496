//! Products of rows with the matrices of their experts, for all experts in one step of the pool.
//!
//! The matrix of an expert has some hundred kilobytes. With a separate step for each expert, 32
//! threads would wait for each other longer than they compute. Each matrix is read once for all
//! rows that chose its expert, as in [`multiply`](super::multiply).

use super::dot::{DotProduct, Input};
use super::gemm::PanelProduct;
use super::matvec::RowProduct;
use super::multiply::PANEL_TOKENS;
use super::pool::Pool;
use super::product::{Matrix, Part};
use super::quantise::{Quantise, Quantised};
use super::shared_mut::SharedMut;
use super::simd::{Isa, LANES};
use kjit_formats::format::Encoding;
use std::ops::Range;

/// Below this number of rows a single thread gathers them.
const SERIAL: usize = 32;

/// The rows that are multiplied with one expert's matrix.
pub struct Group<'a> {
    /// The matrix.
    pub w: Matrix<'a>,
    /// The bias, which is added to the result of each row.
    pub bias: Option<&'a [f32]>,
    /// Pairs of a row of the input and a row of the result.
    pub rows: Vec<(usize, usize)>,
    /// Index of the result.
    pub out: usize,
}

/// Multiplies the rows of `x`, by groups, into the rows of the results. All matrices have one shape
/// and format. If `rounded`, few rows are multiplied as integers. `reproducible`: see
/// [`multiply`](super::multiply::multiply).
pub fn multiply_groups(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    groups: &[Group<'_>],
    outs: &mut [&mut [f32]],
    rounded: bool,
    reproducible: bool,
) {
    let Some(first) = groups.first() else { return };
    let (cols, height) = (first.w.cols, first.w.rows);
    let blocks = matches!(first.w.format.encoding, Encoding::Blocks(_));
    let starts: Vec<usize> = groups
        .iter()
        .scan(0, |at, g| {
            *at += g.rows.len();
            Some(*at - g.rows.len())
        })
        .collect();
    let all: usize = groups.iter().map(|g| g.rows.len()).sum();
    // The rows of each group are gathered contiguously, unless all groups use the single row 0.
    let alone = groups.iter().all(|g| matches!(g.rows[..], [(0, _)]));
    let mut gathered = vec![0.0; if alone { 0 } else { all * cols }];
    let place = SharedMut::new(&mut gathered);
    let gather = |g: usize| {
        for (i, (from, _)) in groups[g].rows.iter().enumerate() {
            // SAFETY: each group writes its own rows.
            unsafe { place.part((starts[g] + i) * cols, cols) }
                .copy_from_slice(&x[from * cols..][..cols]);
        }
    };
    match (alone, all < SERIAL) {
        (true, _) => {}
        (_, true) => (0..groups.len()).for_each(gather),
        (_, false) => pool.run(groups.len(), &gather),
    }
    let of = |rows: Range<usize>| {
        if alone { &x[..cols] } else { &gathered[rows.start * cols..rows.end * cols] }
    };
    let input = |g: usize| of(starts[g]..starts[g] + if alone { 1 } else { groups[g].rows.len() });
    // If all groups use the same row, it is rounded once.
    let of_groups = match (rounded && blocks, alone) {
        (false, _) => 0,
        (true, true) => 1,
        (true, false) => groups.len(),
    };
    let mut small: Vec<Quantised> = vec![];
    for (g, group) in groups.iter().enumerate().take(of_groups) {
        let mut to = Quantised::default();
        if reproducible || group.rows.len() < PANEL_TOKENS {
            // SAFETY: this job has no requirement on its fields; rows of block formats are
            // multiples of 32 long.
            unsafe {
                isa.run(Quantise { x: input(g), cols, to: to.fit(input(g).len() / cols, cols) })
            };
        }
        small.push(to);
    }
    let none = Quantised::default();
    let many = |g: usize| !reproducible && groups[g].rows.len() >= PANEL_TOKENS;
    // Rows per task: eight tasks per thread in total, or panels if there are many rows.
    let few = (groups.len() * height).div_ceil(8 * pool.threads()).clamp(8, 256);
    let run = |g: usize| if many(g) { LANES } else { few };
    let mut tasks: Vec<(usize, usize)> = vec![];
    for g in 0..groups.len() {
        tasks.extend((0..height).step_by(run(g)).map(|row| (g, row)));
    }
    let outs: Vec<SharedMut<'_>> = outs.iter_mut().map(|out| SharedMut::new(out)).collect();
    pool.run(tasks.len(), &|task| {
        let (g, row) = tasks[task];
        let Group { w, bias, rows: uses, out } = &groups[g];
        let (rows, x, tokens) = (run(g).min(height - row), input(g), uses.len());
        let mut made = vec![0.0; tokens * rows];
        // Copies these rows to a separate matrix.
        let bytes = &w.bytes[row * w.row_bytes()..][..rows * w.row_bytes()];
        let w = Matrix { bytes, rows, ..*w };
        let bias = bias.map(|b| &b[row..row + rows]);
        let part = Part { w, row: 0, rows, x, tokens, bias, out: made.as_mut_ptr(), stride: rows };
        let quantised = small.get(if alone { 0 } else { g }).unwrap_or(&none);
        // SAFETY: `made` has a row for each token, as wide as the matrix has rows, and belongs to
        // this task.
        unsafe {
            match rounded {
                _ if many(g) => isa.run(PanelProduct(part)),
                false => isa.run(RowProduct(part)),
                true => DotProduct(part.with(Input { x, rounded: quantised, ahead: isa.ahead() }))
                    .run(isa),
            }
        }
        for ((_, to), made) in uses.iter().zip(made.chunks_exact(rows)) {
            // SAFETY: no other task has these rows of the matrix for this row of the result.
            unsafe { outs[*out].part(to * height + row, rows) }.copy_from_slice(made);
        }
    });
}
