//! Tests of each instruction set against f64.

use super::*;
use crate::testing::Rng;

struct Exp<'a>(&'a [f32; LANES], &'a mut [f32; LANES]);

impl Job for Exp<'_> {
    type Out = (f32, f32);
    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> (f32, f32) {
        // SAFETY: the caller guarantees the instruction set; the arrays have 32 elements.
        unsafe {
            let v = V::load(self.0.as_ptr());
            v.exp().store(self.1.as_mut_ptr());
            (v.sum(), v.largest())
        }
    }
}

#[test]
fn exp_sum_and_max_match_f64() {
    let mut rng = Rng::new();
    for isa in Isa::available() {
        for _ in 0..2000 {
            let x: [f32; LANES] = std::array::from_fn(|_| rng.real() * 87.0);
            let mut y = [f32::NAN; LANES];
            // SAFETY: this job has no requirement on its fields.
            let (sum, largest) = unsafe { isa.run(Exp(&x, &mut y)) };
            for (x, y) in x.iter().zip(y) {
                let want = f64::from(*x).exp();
                let off = (f64::from(y) / want - 1.0).abs();
                assert!(off < 2e-7, "{}: exp({x}) is {y}, off by {off:e}; {rng}", isa.name());
            }
            let want: f64 = x.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum) - want).abs() < 1e-3, "{}: {sum} {want}; {rng}", isa.name());
            assert_eq!(largest, x.iter().fold(f32::MIN, |a, &b| a.max(b)));
        }
    }
}

#[test]
fn exp_of_extremes_is_finite_and_nan_stays() {
    for isa in Isa::available() {
        let mut x = [0.0; LANES];
        (x[0], x[1], x[2], x[31]) = (f32::NEG_INFINITY, -1e30, f32::INFINITY, f32::NAN);
        let mut y = [0.0; LANES];
        // SAFETY: this job has no requirement on its fields.
        unsafe { isa.run(Exp(&x, &mut y)) };
        assert!(y[0] >= 0.0 && y[0] < 2e-38 && y[1] < 2e-38, "{}: {y:?}", isa.name());
        assert!(y[2] > 1e38 && y[2].is_finite(), "{}: {y:?}", isa.name());
        assert!(y[31].is_nan(), "{}: {y:?}", isa.name());
        assert_eq!(y[5], 1.0);
    }
}

struct Moves<'a>(&'a [f32], usize, &'a mut [f32], &'a mut [f32; LANES]);

impl Job for Moves<'_> {
    type Out = ();
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let mut half = [0u16; LANES];
        // SAFETY: the caller guarantees the instruction set; the test makes the slices long enough:
        // 32 rows at the stride, 1024 elements, arrays of 32.
        unsafe {
            V::transpose(self.0.as_ptr(), self.1, self.2.as_mut_ptr());
            V::load(self.0.as_ptr()).store_f16(half.as_mut_ptr());
            V::load_f16(half.as_ptr()).store(self.3.as_mut_ptr());
        }
    }
}

#[test]
fn transposes_and_f16_conversions_are_exact() {
    let mut rng = Rng::new();
    for isa in Isa::available() {
        for stride in [32, 33, 50] {
            let src = rng.reals(32 * stride);
            let (mut dst, mut half) = (vec![f32::NAN; 1024], [f32::NAN; LANES]);
            // SAFETY: the job's slices are long enough: 32 rows at `stride`, 1024 and 32 elements.
            unsafe { isa.run(Moves(&src, stride, &mut dst, &mut half)) };
            for i in 0..32 {
                assert_eq!(half[i], half::f16::from_f32(src[i]).to_f32(), "{}", isa.name());
                for j in 0..32 {
                    assert_eq!(dst[j * 32 + i], src[i * stride + j], "{} at {i}, {j}", isa.name());
                }
            }
        }
    }
}
