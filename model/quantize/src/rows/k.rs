//! The K formats: super-blocks of 256 weights in groups of 16 or 32, with quantised group scales.

use super::fit::{Candidates, affine, improved, positive, signed};
use super::lanes::{Lanes, by_group, nearest};
use super::pack;
use kjit_formats::format::{BlockFormat, Offset};

/// Weights in a super-block.
const SUPER: usize = 256;

/// Lanes of a fit.
const N: usize = 8;

/// Candidates for a row with importance.
const WEIGHTED: Candidates = Candidates { start: -0.9, step: 0.05, count: 36, absolute: false };

/// The parameters in which Q2_K, Q4_K and Q5_K differ.
struct Steps {
    /// The largest code of a weight.
    top: f32,
    /// The largest code of a group's scale and offset.
    scale_top: i32,
    /// Candidates for a row without importance.
    plain: Candidates,
    /// Factor of the mean square that is added to a weight's square.
    spread: f32,
}

/// Q2_K, in groups of 16.
#[inline(always)]
pub fn q2(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, block: &mut [u8]) {
    let plain = Candidates { start: -0.5, step: 0.1, count: 15, absolute: true };
    let steps = Steps { top: 3.0, scale_top: 15, plain, spread: 1.0 };
    with_offsets::<16>(format, &steps, x, w, block);
}

/// Q4_K, in groups of 32.
#[inline(always)]
pub fn q4(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, block: &mut [u8]) {
    let plain = Candidates { start: -1.0, step: 0.1, count: 20, absolute: false };
    let steps = Steps { top: 15.0, scale_top: 63, plain, spread: 2.0 };
    with_offsets::<32>(format, &steps, x, w, block);
}

/// Q5_K, in groups of 32.
#[inline(always)]
pub fn q5(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, block: &mut [u8]) {
    let plain = Candidates { start: -0.5, step: 0.1, count: 15, absolute: false };
    let steps = Steps { top: 31.0, scale_top: 63, plain, spread: 2.0 };
    with_offsets::<32>(format, &steps, x, w, block);
}

/// The importance of each weight: the importance of its column, increased for large weights. `mean`
/// is the mean square of the block's weights times a factor.
#[inline(always)]
fn importance<const N: usize>(columns: &[Lanes<N>], x: &[Lanes<N>], mean: f32, w: &mut [Lanes<N>]) {
    for ((w, column), x) in w.iter_mut().zip(columns).zip(x) {
        *w = *column * (Lanes::all(mean) + *x * *x).sqrt();
    }
}

/// The sum over each group.
#[inline(always)]
fn sums<const N: usize>(w: &[Lanes<N>]) -> Lanes<N> {
    w.iter().fold(Lanes::all(0.0), |sum, w| sum + *w)
}

/// The sum of squares.
#[inline(always)]
fn sum_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}

#[inline(always)]
fn with_offsets<const GROUP: usize>(
    format: &BlockFormat,
    steps: &Steps,
    x: &[f32],
    columns: Option<&[f32]>,
    block: &mut [u8],
) {
    let groups = SUPER / GROUP;
    let Offset::MinusScaled(offset_at) = format.offset else { return };
    let (mut codes, mut sum_w) = ([0u8; SUPER], [0f32; 16]);
    let (mut scales, mut offsets) = ([0f32; 16], [0f32; 16]);
    let mean = steps.spread * sum_squares(x) / SUPER as f32;
    let candidates = if columns.is_some() { &WEIGHTED } else { &steps.plain };
    for at in (0..groups).step_by(N) {
        let (mut lanes, mut w) = ([Lanes::<N>::all(0.0); GROUP], [Lanes::<N>::all(0.0); GROUP]);
        let part = at * GROUP..(at + N) * GROUP;
        by_group(&x[part.clone()], GROUP, &mut lanes);
        match columns {
            Some(columns) => {
                let mut of_columns = [Lanes::all(0.0); GROUP];
                by_group(&columns[part], GROUP, &mut of_columns);
                importance(&of_columns, &lanes, mean, &mut w);
            }
            // Q2_K weighs by magnitude, the others by magnitude and its mean.
            None if GROUP == 16 => w.iter_mut().zip(&lanes).for_each(|(w, x)| *w = x.abs()),
            None => {
                let squares = lanes.iter().fold(Lanes::all(0.0), |sum, x| sum + *x * *x);
                let root = (squares / Lanes::all(GROUP as f32)).sqrt();
                w.iter_mut().zip(&lanes).for_each(|(w, x)| *w = root + x.abs());
            }
        }
        let fit = affine(&lanes, &w, steps.top, candidates);
        scales[at..at + N].copy_from_slice(&fit.scale.0);
        offsets[at..at + N].copy_from_slice(&fit.offset.0);
        sum_w[at..at + N].copy_from_slice(&sums(&w).0);
        for (i, x) in lanes.iter().enumerate() {
            let code = fit.codes(*x);
            (0..N).for_each(|n| codes[(at + n) * GROUP + i] = code.0[n] as u8);
        }
    }
    let (scales, offsets, sum_w) = (&scales[..groups], &offsets[..groups], &sum_w[..groups]);
    let (mut s, mut t) = ([0u8; 16], [0u8; 16]);
    let factors = if columns.is_some() {
        let top = steps.scale_top;
        [
            positive(scales, sum_w, top, &mut s[..groups]),
            positive(offsets, sum_w, top, &mut t[..groups]),
        ]
    } else {
        [by_largest(scales, steps.scale_top, &mut s), by_largest(offsets, steps.scale_top, &mut t)]
    };
    if GROUP == 16 && columns.is_none() {
        // A negative scale fills the byte of the pair.
        s.iter().zip(&mut t).for_each(|(s, t)| *t |= s >> 4);
        s.iter_mut().for_each(|s| *s &= 15);
    } else {
        s.iter_mut().chain(&mut t).for_each(|c| *c = (*c).min(steps.scale_top as u8));
    }
    pack::group_scales(format, &s[..groups], &t[..groups], block);
    let d = format.set_scale(block, factors[0]);
    let m = pack::half(block, usize::from(offset_at), factors[1]);
    for (g, (x, codes)) in x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP)).enumerate() {
        let (s, t) = format.group_codes(block, g);
        let (scale, offset) = (d * s as f32, m * t as f32);
        if scale != 0.0 {
            for (code, x) in codes.iter_mut().zip(x) {
                *code = nearest((x + offset) / scale).clamp(0, steps.top as i32) as u8;
            }
        }
    }
    pack::planes(format.planes, &codes, block);
}

/// Codes of numbers as fractions of the largest number. Returns the factor.
#[inline(always)]
fn by_largest(x: &[f32], top: i32, codes: &mut [u8]) -> f32 {
    let (largest, top) = (x.iter().fold(0.0, |m, &x| if x > m { x } else { m }), top as f32);
    let inverse = if largest > 0.0 { top / largest } else { 0.0 };
    codes.iter_mut().zip(x).for_each(|(code, x)| *code = nearest(inverse * x) as u8);
    largest / top
}

/// The number with the largest magnitude, the first one if several are equal; 0 if there are no
/// numbers.
#[inline(always)]
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |m, &x| if x.abs() > m.abs() { x } else { m })
}

/// Q3_K.
#[inline(always)]
pub fn q3(format: &BlockFormat, x: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    const GROUP: usize = 16;
    let (mut codes, mut scales, mut sum_w) = ([0u8; SUPER], [0f32; 16], [0f32; 16]);
    let mean = 2.0 * sum_squares(x) / SUPER as f32;
    for at in (0..16).step_by(N) {
        let (mut lanes, mut new) = ([Lanes::<N>::all(0.0); GROUP], [Lanes::<N>::all(0.0); GROUP]);
        let part = at * GROUP..(at + N) * GROUP;
        by_group(&x[part.clone()], GROUP, &mut lanes);
        let scale = match columns {
            Some(columns) => {
                let (mut of_columns, mut w) = ([Lanes::all(0.0); GROUP], [Lanes::all(0.0); GROUP]);
                by_group(&columns[part], GROUP, &mut of_columns);
                importance(&of_columns, &lanes, mean, &mut w);
                sum_w[at..at + N].copy_from_slice(&sums(&w).0);
                let fit = signed(&lanes, &w, 4.0);
                new.iter_mut().zip(&lanes).for_each(|(code, x)| *code = fit.codes(*x));
                fit.scale
            }
            None => improved(&lanes, 4.0, &mut new),
        };
        scales[at..at + N].copy_from_slice(&scale.0);
        for (i, new) in new.iter().enumerate() {
            (0..N).for_each(|n| codes[(at + n) * GROUP + i] = new.0[n] as u8);
        }
    }
    let mut s = [0u8; 16];
    let factor = if columns.is_some() {
        let (scales, w) = (scales.map(|s| Lanes([s])), sum_w.map(|w| Lanes([w])));
        let fit = signed(&scales, &w, 32.0);
        s.iter_mut().zip(&scales).for_each(|(s, x)| *s = fit.codes(*x).0[0] as u8);
        fit.scale.0[0]
    } else {
        let largest = extreme(&scales);
        if largest == 0.0 {
            0.0
        } else {
            let inverse = -32.0 / largest;
            for (s, x) in s.iter_mut().zip(&scales) {
                *s = (i32::from(nearest(inverse * x) as i8).clamp(-32, 31) + 32) as u8;
            }
            1.0 / inverse
        }
    };
    pack::group_scales(format, &s, &[], block);
    let d = format.set_scale(block, factor);
    again(format, d, 4, x, &mut codes, block);
    pack::planes(format.planes, &codes, block);
}

/// Q6_K.
#[inline(always)]
pub fn q6(format: &BlockFormat, x: &[f32], columns: Option<&[f32]>, block: &mut [u8]) {
    const GROUP: usize = 16;
    let (mut codes, mut scales) = ([0u8; SUPER], [0f32; 16]);
    for at in (0..16).step_by(N) {
        let (mut lanes, mut w) = ([Lanes::<N>::all(0.0); GROUP], [Lanes::<N>::all(0.0); GROUP]);
        let part = at * GROUP..(at + N) * GROUP;
        by_group(&x[part.clone()], GROUP, &mut lanes);
        match columns {
            Some(columns) => by_group(&columns[part], GROUP, &mut w),
            None => w.iter_mut().zip(&lanes).for_each(|(w, x)| *w = *x * *x),
        }
        let fit = signed(&lanes, &w, 32.0);
        scales[at..at + N].copy_from_slice(&fit.scale.0);
        for (i, x) in lanes.iter().enumerate() {
            let code = fit.codes(*x);
            (0..N).for_each(|n| codes[(at + n) * GROUP + i] = code.0[n] as u8);
        }
    }
    let largest = extreme(&scales);
    if largest.abs() < 1e-15 {
        return; // The block is zero.
    }
    let inverse = -128.0 / largest;
    let s = scales.map(|x| nearest(inverse * x).min(127) as u8);
    pack::group_scales(format, &s, &[], block);
    let d = format.set_scale(block, 1.0 / inverse);
    again(format, d, 32, x, &mut codes, block);
    pack::planes(format.planes, &codes, block);
}

/// Computes codes again with the stored scales. Groups with a stored scale of zero keep their
/// codes.
#[inline(always)]
fn again(format: &BlockFormat, d: f32, top: i32, x: &[f32], codes: &mut [u8], block: &[u8]) {
    for (g, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        let scale = d * format.group_codes(block, g).0 as f32;
        if scale != 0.0 {
            for (code, x) in codes.iter_mut().zip(x) {
                *code = (nearest(x / scale).clamp(-top, top - 1) + top) as u8;
            }
        }
    }
}

/// Writing of a block's scale.
trait SetScale {
    /// Writes the scale as f16 and returns its stored value.
    fn set_scale(&self, block: &mut [u8], value: f32) -> f32;
}

impl SetScale for BlockFormat {
    #[inline(always)]
    fn set_scale(&self, block: &mut [u8], value: f32) -> f32 {
        let half = half::f16::from_f32(value);
        self.set_block_scale(block, half);
        half.to_f32()
    }
}
