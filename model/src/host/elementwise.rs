//! The operations that touch each element once: norms, gates, sums, softmax.

use super::simd::{Job, LANES, Vector};
use crate::graph::Activation;

/// A function of two elements.
trait Binary {
    /// # Safety
    /// As [`Job::run`] asks of the processor.
    unsafe fn of<V: Vector>(a: V, b: V) -> V;
}

struct Plus;
struct SiluTimes;
struct GeluTimes;

impl Binary for Plus {
    #[inline(always)]
    unsafe fn of<V: Vector>(a: V, b: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { a.add(b) }
    }
}

impl Binary for SiluTimes {
    #[inline(always)]
    unsafe fn of<V: Vector>(a: V, b: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { a.mul(b).div(V::splat(0.0).sub(a).exp().add(V::splat(1.0))) }
    }
}

impl Binary for GeluTimes {
    /// `½ a (1 + tanh u) = a / (1 + e^(−2u))`, `u = √(2/π) (a + 0.044715 a³)`.
    #[inline(always)]
    unsafe fn of<V: Vector>(a: V, b: V) -> V {
        const MINUS_2_SQRT_2_OVER_PI: f32 = -1.595_769;
        // SAFETY: the caller's promise.
        unsafe {
            let cubic = a.mul(a).fma(V::splat(0.044_715), V::splat(1.0)).mul(a);
            a.mul(b).div(cubic.mul(V::splat(MINUS_2_SQRT_2_OVER_PI)).exp().add(V::splat(1.0)))
        }
    }
}

/// # Safety
/// As [`Job::run`] asks of the processor.
#[inline(always)]
unsafe fn each<V: Vector, F: Binary>(a: &[f32], b: &[f32], out: &mut [f32]) {
    let n = out.len();
    assert!(a.len() == n && b.len() == n);
    let whole = n / LANES * LANES;
    // SAFETY: 32 elements from each multiple of 32 below `whole` are in all three; the last, short run goes through arrays of 32.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            F::of(V::load(a.as_ptr().add(i)), V::load(b.as_ptr().add(i))).store(out.as_mut_ptr().add(i));
        }
        if whole < n {
            let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
            x[..n - whole].copy_from_slice(&a[whole..]);
            y[..n - whole].copy_from_slice(&b[whole..]);
            F::of(V::load(x.as_ptr()), V::load(y.as_ptr())).store(x.as_mut_ptr());
            out[whole..].copy_from_slice(&x[..n - whole]);
        }
    }
}

/// `out = a + b`.
pub struct AddRows<'a>(pub &'a [f32], pub &'a [f32], pub &'a mut [f32]);

impl Job for AddRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe { each::<V, Plus>(self.0, self.1, self.2) }
    }
}

/// `out = act(gate) · up`.
pub struct GluRows<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub act: Activation,
    pub out: &'a mut [f32],
}

impl Job for GluRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.act {
                Activation::Silu => each::<V, SiluTimes>(self.gate, self.up, self.out),
                Activation::GeluTanh => each::<V, GeluTimes>(self.gate, self.up, self.out),
            }
        }
    }
}

/// Norm of each run of `x` as long as the weight: `(x − mean) / sqrt(var + eps) · weight + bias` if `centred`, else without the mean.
pub struct NormRows<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub bias: Option<&'a [f32]>,
    pub eps: f32,
    pub centred: bool,
    pub out: &'a mut [f32],
}

impl Job for NormRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let n = self.weight.len();
        for (x, out) in self.x.chunks_exact(n).zip(self.out.chunks_exact_mut(n)) {
            // SAFETY: the instructions are there.
            let (mean, squares) = unsafe {
                let mean = if self.centred { moment::<V>(x, 0.0, false) / n as f32 } else { 0.0 };
                (mean, moment::<V>(x, mean, true))
            };
            // In f64: exact where it costs nothing.
            let scale = (1.0 / (f64::from(squares) / n as f64 + f64::from(self.eps)).sqrt()) as f32;
            for i in 0..n {
                out[i] = (x[i] - mean) * scale * self.weight[i];
            }
            if let Some(bias) = self.bias {
                out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
            }
        }
    }
}

/// `Σ (x − mean)`, or `Σ (x − mean)²`.
///
/// # Safety
/// As [`Job::run`] asks of the processor.
#[inline(always)]
unsafe fn moment<V: Vector>(x: &[f32], mean: f32, square: bool) -> f32 {
    let whole = x.len() / LANES * LANES;
    // SAFETY: 32 elements from each multiple of 32 below `whole` are in x.
    let mut sum = unsafe {
        let (mut acc, m) = (V::splat(0.0), V::splat(mean));
        for i in (0..whole).step_by(LANES) {
            let d = V::load(x.as_ptr().add(i)).sub(m);
            acc = if square { d.fma(d, acc) } else { acc.add(d) };
        }
        acc.sum()
    };
    for x in &x[whole..] {
        let d = x - mean;
        sum += if square { d * d } else { d };
    }
    sum
}

/// Chooses experts for each token: see [`Op::Route`](crate::graph::Op::Route). `scores` has a row per token, `chosen` and `shares` have `top`.
pub fn route(
    scores: &[f32],
    n: usize,
    top: usize,
    renormalise: bool,
    scale: f32,
    chosen: &mut [f32],
    shares: &mut [f32],
) {
    let mut order: Vec<usize> = Vec::with_capacity(n);
    for ((row, chosen), shares) in
        scores.chunks_exact(n).zip(chosen.chunks_exact_mut(top)).zip(shares.chunks_exact_mut(top))
    {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e = |i: usize| f64::from(row[i] - largest).exp();
        order.clear();
        order.extend(0..n);
        // Stable, so the lower index stays first among equals.
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let all: f64 = match renormalise {
            true => order[..top].iter().map(|&i| e(i)).sum(),
            false => (0..n).map(e).sum(),
        };
        for (slot, &i) in order[..top].iter().enumerate() {
            chosen[slot] = i as f32; // exact: there are fewer than 2^24 experts
            shares[slot] = (e(i) / all) as f32 * scale;
        }
    }
}
