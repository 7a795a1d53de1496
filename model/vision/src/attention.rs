//! Attention of every row to all rows, and rotations by line and column.

use kjit_cpu::Dense;

/// Rows of queries whose scores are in memory at the same time.
const QUERIES: usize = 512;
/// The base of the frequencies of Pixtral.
const BASE: f64 = 10_000.0;

/// Attention of every row to all rows.
pub fn attention(
    dense: &mut Dense,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    width: usize,
    heads: usize,
) -> Vec<f32> {
    let (rows, each) = (q.len() / width, width / heads);
    let scale = 1.0 / (each as f32).sqrt();
    let mut out = vec![0.0; q.len()];
    let head = |x: &[f32], at: usize| -> Vec<f32> {
        x.chunks_exact(width).flat_map(|row| &row[at..at + each]).copied().collect()
    };
    for at in (0..width).step_by(each) {
        let (q, k, v) = (head(q, at), head(k, at), head(v, at));
        let mut turned = vec![0.0; v.len()];
        for (row, v) in v.chunks_exact(each).enumerate() {
            v.iter().enumerate().for_each(|(i, v)| turned[i * rows + row] = *v);
        }
        for first in (0..rows).step_by(QUERIES) {
            let q = &q[first * each..((first + QUERIES) * each).min(q.len())];
            let mut scores = dense.product(&k, each, q);
            dense.rows(&mut scores, rows, &|_, row| softmax(row, scale));
            let made = dense.product(&turned, rows, &scores);
            for (row, made) in made.chunks_exact(each).enumerate() {
                out[(first + row) * width + at..][..each].copy_from_slice(made);
            }
        }
    }
    out
}

fn softmax(row: &mut [f32], scale: f32) {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = ((*x - most) * scale).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// Rotates the heads of rows, which are patches in lines of `columns`, as Pixtral does. In a head
/// of `each` elements, pairs of neighbours turn: the first half of them by the line, the second by
/// the column.
pub fn turn(rows: &mut [f32], width: usize, each: usize, columns: usize) {
    let (pairs, half) = (each / 2, each / 4);
    let frequency = |pair: usize| {
        let step = if pair < half { 2 * pair } else { 2 * (pair - half) + 1 };
        BASE.powf(-2.0 * step as f64 / each as f64)
    };
    let frequencies: Vec<f64> = (0..pairs).map(frequency).collect();
    for (at, row) in rows.chunks_exact_mut(width).enumerate() {
        let (line, column) = ((at / columns) as f64, (at % columns) as f64);
        let along = |pair: usize| if pair < half { line } else { column };
        let angle = |pair: usize| along(pair) * frequencies[pair];
        let turns: Vec<(f32, f32)> =
            (0..pairs).map(|pair| (angle(pair).sin() as f32, angle(pair).cos() as f32)).collect();
        for head in row.chunks_exact_mut(each) {
            for (two, (sin, cos)) in head.chunks_exact_mut(2).zip(&turns) {
                let [a, b] = [two[0], two[1]];
                (two[0], two[1]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
    }
}
