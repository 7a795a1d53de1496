//! Resizes pictures with the bytes of Pillow's `Image.resize`, which transformers calls.
//!
//! Each axis is a pass: first lines, then columns. A pass sums 8-bit values with weights of 22 bits
//! after the point and rounds to 8 bits. To shrink a picture, the filter is as wide as the ratio.

use crate::Picture;
use std::ops::Range;

/// Bits of a weight after the point: 32, less 8 of the value, less 2 for sums above 255 and signs.
const BITS: u32 = 22;

/// A filter of Pillow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// `Image.Resampling.BILINEAR`
    Bilinear,
    /// `Image.Resampling.BICUBIC`, with a = −0.5.
    Bicubic,
    /// `Image.Resampling.LANCZOS`, three lobes.
    Lanczos,
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        use std::f64::consts::PI;
        let far = x.abs();
        match self {
            Filter::Bilinear if far < 1.0 => 1.0 - far,
            Filter::Bicubic if far < 1.0 => ((A + 2.0) * far - (A + 3.0)) * far * far + 1.0,
            Filter::Bicubic if far < 2.0 => (((far - 5.0) * far + 8.0) * far - 4.0) * A,
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// The inputs of an output: the first one, and their weights.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// The inputs of the outputs in `part`, of `to` outputs along an axis of `from` inputs.
fn taps(from: usize, to: usize, part: Range<usize>, filter: Filter) -> Vec<Taps> {
    // Without a pass each output is its input.
    if from == to {
        return part.map(|first| Taps { first, weights: vec![1 << BITS] }).collect();
    }
    let scale = from as f64 / to as f64;
    let wide = scale.max(1.0);
    let support = filter.support() * wide;
    let one = |at: usize| {
        let center = (at as f64 + 0.5) * scale;
        let first = ((center - support + 0.5) as i64).max(0) as usize;
        let end = ((center + support + 0.5) as i64).clamp(0, from as i64) as usize;
        let weight = |x: usize| filter.at((x as f64 - center + 0.5) * (1.0 / wide));
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |w: f64| {
            let w = if sum == 0.0 { w } else { w / sum } * f64::from(1 << BITS);
            (if w < 0.0 { w - 0.5 } else { w + 0.5 }) as i32
        };
        Taps { first, weights: weights.into_iter().map(fixed).collect() }
    };
    part.map(one).collect()
}

fn rounded(sum: i64) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Resizes a picture to `width` × `height` pixels, both at least 1, with Pillow's bytes.
pub fn resize(picture: &Picture, width: usize, height: usize, filter: Filter) -> Picture {
    let (width, height) = (width.max(1), height.max(1));
    resize_part(picture, (width, 0..width), (height, 0..height), filter)
}

/// The columns and lines in the two ranges, of a picture resized to so many columns and lines.
/// Other parts are not computed, so a strip whose middle is wanted takes no more memory than it.
pub(crate) fn resize_part(
    picture: &Picture,
    (width, columns): (usize, Range<usize>),
    (height, lines): (usize, Range<usize>),
    filter: Filter,
) -> Picture {
    const HALF: i64 = 1 << (BITS - 1);
    let across = taps(picture.width, width, columns, filter);
    let down = taps(picture.height, height, lines, filter);
    let first = down.iter().map(|taps| taps.first).min().unwrap_or(0);
    let end = down.iter().map(|taps| taps.first + taps.weights.len()).max().unwrap_or(0);
    let wide = 3 * across.len();
    let mut between = Vec::with_capacity(wide * (end - first));
    for line in picture.rgb.chunks_exact(3 * picture.width).take(end).skip(first) {
        for taps in &across {
            let mut sums = [HALF; 3];
            let pixels = line[3 * taps.first..].chunks_exact(3);
            for (pixel, &weight) in pixels.zip(&taps.weights) {
                for (sum, &x) in sums.iter_mut().zip(pixel) {
                    *sum += i64::from(x) * i64::from(weight);
                }
            }
            between.extend(sums.map(rounded));
        }
    }
    let mut rgb = Vec::with_capacity(wide * down.len());
    let mut sums = vec![0; wide];
    for taps in &down {
        sums.fill(HALF);
        let lines = between[wide * (taps.first - first)..].chunks_exact(wide);
        for (line, &weight) in lines.zip(&taps.weights) {
            for (sum, &x) in sums.iter_mut().zip(line) {
                *sum += i64::from(x) * i64::from(weight);
            }
        }
        rgb.extend(sums.iter().map(|sum| rounded(*sum)));
    }
    Picture { width: across.len(), height: down.len(), rgb }
}
