//! Elementwise operations: norms, gates, sums, softmax.

use super::simd::{Job, LANES, Vector};
use kjit_graph::Activation;
use kjit_graph::op::NormKind;

/// A function of two elements.
trait Binary {
    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`Job::run`].
    unsafe fn of<V: Vector>(a: V, b: V) -> V;
}

struct Plus;
struct SiluTimes;
struct GeluTimes;

impl Binary for Plus {
    #[inline(always)]
    unsafe fn of<V: Vector>(a: V, b: V) -> V {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { a.add(b) }
    }
}

impl Binary for SiluTimes {
    #[inline(always)]
    unsafe fn of<V: Vector>(a: V, b: V) -> V {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { a.mul(b).div(V::splat(0.0).sub(a).exp().add(V::splat(1.0))) }
    }
}

impl Binary for GeluTimes {
    /// `½ a (1 + tanh u) = a / (1 + e^(−2u))`, `u = √(2/π) (a + 0.044715 a³)`.
    #[inline(always)]
    unsafe fn of<V: Vector>(a: V, b: V) -> V {
        const MINUS_2_SQRT_2_OVER_PI: f32 = -1.595_769;
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            let cubic = a.mul(a).fma(V::splat(0.044_715), V::splat(1.0)).mul(a);
            a.mul(b).div(cubic.mul(V::splat(MINUS_2_SQRT_2_OVER_PI)).exp().add(V::splat(1.0)))
        }
    }
}

/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
#[inline(always)]
unsafe fn each<V: Vector, F: Binary>(a: &[f32], b: &[f32], out: &mut [f32]) {
    let n = out.len();
    assert!(a.len() == n && b.len() == n);
    let whole = n / LANES * LANES;
    // SAFETY: 32 elements from each multiple of 32 below `whole` are in all three; the last, short
    // run goes through arrays of 32.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            F::of(V::load(a.as_ptr().add(i)), V::load(b.as_ptr().add(i)))
                .store(out.as_mut_ptr().add(i));
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
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
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
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            match self.act {
                Activation::Silu => each::<V, SiluTimes>(self.gate, self.up, self.out),
                Activation::GeluTanh => each::<V, GeluTimes>(self.gate, self.up, self.out),
                act => {
                    let both = self.gate.iter().zip(self.up);
                    self.out.iter_mut().zip(both).for_each(|(o, (&g, &u))| *o = act.gate(g, u));
                }
            }
        }
    }
}

/// Normalises each group of `group` elements: see [`Norm`](kjit_graph::op::Norm).
pub struct NormRows<'a> {
    pub x: &'a [f32],
    /// Factors, as many as a group or several groups have elements.
    pub weight: Option<&'a [f32]>,
    pub bias: Option<&'a [f32]>,
    pub group: usize,
    pub eps: f32,
    pub kind: NormKind,
    pub out: &'a mut [f32],
}

impl<'a> Job for NormRows<'a> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let n = self.group;
        for (i, (x, out)) in self.x.chunks_exact(n).zip(self.out.chunks_exact_mut(n)).enumerate() {
            let centred = self.kind == NormKind::Layer;
            // SAFETY: the caller guarantees the instruction set.
            let (mean, squares) = unsafe {
                let mean = if centred { moment::<V>(x, 0.0, false) / n as f32 } else { 0.0 };
                (mean, moment::<V>(x, mean, true))
            };
            // f64 costs nothing here.
            let (squares, eps) = (f64::from(squares), f64::from(self.eps));
            let scale = match self.kind {
                NormKind::Length => 1.0 / squares.sqrt().max(eps),
                _ => 1.0 / (squares / n as f64 + eps).sqrt(),
            } as f32;
            // The factors of this group: all factors, or the part for the group.
            let own = |all: &'a [f32]| &all[i * n % all.len()..][..n];
            match self.weight {
                Some(w) => out
                    .iter_mut()
                    .zip(x)
                    .zip(own(w))
                    .for_each(|((o, x), w)| *o = (x - mean) * scale * w),
                None => out.iter_mut().zip(x).for_each(|(o, x)| *o = (x - mean) * scale),
            }
            if let Some(bias) = self.bias {
                out.iter_mut().zip(own(bias)).for_each(|(o, b)| *o += b);
            }
        }
    }
}

/// `Σ (x − mean)`, or `Σ (x − mean)²`.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
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

#[cfg(test)]
mod tests {
    use super::super::simd::Isa;
    use super::super::testing::Rng;
    use super::*;

    const SIZES: [usize; 9] = [1, 2, 31, 32, 33, 63, 65, 127, 576];

    #[track_caller]
    fn assert_close(got: f32, want: f64, tolerance: f64, isa: Isa, rng: &Rng) {
        let off = (f64::from(got) - want).abs();
        assert!(
            off <= tolerance * want.abs().max(1.0),
            "{}: got {got}, expected {want}; {rng}",
            isa.name()
        );
    }

    #[test]
    fn norms_match_f64_for_odd_sizes() {
        let mut rng = Rng::new();
        for (n, isa) in
            SIZES.into_iter().flat_map(|n| Isa::available().into_iter().map(move |isa| (n, isa)))
        {
            let (x, weight, bias) = (rng.reals(3 * n), rng.reals(n), rng.reals(n));
            for (kind, bias) in
                [(NormKind::Rms, None), (NormKind::Layer, None), (NormKind::Layer, Some(&bias[..]))]
            {
                let (mut out, eps) = (vec![f32::NAN; x.len()], 1e-5);
                // SAFETY: this job has no requirement on its fields.
                unsafe {
                    isa.run(NormRows {
                        x: &x,
                        weight: Some(&weight),
                        bias,
                        group: n,
                        eps,
                        kind,
                        out: &mut out,
                    })
                };
                for (row, out) in x.chunks_exact(n).zip(out.chunks_exact(n)) {
                    let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                    let mean = if kind == NormKind::Layer {
                        row.iter().sum::<f64>() / n as f64
                    } else {
                        0.0
                    };
                    let variance =
                        row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n as f64;
                    for i in 0..n {
                        let want = (row[i] - mean) / (variance + f64::from(eps)).sqrt()
                            * f64::from(weight[i]);
                        // A single element minus its mean is 0. Dividing by sqrt(eps) magnifies the
                        // rounding 300 times.
                        assert_close(
                            out[i],
                            want + bias.map_or(0.0, |b| f64::from(b[i])),
                            1e-5,
                            isa,
                            &rng,
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn gates_and_sums_match_f64_for_odd_sizes() {
        let mut rng = Rng::new();
        for (n, isa) in
            SIZES.into_iter().flat_map(|n| Isa::available().into_iter().map(move |isa| (n, isa)))
        {
            let gate: Vec<f32> = rng.reals(n).iter().map(|x| x * 20.0).collect();
            let up = rng.reals(n);
            let (mut silu, mut gelu, mut sum) =
                (vec![f32::NAN; n], vec![f32::NAN; n], vec![f32::NAN; n]);
            // SAFETY: these jobs have no requirement on their fields.
            unsafe {
                isa.run(GluRows { gate: &gate, up: &up, act: Activation::Silu, out: &mut silu });
                isa.run(GluRows {
                    gate: &gate,
                    up: &up,
                    act: Activation::GeluTanh,
                    out: &mut gelu,
                });
                isa.run(AddRows(&gate, &up, &mut sum));
            }
            for i in 0..n {
                let (g, u) = (f64::from(gate[i]), f64::from(up[i]));
                assert_close(silu[i], g / (1.0 + (-g).exp()) * u, 1e-6, isa, &rng);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
                assert_close(gelu[i], 0.5 * g * (1.0 + inner.tanh()) * u, 1e-6, isa, &rng);
                assert_close(sum[i], g + u, 1e-6, isa, &rng);
            }
        }
    }
}
