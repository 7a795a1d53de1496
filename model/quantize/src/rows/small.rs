//! Formats without a search: ternary, one and two bits, and the 4-bit floats MXFP4 and NVFP4.

use super::legacy::{most, reciprocal, truncated};
use super::pack;
use kjit_formats::format::{BlockFormat, Value};

/// The nearest of −1, 0 and 1 times the largest magnitude, plus 1.
#[inline(always)]
fn digit(x: f32, inverse: f32) -> u8 {
    (truncated((x * inverse).round()) + 1) as u8
}

/// A block of TQ1_0: digits of base 3. A byte has five digits, as a fraction of 243.
pub fn ternary(x: &[f32], block: &mut [u8]) {
    let scale = most(x);
    let inverse = reciprocal(scale);
    pack::half(block, 52, scale);
    // Bytes, the distance of their digits, and the first weight.
    for (bytes, apart, first) in [(0..32, 32, 0), (32..48, 16, 160), (48..52, 4, 240)] {
        let digits = if apart == 4 { 4 } else { 5 };
        for (m, byte) in block[bytes].iter_mut().enumerate() {
            let number = (0..digits)
                .fold(0, |n, k| 3 * n + u16::from(digit(x[first + m + k * apart], inverse)));
            let number = if digits == 4 { 3 * number } else { number };
            *byte = (number * 256).div_ceil(243) as u8;
        }
    }
}

/// A block of TQ2_0: the digits in two bits each.
pub fn two_bits(format: &BlockFormat, x: &[f32], block: &mut [u8]) {
    let scale = most(x);
    let inverse = reciprocal(scale);
    pack::half(block, 64, scale);
    let codes: [u8; 256] = std::array::from_fn(|i| digit(x[i], inverse) & 3);
    pack::planes(format.planes, &codes, block);
}

/// A block of Q2_0: -1 to 2 times the largest magnitude.
pub fn q2(format: &BlockFormat, x: &[f32], block: &mut [u8]) {
    let scale = most(x);
    let inverse = reciprocal(scale);
    pack::half(block, 0, scale);
    let code = |i: usize| (truncated((x[i] * inverse).round()) + 1).clamp(0, 3) as u8;
    let codes: [u8; 64] = std::array::from_fn(code);
    pack::planes(format.planes, &codes, block);
}

/// A block of Q1_0: the sign, times the mean magnitude.
pub fn sign(format: &BlockFormat, x: &[f32], block: &mut [u8]) {
    let mean = x.iter().fold(0.0, |sum, x| sum + x.abs()) / format.elems as f32;
    pack::half(block, 0, mean);
    let codes: [u8; 128] = std::array::from_fn(|i| u8::from(x[i] >= 0.0));
    pack::planes(format.planes, &codes, block);
}

/// The code of the 4-bit float nearest to `x / scale`; the first one if two are equally near.
#[inline(always)]
fn fp4(format: &BlockFormat, x: f32, scale: f32) -> u8 {
    let Value::Table(table) = format.value else { return 0 };
    let (mut best, mut code) = ((f32::from(table[0]) * scale - x).abs(), 0);
    for (i, value) in (1..).zip(&table[1..]) {
        let off = (f32::from(*value) * scale - x).abs();
        if off < best {
            (best, code) = (off, i);
        }
    }
    code
}

/// A block of MXFP4. The scale is a power of two that depends on the largest magnitude.
pub fn mxfp4(format: &BlockFormat, x: &[f32], block: &mut [u8]) {
    let largest = most(x);
    let exponent = if largest > 0.0 { largest.log2().floor() - 2.0 + 127.0 } else { 0.0 };
    block[0] = truncated(exponent) as u8;
    let scale = format.block_scale(block);
    let codes: [u8; 32] = std::array::from_fn(|i| fp4(format, x[i], scale));
    pack::planes(format.planes, &codes, block);
}

/// A block of NVFP4: a scale with three bits of mantissa for each 16 weights.
pub fn nvfp4(format: &BlockFormat, x: &[f32], block: &mut [u8]) {
    let mut codes = [0; 64];
    for (g, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        block[g] = ue4m3(most(x) / 6.0);
        let scale = format.factors(block, g).scale;
        codes.iter_mut().zip(x).for_each(|(code, x)| *code = fp4(format, *x, scale));
    }
    pack::planes(format.planes, &codes, block);
}

/// The float with 4 exponent and 3 mantissa bits that is nearest to `x`, at most 448. Halves are
/// rounded up.
fn ue4m3(x: f32) -> u8 {
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    let bits = x.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        return truncated(x * 512.0 + 0.5).min(7) as u8;
    }
    // The mantissa's carry goes into the exponent.
    let rounded = (exponent << 3 | (bits >> 20 & 7) as i32) + (bits >> 19 & 1) as i32;
    rounded.min(0x7e) as u8
}
