//! Folds over any axes compared with loops: empty axes, NaN, and accuracy of long sums.

use crate::it::{Random, SHAPES, close, eps, floats, list};
use kjit_ops::{DType, Device, Scalar, Tensor};

/// The values that are reduced to each result.
fn groups(t: &Tensor, axes: &[usize]) -> Vec<Vec<f64>> {
    let (shape, values) = (t.shape().to_vec(), list(t));
    let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let count: usize = kept.iter().map(|a| shape[*a]).product();
    let mut out = vec![Vec::new(); count];
    for (i, v) in values.iter().enumerate() {
        let (mut rest, mut index) = (i, vec![0; shape.len()]);
        for a in (0..shape.len()).rev() {
            index[a] = rest % shape[a];
            rest /= shape[a];
        }
        let at = kept.iter().fold(0, |at, a| at * shape[*a] + index[*a]);
        out[at].push(*v);
    }
    out
}

#[test]
fn reductions_match_loops_over_any_axes() {
    let mut random = Random(3);
    for shape in SHAPES {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I16] {
            let x = random.tensor(shape, dtype, 9.0);
            let rank = shape.len();
            for mask in 0..1usize << rank {
                let axes: Vec<usize> = (0..rank).filter(|a| mask >> a & 1 == 1).collect();
                let at: Vec<i64> = axes.iter().map(|a| *a as i64).collect();
                let groups = groups(&x, &axes);
                let of = |f: fn(&[f64]) -> f64| groups.iter().map(|g| f(g)).collect::<Vec<_>>();
                let what = format!("{dtype} {shape:?} over {axes:?}");
                let sum = x.sum(Some(&at), false, None).unwrap();
                close(&what, &list(&sum), &of(|g| g.iter().sum()), 2.0 * eps(dtype));
                if groups.iter().any(Vec::is_empty) {
                    assert!(x.max(Some(&at), false).is_err(), "{what}");
                    continue;
                }
                let max = x.max(Some(&at), true).unwrap();
                close(&what, &list(&max), &of(|g| g.iter().copied().fold(f64::MIN, f64::max)), 0.0);
                let any = x.any(Some(&at), false).unwrap();
                close(
                    &what,
                    &list(&any),
                    &of(|g| f64::from(u8::from(g.iter().any(|v| *v != 0.0)))),
                    0.0,
                );
            }
        }
    }
}

#[test]
fn max_and_min_propagate_nan_and_return_first_index() {
    let x = floats(&[1.0, f64::NAN, 3.0, f64::NAN], DType::F32);
    assert!(list(&x.max(None, false).unwrap())[0].is_nan());
    assert!(list(&x.min(None, false).unwrap())[0].is_nan());
    assert_eq!(list(&x.argmax(None, false).unwrap()), [1.0]);
    let x = floats(&[2.0, 5.0, 5.0, 1.0, 1.0], DType::F64);
    assert_eq!(list(&x.argmax(None, false).unwrap()), [1.0]);
    assert_eq!(list(&x.argmin(None, true).unwrap()), [3.0]);
}

#[test]
fn empty_reductions_are_neutral_or_refused() {
    let x = Tensor::full(&[2, 0], Scalar::Int(0), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(list(&x.sum(Some(&[1]), false, None).unwrap()), [0.0, 0.0]);
    assert_eq!(list(&x.prod(Some(&[1]), false, None).unwrap()), [1.0, 1.0]);
    assert_eq!(list(&x.all(Some(&[1]), false).unwrap()), [1.0, 1.0]);
    assert!(list(&x.mean(Some(&[1]), false).unwrap()).iter().all(|v| v.is_nan()));
    assert_eq!(x.max(Some(&[0]), false).unwrap().shape(), [0]);
    let error = x.max(Some(&[1]), false).unwrap_err().to_string();
    assert!(error.contains("(2, 0) has no elements"), "{error}");
}

#[test]
fn large_f32_sum_keeps_its_precision() {
    // An f32 sum of 16 million values of 0.1 would lose three digits.
    let x = Tensor::full(&[1 << 24], Scalar::Float(0.1), DType::F32, &Device::Cpu).unwrap();
    let want = f64::from(0.1f32) * f64::from(1 << 24);
    close("sum", &list(&x.sum(None, false, None).unwrap()), &[want], 2.0 * eps(DType::F32));
}

#[test]
fn sorting_is_stable_with_nan_last() {
    let mut random = Random(5);
    for dtype in [DType::F32, DType::F16, DType::I8, DType::U64] {
        let x = random.tensor(&[7, 65], dtype, 9.0);
        let sorted = list(&x.sort(1, false).unwrap());
        let order = list(&x.argsort(1, false).unwrap());
        for (row, values) in list(&x).chunks(65).enumerate() {
            let mut want: Vec<usize> = (0..65).collect();
            want.sort_by(|a, b| values[*a].partial_cmp(&values[*b]).unwrap());
            let got: Vec<usize> = order[row * 65..][..65].iter().map(|v| *v as usize).collect();
            assert_eq!(got, want, "{dtype}");
            assert!(got.iter().zip(&sorted[row * 65..]).all(|(i, v)| values[*i] == *v));
        }
    }
    let x = floats(&[f64::NAN, 1.0, f64::NEG_INFINITY, 0.0, -0.0], DType::F32);
    assert_eq!(list(&x.argsort(0, false).unwrap()), [2.0, 3.0, 4.0, 1.0, 0.0]);
}

#[test]
fn cumulative_sums_and_unique_values_match_loops() {
    let mut random = Random(6);
    let x = random.tensor(&[5, 33], DType::I8, 9.0);
    let (run, values) = (list(&x.cumulative(false, 1, None, false).unwrap()), list(&x));
    for (run, values) in run.chunks(33).zip(values.chunks(33)) {
        let mut sum = 0.0;
        assert!(run.iter().zip(values).all(|(r, v)| {
            sum += v;
            *r == sum
        }));
    }
    let u = x.unique().unwrap();
    let mut want = values.clone();
    want.sort_by(f64::total_cmp);
    want.dedup();
    assert_eq!(list(&u.values), want);
    let inverse = list(&u.inverse);
    assert!(inverse.iter().zip(&values).all(|(i, v)| want[*i as usize] == *v));
    assert_eq!(list(&u.counts).iter().sum::<f64>(), values.len() as f64);
}

#[test]
fn cumulative_products_of_complex_numbers_match_loops() {
    let mut random = Random(8);
    for n in [0usize, 1, 2, 31, 37] {
        let [re, im] = [(); 2].map(|()| random.tensor(&[3, n], DType::F64, 1.4));
        let x = Tensor::pair_of(&re, &im).unwrap();
        let run = x.cumulative(true, 1, None, true).unwrap();
        assert_eq!(run.shape(), [3, n + 1]);
        let (run, re, im) = (run.to_scalars().unwrap(), list(&re), list(&im));
        for row in 0..3 {
            let (mut a, mut b) = (1.0, 0.0);
            for i in 0..=n {
                let Scalar::Complex(got, also) = run[row * (n + 1) + i] else { panic!("real") };
                // Each product rounds a few times, relative to its magnitude.
                let room = 1e-13 * f64::hypot(a, b);
                assert!((got - a).abs() <= room && (also - b).abs() <= room, "{n}: {i}");
                if i < n {
                    let (c, d) = (re[row * n + i], im[row * n + i]);
                    (a, b) = (a * c - b * d, a * d + b * c);
                }
            }
        }
    }
}
