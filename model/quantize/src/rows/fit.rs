//! Searches for the scale (and minimum) of a group with which integer codes represent its weights
//! best. Each function works on `N` groups together. Element `i` of `x` and `w` has the weights
//! with index `i` of the groups, and their importance.
//!
//! The candidates and the order of the operations are as in ggml's reference quantisers
//! (`ggml-quants.c`), so the files are equal bit for bit.

use super::lanes::{Lanes, Mask, nearest};

/// Groups whose largest magnitude is below this are zero.
const ZERO: f32 = 1e-15;

/// Weights of the longest group.
const MAX_GROUP: usize = 32;

/// The candidates of [`affine`]: inverse scales for `top + start + step · i` levels, for `i` in
/// `0..=count`.
#[derive(Debug, Clone, Copy)]
pub struct Candidates {
    pub start: f32,
    pub step: f32,
    pub count: u8,
    /// The error is the absolute difference instead of its square.
    pub absolute: bool,
}

/// Groups as `scale · code − offset`.
pub struct Affine<const N: usize> {
    pub scale: Lanes<N>,
    /// At least 0.
    pub offset: Lanes<N>,
    /// The code of `x` is the nearest integer of `inverse · (x − low)`.
    inverse: Lanes<N>,
    low: Lanes<N>,
    /// Groups of equal weights. Their codes are 0.
    flat: Mask<N>,
    top: f32,
}

impl<const N: usize> Affine<N> {
    /// The codes of these weights, 0 to the top.
    #[inline(always)]
    pub fn codes(&self, x: Lanes<N>) -> Lanes<N> {
        let codes = (self.inverse * (x - self.low)).nearest().clamp(0.0, self.top);
        self.flat.select(Lanes::all(0.0), codes)
    }
}

/// Fits codes 0 to `top` with a scale and an offset.
#[inline(always)]
pub fn affine<const N: usize>(
    x: &[Lanes<N>],
    w: &[Lanes<N>],
    top: f32,
    candidates: &Candidates,
) -> Affine<N> {
    let zero = Lanes::all(0.0);
    let (mut low, mut high) = (x[0], x[0]);
    let mut sum_w = w[0];
    let mut sum_x = sum_w * x[0];
    for (&x, &w) in x.iter().zip(w).skip(1) {
        low = x.less(low).select(x, low);
        high = high.less(x).select(x, high);
        sum_w = sum_w + w;
        sum_x = sum_x + w * x;
    }
    low = zero.less(low).select(zero, low);
    let flat = high.equals(low);
    let error = |scale: Lanes<N>, low: Lanes<N>, codes: &[Lanes<N>]| {
        let mut sum = zero;
        for ((&x, &w), &code) in x.iter().zip(w).zip(codes) {
            let off = scale * code + low - x;
            sum = sum + w * if candidates.absolute { off.abs() } else { off * off };
        }
        sum
    };
    let mut codes = [zero; MAX_GROUP];
    let mut inverse = Lanes::all(top) / (high - low);
    let mut scale = Lanes::all(1.0) / inverse;
    let mut from = low;
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = (inverse * (x - low)).nearest().clamp(0.0, top);
    }
    let mut best = error(scale, low, &codes);
    for i in 0..=candidates.count {
        let levels = Lanes::all(candidates.start + candidates.step * f32::from(i) + top);
        let next = levels / (high - low);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (zero, zero, zero);
        for ((&x, &w), code) in x.iter().zip(w).zip(&mut codes) {
            *code = (next * (x - low)).nearest().clamp(0.0, top);
            let weighted = w * *code;
            sum_l = sum_l + weighted;
            sum_l2 = sum_l2 + weighted * *code;
            sum_xl = sum_xl + weighted * x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        let mut new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut new_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        let positive = zero.less(new_low);
        new_scale = positive.select(sum_xl / sum_l2, new_scale);
        new_low = positive.select(zero, new_low);
        let found = error(new_scale, new_low, &codes);
        let better = zero.less(determinant).and(found.less(best)).and(flat.not());
        best = better.select(found, best);
        scale = better.select(new_scale, scale);
        inverse = better.select(next, inverse);
        from = better.select(low, from);
        low = better.select(new_low, low);
    }
    Affine { scale: flat.select(zero, scale), offset: -low, inverse, low: from, flat, top }
}

/// Groups as `scale · (code − top)`, codes 0 to `2 · top − 1`.
pub struct Signed<const N: usize> {
    /// The scale, of either sign.
    pub scale: Lanes<N>,
    inverse: Lanes<N>,
    empty: Mask<N>,
    top: f32,
}

impl<const N: usize> Signed<N> {
    /// The codes of these weights. They are 0 for groups of zeros.
    #[inline(always)]
    pub fn codes(&self, x: Lanes<N>) -> Lanes<N> {
        let code = (self.inverse * x).nearest().clamp(-self.top, self.top - 1.0);
        self.empty.select(Lanes::all(0.0), code + Lanes::all(self.top))
    }
}

/// The weight with the largest magnitude (the first one if several are equal), and the groups whose
/// weights are all zero.
#[inline(always)]
fn largest<const N: usize>(x: &[Lanes<N>]) -> (Lanes<N>, Mask<N>) {
    let (mut most, mut value) = (Lanes::all(0.0), Lanes::all(0.0));
    for &x in x {
        let more = most.less(x.abs());
        most = more.select(x.abs(), most);
        value = more.select(x, value);
    }
    (value, most.less(Lanes::all(ZERO)))
}

/// Fits signed codes by trying 19 scales.
#[inline(always)]
pub fn signed<const N: usize>(x: &[Lanes<N>], w: &[Lanes<N>], top: f32) -> Signed<N> {
    let zero = Lanes::all(0.0);
    let (extreme, empty) = largest(x);
    let sums = |inverse: Lanes<N>| {
        let (mut xl, mut l2) = (zero, zero);
        for (&x, &w) in x.iter().zip(w) {
            let code = (inverse * x).nearest().clamp(-top, top - 1.0);
            xl = xl + w * x * code;
            l2 = l2 + w * code * code;
        }
        (xl, l2)
    };
    let mut inverse = Lanes::all(-top) / extreme;
    let (xl, l2) = sums(inverse);
    let mut scale = l2.equals(zero).select(zero, xl / l2);
    let mut best = scale * xl;
    for i in (-9i8..=9).filter(|i| *i != 0) {
        let next = Lanes::all(-(top + 0.1 * f32::from(i))) / extreme;
        let (xl, l2) = sums(next);
        let better = zero.less(l2).and((best * l2).less(xl * xl));
        let found = xl / l2;
        scale = better.select(found, scale);
        best = better.select(found * xl, best);
        inverse = better.select(next, inverse);
    }
    Signed { scale: empty.select(zero, scale), inverse, empty, top }
}

/// Fits signed codes of three bits by improving one code after another. Codes, 0 to `2 · top − 1`,
/// are written to `codes`. The codes of groups of zeros are 0. Returns the scales.
#[inline(always)]
pub fn improved<const N: usize>(x: &[Lanes<N>], top: f32, codes: &mut [Lanes<N>]) -> Lanes<N> {
    let zero = Lanes::all(0.0);
    let (extreme, empty) = largest(x);
    let inverse = Lanes::all(-top) / extreme;
    let (mut xl, mut l2) = (zero, zero);
    for (&x, code) in x.iter().zip(codes.iter_mut()) {
        *code = (inverse * x).nearest().clamp(-top, top - 1.0);
        let w = x * x;
        xl = xl + w * x * *code;
        l2 = l2 + w * *code * *code;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (&x, code) in x.iter().zip(codes.iter_mut()) {
            let w = x * x;
            let rest_xl = xl - w * x * *code;
            let rest_l2 = l2 - w * *code * *code;
            let new = (x * rest_l2 / rest_xl).nearest().clamp(-top, top - 1.0);
            let new_xl = rest_xl + w * x * new;
            let new_l2 = rest_l2 + w * new * new;
            let better = zero
                .less(rest_xl)
                .and(new.equals(*code).not())
                .and(zero.less(new_l2))
                .and((xl * xl * new_l2).less(new_xl * new_xl * l2));
            *code = better.select(new, *code);
            xl = better.select(new_xl, xl);
            l2 = better.select(new_l2, l2);
            changed |= better.any();
        }
        if !changed {
            break;
        }
    }
    for code in codes {
        *code = empty.select(zero, *code + Lanes::all(top));
    }
    let scale = zero.less(l2).select(xl / l2, zero);
    empty.select(zero, scale)
}

/// Fits codes 0 to `top` with a scale to nonnegative numbers: the scales of groups. Returns the
/// scale.
pub fn positive(x: &[f32], w: &[f32], top: i32, codes: &mut [u8]) -> f32 {
    let largest = x.iter().fold(0.0f32, |m, &x| if m > x { m } else { x });
    if largest < ZERO {
        codes.fill(0);
        return 0.0;
    }
    let levels = top as f32;
    let mut inverse = levels / largest;
    let scale = 1.0 / inverse;
    let mut best = 0.0f32;
    for (&x, &w) in x.iter().zip(w) {
        // A code is a byte, even for a negative number.
        let off = x - scale * f32::from(nearest(inverse * x) as u8);
        best += w * off * off;
    }
    for i in (-4i8..=4).filter(|i| *i != 0) {
        let next = (0.1 * f32::from(i) + levels) / largest;
        let scale = 1.0 / next;
        let mut error = 0.0f32;
        for (&x, &w) in x.iter().zip(w) {
            let off = x - scale * nearest(next * x).min(top) as f32;
            error += w * off * off;
        }
        if error < best {
            (best, inverse) = (error, next);
        }
    }
    let (mut xl, mut l2) = (0.0f32, 0.0f32);
    for ((&x, &w), code) in x.iter().zip(w).zip(codes.iter_mut()) {
        let new = nearest(inverse * x).min(top);
        *code = new as u8;
        xl += w * x * new as f32;
        l2 += w * new as f32 * new as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((&x, &w), code) in x.iter().zip(w).zip(codes.iter_mut()) {
            let old = f32::from(*code);
            let mut rest_xl = xl - w * x * old;
            let mut rest_l2 = l2 - w * old * old;
            if rest_xl > 0.0 && rest_l2 > 0.0 {
                let new = nearest(x * rest_l2 / rest_xl).min(top);
                if new != i32::from(*code) {
                    rest_xl += w * x * new as f32;
                    rest_l2 += w * new as f32 * new as f32;
                    if rest_xl * rest_xl * l2 > xl * xl * rest_l2 {
                        *code = new as u8;
                        (xl, l2) = (rest_xl, rest_l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    if l2 > 0.0 { xl / l2 } else { 0.0 }
}
