//! IQ4_NL and IQ4_XS: 16 values with unequal distances.

use super::lanes::{Lanes, Mask, by_group, nearest};
use super::pack;
use kjit_formats::format::{BlockFormat, Value};

/// Weights in a group.
const GROUP: usize = 32;

/// Lanes of a fit: the groups of a super-block.
const N: usize = 8;

/// Number of scales that are tried on each side of the scale that maps the extreme weight to the
/// extreme value.
const SCALE_TRIES: i8 = 7;

/// The 16 values as floats.
#[inline(always)]
fn values(format: &BlockFormat) -> [f32; 16] {
    match format.value {
        Value::Table(table) => table.map(f32::from),
        _ => [0.0; 16],
    }
}

/// A row of IQ4_NL: a scale for each 32 weights.
#[inline(always)]
pub fn blocks(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let values = values(format);
    for (at, out) in out.chunks_mut(format.bytes * N).enumerate() {
        let part = at * GROUP * N..((at + 1) * GROUP * N).min(x.len());
        let mut lanes = [Lanes::<N>::all(0.0); GROUP];
        by_group(&x[part.clone()], GROUP, &mut lanes);
        let squares = lanes.iter().fold(Lanes::all(0.0), |sum, x| sum + *x * *x);
        let mean = squares * Lanes::all(2.0 / GROUP as f32);
        let scale = scales(&values, &lanes, w.map(|w| &w[part]), mean).0;
        for (n, block) in out.chunks_exact_mut(format.bytes).enumerate() {
            pack::half(block, 0, scale[n]);
            let inverse = if scale[n] == 0.0 { 0.0 } else { 1.0 / scale[n] };
            let codes: [u8; GROUP] =
                std::array::from_fn(|i| index(&values, Lanes([inverse * lanes[i].0[n]])).0[0]);
            pack::planes(format.planes, &codes, block);
        }
    }
}

/// A super-block of IQ4_XS.
#[inline(always)]
pub fn super_block(format: &BlockFormat, x: &[f32], w: Option<&[f32]>, block: &mut [u8]) {
    let values = values(format);
    let mut lanes = [Lanes::<N>::all(0.0); GROUP];
    by_group(x, GROUP, &mut lanes);
    let squares = x.iter().fold(0.0, |sum, x| sum + x * x);
    let mean = Lanes::all(squares * (2.0 / (GROUP * N) as f32));
    let scale = scales(&values, &lanes, w, mean).0;
    let largest = scale.iter().fold(0.0f32, |m, &s| if s.abs() > m.abs() { s } else { m });
    let d = -largest / 32.0;
    pack::half(block, 0, d);
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut codes = [0; GROUP * N];
    let mut s = [0u8; N];
    let mut group = [0.0; N];
    for n in 0..N {
        let code = nearest(inverse * scale[n]).clamp(-32, 31);
        s[n] = (code + 32) as u8;
        let scale = d * code as f32;
        group[n] = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    }
    for (i, x) in lanes.iter().enumerate() {
        let code = index(&values, Lanes(group) * *x);
        (0..N).for_each(|n| codes[n * GROUP + i] = code.0[n]);
    }
    pack::group_scales(format, &s, &[], block);
    pack::planes(format.planes, &codes, block);
}

/// One code for each lane.
struct Codes<const N: usize>([u8; N]);

/// The indices of the nearest values. A number halfway between two values gets the upper one.
#[inline(always)]
fn index<const N: usize>(values: &[f32; 16], x: Lanes<N>) -> Codes<N> {
    let mut index = [0; N];
    for pair in values.windows(2) {
        let below = (x - Lanes::all(pair[0])).less(Lanes::all(pair[1]) - x);
        let step = below.select(Lanes::all(0.0), Lanes::all(1.0));
        (0..N).for_each(|n| index[n] += step.0[n] as u8);
    }
    Codes(index)
}

/// The nearest values.
#[inline(always)]
fn nearest_value<const N: usize>(values: &[f32; 16], x: Lanes<N>) -> Lanes<N> {
    let mut value = Lanes::all(values[0]);
    for pair in values.windows(2) {
        let below = (x - Lanes::all(pair[0])).less(Lanes::all(pair[1]) - x);
        value = below.select(value, Lanes::all(pair[1]));
    }
    value
}

/// The best scale of each group. `mean` is twice the mean square of the block.
#[inline(always)]
fn scales(
    values: &[f32; 16],
    x: &[Lanes<N>; GROUP],
    columns: Option<&[f32]>,
    mean: Lanes<N>,
) -> Lanes<N> {
    let zero = Lanes::<N>::all(0.0);
    let mut w = [zero; GROUP];
    match columns {
        Some(columns) => {
            by_group(columns, GROUP, &mut w);
            w.iter_mut().zip(x).for_each(|(w, x)| *w = *w * (mean + *x * *x).sqrt());
        }
        None => w.iter_mut().zip(x).for_each(|(w, x)| *w = *x * *x),
    }
    let (mut most, mut extreme) = (zero, zero);
    for x in x {
        let more = most.less(x.abs());
        most = more.select(x.abs(), most);
        extreme = more.select(*x, extreme);
    }
    let empty: Mask<N> = most.less(Lanes::all(1e-15));
    let sums = |inverse: Lanes<N>| {
        let (mut qx, mut q2) = (zero, zero);
        for (&x, &w) in x.iter().zip(&w) {
            let value = nearest_value(values, inverse * x);
            let weighted = w * value;
            qx = qx + weighted * x;
            q2 = q2 + weighted * value;
        }
        (qx, q2)
    };
    let first = Lanes::all(1.0) / (-extreme / Lanes::all(values[0]));
    let (qx, q2) = sums(first);
    let mut scale = zero.less(q2).select(qx / q2, zero);
    let mut best = scale * qx;
    for i in -SCALE_TRIES..=SCALE_TRIES {
        let (qx, q2) = sums(Lanes::all(f32::from(i) + values[0]) / extreme);
        let better = zero.less(q2).and((best * q2).less(qx * qx));
        let found = qx / q2;
        scale = better.select(found, scale);
        best = better.select(found * qx, best);
    }
    empty.select(zero, scale)
}
