//! The formats with blocks of 32 weights: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

use super::fit::{Candidates, affine, signed};
use super::lanes::{Lanes, by_group};
use super::pack;
use kjit_formats::format::{BlockFormat, Offset};

/// Weights in a block.
const BLOCK: usize = 32;

/// Lanes of a fit.
const N: usize = 8;

/// Converts to an integer, toward zero; 0 if it is out of range.
#[inline(always)]
pub fn truncated(v: f32) -> i32 {
    if v.abs() < 2_147_483_648.0 { v as i32 } else { 0 }
}

/// The reciprocal of a scale; 0 if the scale is 0.
#[inline(always)]
pub fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// A row of Q4_0 or Q5_0, whose codes have a bias of half their range.
#[inline(always)]
pub fn biased<const HALF: i32>(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let Some(w) = w else {
        for (x, block) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(format.bytes)) {
            let largest = x.iter().fold(0.0f32, |m, &x| if m.abs() < x.abs() { x } else { m });
            let scale = largest / -(HALF as f32);
            let (inverse, top) = (reciprocal(scale), 2 * HALF - 1);
            pack::half(block, 0, scale);
            let code = |i: usize| truncated(x[i] * inverse + (HALF as f32 + 0.5)) as i8;
            let codes: [u8; BLOCK] = std::array::from_fn(|i| i32::from(code(i)).min(top) as u8);
            pack::planes(format.planes, &codes, block);
        }
        return;
    };
    let mean = x.iter().fold(0.0, |sum, x| sum + x * x) / x.len() as f32;
    let runs = x.chunks(BLOCK * N).zip(w.chunks(BLOCK * N));
    for ((x, w), out) in runs.zip(out.chunks_mut(format.bytes * N)) {
        let (lanes, weights) = weighted(x, w, mean);
        let fit = signed(&lanes, &weights, HALF as f32);
        let codes = lanes.map(|x| fit.codes(x));
        for (n, block) in out.chunks_exact_mut(format.bytes).enumerate() {
            pack::half(block, 0, fit.scale.0[n]);
            let codes: [u8; BLOCK] = std::array::from_fn(|i| codes[i].0[n] as u8);
            pack::planes(format.planes, &codes, block);
        }
    }
}

/// A row of Q4_1 or Q5_1, which have a minimum.
#[inline(always)]
pub fn offset<const TOP: i32>(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let Offset::Plus(at) = format.offset else { return };
    let Some(w) = w else {
        for (x, block) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(format.bytes)) {
            let low = x.iter().fold(f32::MAX, |m, &x| if x < m { x } else { m });
            let high = x.iter().fold(-f32::MAX, |m, &x| if x > m { x } else { m });
            let scale = (high - low) / TOP as f32;
            let inverse = reciprocal(scale);
            pack::half(block, 0, scale);
            pack::half(block, usize::from(at), low);
            let code = |i: usize| truncated((x[i] - low) * inverse + 0.5);
            let codes: [u8; BLOCK] = std::array::from_fn(|i| code(i).min(TOP) as u8);
            pack::planes(format.planes, &codes, block);
        }
        return;
    };
    let candidates = Candidates { start: -0.9, step: 0.05, count: 36, absolute: false };
    let mean = x.iter().fold(0.0, |sum, x| sum + x * x) / x.len() as f32;
    let runs = x.chunks(BLOCK * N).zip(w.chunks(BLOCK * N));
    for ((x, w), out) in runs.zip(out.chunks_mut(format.bytes * N)) {
        let (lanes, weights) = weighted(x, w, mean);
        let fit = affine(&lanes, &weights, TOP as f32, &candidates);
        let codes = lanes.map(|x| fit.codes(x));
        for (n, block) in out.chunks_exact_mut(format.bytes).enumerate() {
            pack::half(block, 0, fit.scale.0[n]);
            pack::half(block, usize::from(at), -fit.offset.0[n]);
            let codes: [u8; BLOCK] = std::array::from_fn(|i| codes[i].0[n] as u8);
            pack::planes(format.planes, &codes, block);
        }
    }
}

/// A row of Q8_0.
#[inline(always)]
pub fn bytes(format: &BlockFormat, x: &[f32], out: &mut [u8]) {
    for (x, block) in x.chunks_exact(BLOCK).zip(out.chunks_exact_mut(format.bytes)) {
        let scale = most(x) / 127.0;
        let inverse = reciprocal(scale);
        pack::half(block, 0, scale);
        let codes: [u8; BLOCK] =
            std::array::from_fn(|i| truncated((x[i] * inverse).round()) as i8 as u8);
        pack::planes(format.planes, &codes, block);
    }
}

/// The largest magnitude.
#[inline(always)]
pub fn most(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |m, x| if m > x.abs() { m } else { x.abs() })
}

/// Up to eight blocks as lanes, and their importance.
#[inline(always)]
fn weighted(x: &[f32], w: &[f32], mean: f32) -> ([Lanes<N>; BLOCK], [Lanes<N>; BLOCK]) {
    let (mut lanes, mut weights) = ([Lanes::all(0.0); BLOCK], [Lanes::all(0.0); BLOCK]);
    by_group(x, BLOCK, &mut lanes);
    by_group(w, BLOCK, &mut weights);
    for (w, x) in weights.iter_mut().zip(&lanes) {
        *w = *w * (Lanes::all(mean) + *x * *x).sqrt();
    }
    (lanes, weights)
}
