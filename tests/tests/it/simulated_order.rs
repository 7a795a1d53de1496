//! Folds over several blocks, cumulative sums, sorting, scatters, look-ups and repeated
//! expressions on simulated AMD devices compared with the CPU's, for waves of 32 and of 64 lanes.
//! Each test runs in a process of its own with the simulated HIP runtime.

use crate::common::{TEMPORARY, WORKER};
use kjit_ops::{DType, Device, Error, Index, Scalar, Tensor};
use kjit_tests::simulator::{Setup, cache, engine};

/// Runs `body` with a device of waves of 32 lanes, and with one of 64.
fn on_both(test: &str, body: impl Fn(&Device)) {
    // Kernels are compiled quickly for the simulator only. ops/tests/it/compile.rs compiles them
    // for the machine.
    let setup = Setup::devices("gfx1100,gfx942:sramecc+:xnack-")
        .set("HIPSIM_CLANG", "none")
        .set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let engine = engine(&cache(TEMPORARY).join("ops"), WORKER, "hiprtc");
        assert!(kjit_ops::device::use_engine(engine));
        for name in ["rocm:0", "rocm:1"] {
            body(&Device::open(name).unwrap());
        }
    });
}

/// Numbers from -`range` to `range`, and sizes, equal in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A size from 1 to `most`.
    fn size(&mut self, most: usize) -> usize {
        1 + self.next() as usize % most
    }

    fn tensor(&mut self, shape: &[usize], dtype: DType, range: f64) -> Tensor {
        let n: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let unit = self.next() as f64 / (1u64 << 31) as f64 * 2.0 - 1.0;
                let value = match dtype.is_float() {
                    true => Scalar::Float(unit * range),
                    false if dtype.range().0 == 0 => Scalar::Int((unit * range).abs() as i128),
                    false => Scalar::Int((unit * range) as i128),
                };
                value.to_bytes(dtype)
            })
            .collect();
        Tensor::from_bytes(&bytes, dtype, shape, &Device::Cpu).unwrap()
    }
}

/// Checks that both have one dtype, shape and values: equal, or floats within `units` in the last
/// place of `scale` or of the value, if that is greater. NaN is where it is expected.
fn same(what: &str, got: &Tensor, want: &Tensor, units: f64, scale: f64) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    let eps = match got.dtype() {
        DType::F16 => 2.0f64.powi(-10),
        DType::F32 => 2.0f64.powi(-23),
        _ => 2.0f64.powi(-52),
    };
    let (got, want) = (got.to_scalars().unwrap(), want.to_scalars().unwrap());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let close = match (g, w) {
            (Scalar::Float(g), Scalar::Float(w)) => {
                g == w
                    || (g.is_nan() && w.is_nan())
                    || (g - w).abs() <= units * eps * w.abs().max(scale)
            }
            (g, w) => g == w,
        };
        assert!(close, "{what} at {i}: got {g:?}, want {w:?}");
    }
}

fn integers(values: &[i64], shape: &[usize], device: &Device) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Tensor::from_bytes(&bytes, DType::I64, shape, device).unwrap()
}

#[test]
fn reductions_of_long_and_many_rows_match_cpu() {
    on_both("simulated_order::reductions_of_long_and_many_rows_match_cpu", |device| {
        let mut random = Random(21);
        // One long row, long columns, few rows, many rows, and random sizes between.
        let mut shapes = vec![vec![70_001], vec![9_001, 33], vec![33, 9_001], vec![3_001, 3]];
        for _ in 0..3 {
            shapes.push(vec![random.size(40), random.size(1500)]);
            shapes.push(vec![random.size(9), random.size(40), random.size(300)]);
        }
        for shape in &shapes {
            let x = random.tensor(shape, DType::F32, 40.0);
            let d = x.to_device(device).unwrap();
            for at in std::iter::once(None).chain((0..shape.len() as i64).map(Some)) {
                let list = at.map(|a| [a]);
                let list = list.as_ref().map(|l| &l[..]);
                let what = format!("{shape:?} {at:?}");
                // Sums are kept in f64 and rounded once; values are up to 40.
                let sum = |t: &Tensor| t.sum(list, false, None).unwrap();
                same(&format!("sum {what}"), &sum(&d), &sum(&x), 1.0, 1e-3);
                // Again: the counters of chunks are zeros after a fold.
                same(
                    &format!("sum again {what}"),
                    &sum(&d.neg().unwrap()),
                    &sum(&x.neg().unwrap()),
                    1.0,
                    1e-3,
                );
                let max = |t: &Tensor| t.max(list, true).unwrap();
                same(&format!("max {what}"), &max(&d), &max(&x), 0.0, 0.0);
                let place = |t: &Tensor| t.argmin(at, false).unwrap();
                same(&format!("argmin {what}"), &place(&d), &place(&x), 0.0, 0.0);
            }
        }
    });
}

#[test]
fn repeated_expressions_use_new_buffers_and_constants() {
    on_both("simulated_order::repeated_expressions_use_new_buffers_and_constants", |device| {
        let mut random = Random(22);
        let number =
            |v: f64, d: &Device| Tensor::full(&[], Scalar::Float(v), DType::F32, d).unwrap();
        let compiled = || kjit_ops::device::engine().counts().compiled;
        // Equal and different constants are two kernels.
        let mut before = 0;
        for round in 0..6 {
            let (x, y) =
                (random.tensor(&[7, 33], DType::F32, 3.0), random.tensor(&[33], DType::F32, 3.0));
            // Constants that are equal in some rounds only.
            let (a, b) = (f64::from(round % 3), f64::from(round % 2));
            let run = |x: &Tensor, y: &Tensor| {
                let d = x.device().clone();
                let t = x.mul(&number(a, &d)).unwrap().add(&number(b, &d)).unwrap();
                let t = t.add(&y.flip(None).unwrap()).unwrap();
                (t.clone(), t.sum(Some(&[1]), false, None).unwrap())
            };
            let (dx, dy) = (x.to_device(device).unwrap(), y.to_device(device).unwrap());
            let ((got, sum), (want, total)) = (run(&dx, &dy), run(&x, &y));
            let launches = device.launches();
            same("chain", &got, &want, 0.0, 0.0);
            same("sum", &sum, &total, 1.0, 1.0);
            assert_eq!(device.launches() - launches, 2);
            match round {
                0..=2 => before = compiled(),
                _ => assert_eq!(compiled(), before),
            }
        }
    });
}

#[test]
fn repeated_row_groups_use_new_buffers_and_constants() {
    on_both("simulated_order::repeated_row_groups_use_new_buffers_and_constants", |device| {
        let mut random = Random(29);
        let compiled = || kjit_ops::device::engine().counts().compiled;
        let mut before = 0;
        for round in 0..6 {
            // Two shapes, in which the same text is launched with other numbers.
            let shape = [5 + round % 2, 33 + 2 * (round % 2)];
            let x = random.tensor(&shape, DType::F32, 3.0);
            let scale = Scalar::Float(1.0 + (round % 3) as f64);
            let run = |x: &Tensor| {
                let scale = Tensor::full(&[], scale, DType::F32, x.device()).unwrap();
                x.mul(&scale).unwrap().softmax(-1).unwrap()
            };
            let d = x.to_device(device).unwrap();
            let (got, want) = (run(&d), run(&x));
            let launches = device.launches();
            // The sum of 33 values of up to 1 and the exponentials are rounded in another order.
            same("softmax", &got, &want, 8.0, 0.0);
            assert_eq!(device.launches() - launches, 1, "round {round}");
            // A reduction whose result has no rows: the mean is divided in a launch of its own.
            let mean = |x: &Tensor| x.mean(Some(&[1]), false).unwrap();
            let (got, want) = (mean(&d), mean(&x));
            let launches = device.launches();
            same("mean", &got, &want, 2.0, 1.0);
            assert_eq!(device.launches() - launches, 2, "round {round}");
            match round {
                0..=2 => before = compiled(),
                _ => assert_eq!(compiled(), before, "round {round}"),
            }
        }
    });
}

#[test]
fn cumulative_sums_match_cpu() {
    on_both("simulated_order::cumulative_sums_match_cpu", |device| {
        let mut random = Random(23);
        // A row in chunks, rows of a block each, rows of a thread each.
        let shapes =
            [vec![9_001], vec![3, 2_500], vec![random.size(400), 31], vec![5, random.size(90), 33]];
        for shape in &shapes {
            for dtype in [DType::F32, DType::I32, DType::F16] {
                let x = random.tensor(shape, dtype, 3.0);
                let d = x.to_device(device).unwrap();
                for at in [0, -1] {
                    // Sums are kept in f64, in another order than the CPU's; halves are rounded
                    // twice.
                    let sum = |t: &Tensor| t.cumulative(false, at, None, false).unwrap();
                    same(&format!("sum {shape:?} {dtype}"), &sum(&d), &sum(&x), 1.0, 1e-3);
                }
                if dtype == DType::F32 {
                    let prod = |t: &Tensor| t.cumulative(true, -1, None, true).unwrap();
                    same(&format!("prod {shape:?}"), &prod(&d), &prod(&x), 2.0, f64::MIN_POSITIVE);
                }
            }
        }
    });
}

#[test]
fn sorts_are_stable_with_nan_last() {
    on_both("simulated_order::sorts_are_stable_with_nan_last", |device| {
        let mut random = Random(24);
        // Radix sorts of one and of several tiles, networks, several rows in a block.
        let shapes =
            [vec![9_001], vec![3, 2_500], vec![5, random.size(2000)], vec![random.size(300), 5]];
        for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
            for shape in &shapes {
                // Few distinct values, so that stability shows.
                let x = random.tensor(shape, dtype, 30.0);
                let x = match dtype {
                    DType::F32 => {
                        let zero =
                            Tensor::full(&[], Scalar::Float(0.0), dtype, &Device::Cpu).unwrap();
                        let whole = x.unary(kjit_ops::UnOp::Trunc).unwrap();
                        // 0 / 0 is NaN, and -0 is among the whole numbers.
                        let nan = zero.div(&zero).unwrap();
                        let ten =
                            Tensor::full(&[], Scalar::Float(25.0), dtype, &Device::Cpu).unwrap();
                        whole.gt(&ten).unwrap().select(&nan, &whole).unwrap()
                    }
                    _ => x,
                };
                let d = x.to_device(device).unwrap();
                for descending in [false, true] {
                    let what = format!("{shape:?} {dtype} {descending}");
                    let order = |t: &Tensor| t.argsort(-1, descending).unwrap();
                    same(&format!("argsort {what}"), &order(&d), &order(&x), 0.0, 0.0);
                }
                let sort = |t: &Tensor| t.sort(0, false).unwrap();
                same(&format!("sort {shape:?} {dtype}"), &sort(&d), &sort(&x), 0.0, 0.0);
            }
        }
        let x = random.tensor(&[3001], DType::I64, 40.0);
        let (got, want) = (x.to_device(device).unwrap().unique().unwrap(), x.unique().unwrap());
        same("unique", &got.values, &want.values, 0.0, 0.0);
        same("unique's indices", &got.indices, &want.indices, 0.0, 0.0);
        same("unique's inverse", &got.inverse, &want.inverse, 0.0, 0.0);
        let mask = |t: &Tensor| t.gt(&t.neg().unwrap()).unwrap();
        let x = x.reshape(&[-1, 3]);
        assert!(x.is_err());
        let x = random.tensor(&[77, 41], DType::I64, 4.0);
        let d = x.to_device(device).unwrap();
        let (got, want) = (mask(&d).nonzero().unwrap(), mask(&x).nonzero().unwrap());
        got.iter().zip(&want).for_each(|(g, w)| same("nonzero", g, w, 0.0, 0.0));
        let by = |t: &Tensor| t.index(&[Index::Tensor(mask(t))]).unwrap();
        same("mask", &by(&d), &by(&x), 0.0, 0.0);
        let none = d.ne(&d).unwrap().nonzero().unwrap();
        assert_eq!((none.len(), none[0].shape()), (2, &[0][..]));
    });
}

#[test]
fn scatters_apply_values_in_order() {
    on_both("simulated_order::scatters_apply_values_in_order", |device| {
        let mut random = Random(25);
        for (dtype, base, part, axis) in [
            (DType::F32, vec![50], vec![5_000], 0),
            (DType::F16, vec![9, 31], vec![40, 31], 0),
            (DType::F32, vec![7, 20, 3], vec![5, random.size(90), 3], 1),
        ] {
            let x = random.tensor(&base, dtype, 3.0);
            let values = random.tensor(&part, dtype, 3.0);
            let (n, size) = (part.iter().product::<usize>(), base[axis] as i64);
            let index: Vec<i64> =
                (0..n).map(|_| random.next() as i64 % (2 * size) - size).collect();
            let index = integers(&index, &part, &Device::Cpu);
            let [dx, dv, di] = [&x, &values, &index].map(|t| t.to_device(device).unwrap());
            for add in [false, true] {
                // Equal bits: the additions have the CPU's order.
                let want = x.scatter(axis as i64, &index, &values, add).unwrap();
                let got = dx.scatter(axis as i64, &di, &dv, add).unwrap();
                same(&format!("scatter {base:?} {dtype} {add}"), &got, &want, 0.0, 0.0);
            }
            same("the base", &dx, &x, 0.0, 0.0);
        }
    });
}

#[test]
fn out_of_range_indices_are_reported_once() {
    on_both("simulated_order::out_of_range_indices_are_reported_once", |device| {
        let x = Random(26).tensor(&[5, 3], DType::F32, 3.0).to_device(device).unwrap();
        let list = |values: &[i64]| integers(values, &[values.len()], device);
        let reported =
            |what: &str, t: Result<Tensor, Error>, index: i64, axis: usize, size: usize| {
                let error = t.and_then(|t| t.to_bytes()).unwrap_err();
                let wanted =
                    format!("index {index} is out of bounds for axis {axis} with size {size}");
                assert!(error.to_string().contains(&wanted), "{what}: {error}");
                // The error is reported once, and the device continues.
                device.synchronize().unwrap();
                same(what, &x.add(&x).unwrap().sub(&x).unwrap(), &x, 2.0, 1.0);
            };
        reported("take", x.take(&list(&[0, 5]), 0), 5, 0, 5);
        reported("take -", x.take(&list(&[-4]), 1), -4, 1, 3);
        reported(
            "fold of a look-up",
            x.take(&list(&[7, 1]), 0).unwrap().sum(None, false, None),
            7,
            0,
            5,
        );
        let pair = [Index::Tensor(list(&[0, 1])), Index::Tensor(list(&[1, 3]))];
        reported("x[i, j]", x.index(&pair), 3, 1, 3);
        let values = Random(27).tensor(&[2, 3], DType::F32, 3.0).to_device(device).unwrap();
        let rows = integers(&[0, 1, 2, -6, 1, 1], &[2, 3], device);
        for add in [false, true] {
            reported("scatter", x.scatter(0, &rows, &values, add), -6, 0, 5);
        }
        // An evaluation does not wait, so it does not report.
        let later = x.take(&list(&[9]), 0).unwrap();
        later.eval().unwrap();
        assert!(matches!(device.synchronize(), Err(Error::Index { index: 9, .. })));
    });
}

#[test]
fn memory_is_counted_warmed_up_and_freed() {
    on_both("simulated_order::memory_is_counted_warmed_up_and_freed", |device| {
        let before = device.pool_statistics().unwrap();
        // Two blocks at once, so that two tensors need no call of the driver.
        let bytes = 3 << 20;
        device.warm_up(&[bytes, bytes]).unwrap();
        let warm = device.pool_statistics().unwrap();
        assert!(warm.held >= before.held + 2 * bytes as u64, "{warm:?}");
        assert_eq!(warm.in_use, before.in_use);
        let new = || Tensor::full(&[bytes / 4], Scalar::Float(1.0), DType::F32, device).unwrap();
        let one = Tensor::full(&[], Scalar::Float(2.0), DType::F32, device).unwrap();
        let (x, y) = (new(), new().add(&one).unwrap());
        x.eval().unwrap();
        y.eval().unwrap();
        let used = device.pool_statistics().unwrap();
        assert_eq!((used.misses, used.live), (warm.misses, warm.live + 2));
        assert!(used.peak >= used.in_use && used.in_use >= warm.in_use + 2 * bytes as u64);
        let pinned = device.pinned_statistics().unwrap().held;
        device.warm_up_pinned(&[100, 10 << 20]).unwrap();
        // Two blocks for short copies, four for long ones.
        let held = device.pinned_statistics().unwrap().held;
        assert_eq!(held, pinned + 2 * (4 << 10) + 4 * (4 << 20));
        // A copy longer than a block, there and back.
        let long = Random(28).tensor(&[(9 << 20) + 77], DType::U8, 200.0);
        assert!(long.to_device(device).unwrap().to_bytes().unwrap() == long.to_bytes().unwrap());
        drop((x, y));
        assert!(device.clear_pool().unwrap() >= 2 * bytes as u64);
        assert!(device.clear_pinned().unwrap() >= held);
        let after = device.pool_statistics().unwrap();
        assert_eq!((after.held, device.pinned_statistics().unwrap().held), (after.in_use, 0));
        let huge = Tensor::full(&[1 << 44], Scalar::Float(1.0), DType::F32, device).unwrap();
        let error = huge.add(&one).unwrap().eval().unwrap_err();
        assert!(matches!(error, Error::DeviceMemory { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("cannot allocate 70368744177664 bytes"), "{text}");
    });
}
