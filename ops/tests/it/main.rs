//! Operations on the CPU compared with plain loops in f64 and i128, and compilation of the kernels'
//! texts.

mod compile;
mod elements;
mod folds;
mod networks;
mod views;

use kjit_ops::{DType, Device, Scalar, Tensor};

/// Shapes that are not multiples of tiles, rows or vectors.
const SHAPES: &[&[usize]] =
    &[&[], &[0], &[1], &[31], &[33], &[65], &[2, 0, 3], &[3, 257], &[7, 1, 13], &[5, 1031]];

/// Random numbers, equal in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Uniform in -range..range.
    fn float(&mut self, range: f64) -> f64 {
        (self.next() as f64 / (1u64 << 31) as f64 * 2.0 - 1.0) * range
    }

    fn values(&mut self, n: usize, dtype: DType, range: f64) -> Vec<Scalar> {
        (0..n)
            .map(|_| match (dtype, dtype.is_float()) {
                (_, true) => Scalar::Float(self.float(range)),
                (DType::Bool, _) => Scalar::Bool(self.next() & 1 == 1),
                _ => {
                    let (low, _) = dtype.range();
                    let v = self.float(range) as i128;
                    Scalar::Int(if low == 0 { v.abs() } else { v })
                }
            })
            .collect()
    }

    fn tensor(&mut self, shape: &[usize], dtype: DType, range: f64) -> Tensor {
        let n = shape.iter().product();
        tensor(&self.values(n, dtype, range), dtype, shape)
    }
}

fn tensor(values: &[Scalar], dtype: DType, shape: &[usize]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_bytes(dtype)).collect();
    Tensor::from_bytes(&bytes, dtype, shape, &Device::Cpu).unwrap()
}

fn floats(values: &[f64], dtype: DType) -> Tensor {
    let values: Vec<_> = values.iter().map(|v| Scalar::Float(*v)).collect();
    tensor(&values, dtype, &[values.len()])
}

fn list(t: &Tensor) -> Vec<f64> {
    t.to_scalars().unwrap().iter().map(|v| v.float()).collect()
}

/// Checks that each value is within `eps` of the expected one, relative to its size or to 1, and
/// that NaN is exactly where it is expected.
fn close(what: &str, got: &[f64], want: &[f64], eps: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= eps * w.abs().max(1.0);
        assert!(same, "{what} at {i}: got {g:e}, want {w:e}");
    }
}

/// The unit in the last place of 1 in a dtype.
fn eps(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2.0f64.powi(-10),
        DType::BF16 => 2.0f64.powi(-7),
        DType::F32 => 2.0f64.powi(-23),
        _ => 2.0f64.powi(-52),
    }
}
