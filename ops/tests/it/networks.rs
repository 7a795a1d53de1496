//! Products, convolutions, pools, norms and losses compared with loops in f64.

use crate::it::{Random, close, list, tensor};
use kjit_ops::{DType, Device, Reduction, Scalar, Tensor, Windows};

#[test]
fn matmul_matches_loops_for_any_strides() {
    let mut random = Random(8);
    for (m, k, n) in [(1, 1, 1), (31, 33, 65), (7, 257, 3), (4, 0, 5), (0, 3, 2), (64, 64, 64)] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::I8, DType::U32] {
            let a = random.tensor(&[2, k, m], dtype, 3.0).matrix_transpose().unwrap();
            let b = random.tensor(&[k, n], dtype, 3.0).flip(None).unwrap();
            let (x, y) = (list(&a), list(&b));
            let mut want = Vec::new();
            for batch in 0..2 {
                for i in 0..m {
                    for j in 0..n {
                        let sum: f64 =
                            (0..k).map(|l| x[(batch * m + i) * k + l] * y[l * n + j]).sum();
                        want.push(if dtype == DType::I8 {
                            f64::from(sum as i64 as i8)
                        } else {
                            sum
                        });
                    }
                }
            }
            let got = a.matmul(&b).unwrap();
            assert_eq!(got.shape(), [2, m, n]);
            // k products of magnitude 9 at most; halves are rounded once.
            let eps = match dtype {
                DType::F16 => 2e-3,
                DType::F32 => 1e-5,
                DType::F64 => 1e-13,
                _ => 0.0,
            };
            close(&format!("{dtype} {m} {k} {n}"), &list(&got), &want, eps);
        }
    }
}

#[test]
fn convolutions_and_transposed_ones_match_loops() {
    let mut random = Random(9);
    for (stride, pad, dilation, groups) in [(1, 0, 1, 1), (2, 1, 1, 2), (3, 2, 2, 1), (1, 1, 3, 2)]
    {
        let (c, out, h, k) = (4, 6, 11, 3);
        let x = random.tensor(&[2, c, h], DType::F64, 1.0);
        let w = random.tensor(&[out, c / groups, k], DType::F64, 1.0);
        let windows = Windows { stride: &[stride], padding: &[pad], dilation: &[dilation] };
        let got = x.conv(&w, None, &windows, groups).unwrap();
        let (xs, ws) = (list(&x), list(&w));
        let wide = (h + 2 * pad - dilation * (k - 1) - 1) / stride + 1;
        let mut want = vec![0.0; 2 * out * wide];
        let (per_in, per_out) = (c / groups, out / groups);
        for (n, o, p) in
            (0..2).flat_map(|n| (0..out).flat_map(move |o| (0..wide).map(move |p| (n, o, p))))
        {
            for (i, t) in (0..per_in).flat_map(|i| (0..k).map(move |t| (i, t))) {
                let at = (p * stride + t * dilation).checked_sub(pad).filter(|a| *a < h);
                let channel = o / per_out * per_in + i;
                if let Some(at) = at {
                    want[(n * out + o) * wide + p] +=
                        xs[(n * c + channel) * h + at] * ws[(o * per_in + i) * k + t];
                }
            }
        }
        close("conv", &list(&got), &want, 1e-12);
        // The adjoint: <conv(x, w), y> = <x, conv_transpose(y, w)>.
        let y = random.tensor(got.shape(), DType::F64, 1.0);
        let rest = (h + 2 * pad - dilation * (k - 1) - 1) % stride;
        let back = y.conv_transpose(&w, None, &windows, &[rest], groups).unwrap();
        assert_eq!(back.shape(), x.shape());
        let dot =
            |a: &Tensor, b: &Tensor| list(&a.mul(b).unwrap().sum(None, false, None).unwrap())[0];
        close("conv_transpose", &[dot(&x, &back)], &[dot(&got, &y)], 1e-12);
    }
}

#[test]
fn pools_norms_and_losses_match_their_formulas() {
    let mut random = Random(10);
    let x = random.tensor(&[2, 3, 7], DType::F64, 2.0);
    let windows = Windows { stride: &[2], padding: &[1], dilation: &[1] };
    let max = list(&x.max_pool(&[3], &windows).unwrap());
    let avg = list(&x.avg_pool(&[3], &windows, true).unwrap());
    for (row, values) in list(&x).chunks(7).enumerate() {
        for p in 0..4usize {
            let part: Vec<f64> =
                (0..3).filter_map(|t| values.get((p * 2 + t).wrapping_sub(1)).copied()).collect();
            assert_eq!(max[row * 4 + p], part.iter().copied().fold(f64::MIN, f64::max));
            close("avg", &[avg[row * 4 + p]], &[part.iter().sum::<f64>() / 3.0], 1e-14);
        }
    }
    let norm = list(&x.layer_norm(&[7], None, None, 1e-5).unwrap());
    for (got, values) in norm.chunks(7).zip(list(&x).chunks(7)) {
        let mean = values.iter().sum::<f64>() / 7.0;
        let var = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 7.0;
        let want: Vec<f64> = values.iter().map(|v| (v - mean) / (var + 1e-5).sqrt()).collect();
        close("layer_norm", got, &want, 1e-12);
    }
    let scores = random.tensor(&[5, 4], DType::F64, 3.0);
    let classes = tensor(&[0, 3, 1, -100, 2].map(|v: i64| Scalar::from(v)), DType::I64, &[5]);
    let loss = scores.cross_entropy(&classes, None, -100, Reduction::Mean).unwrap();
    let mut want = 0.0;
    for (row, class) in list(&scores).chunks(4).zip([0, 3, 1, 9, 2]) {
        if let Some(score) = row.get(class) {
            want += row.iter().map(|v| v.exp()).sum::<f64>().ln() - score;
        }
    }
    close("cross_entropy", &list(&loss), &[want / 4.0], 1e-12);
    let q = random.tensor(&[2, 5, 8], DType::F64, 1.0);
    let got = q.attention(&q, &q, None, true, None).unwrap();
    // The mask lets the first row attend only to itself.
    close("attention", &list(&got)[..8], &list(&q)[..8], 1e-14);
    let infinite = Tensor::full(&[1, 2], Scalar::Float(1e4), DType::F32, &Device::Cpu).unwrap();
    close("softmax", &list(&infinite.softmax(-1).unwrap()), &[0.5, 0.5], 0.0);
}
