//! Products, convolutions and rows on simulated AMD devices with waves of 32 and of 64 lanes,
//! compared with loops in f64, and the number of their launches.

use crate::common::{TEMPORARY, WORKER};
use kjit_ops::{DType, Device, Index, Scalar, Tensor, Windows};
use kjit_tests::simulator::{Setup, cache, engine};

/// Runs `body` with a device of waves of 32 lanes, and with one of 64.
fn on_both(test: &str, body: impl Fn(&Device)) {
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

/// Random numbers whose seed is printed: `KJIT_TEST_SEED` repeats them.
struct Random(u64);

impl Random {
    fn new(test: &str) -> Random {
        let seed = std::env::var("KJIT_TEST_SEED").ok().and_then(|s| s.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) * 7919);
        eprintln!("{test}: KJIT_TEST_SEED={seed}");
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A random size from `low` to `high`.
    fn size(&mut self, low: usize, high: usize) -> usize {
        low + self.next() as usize % (high - low + 1)
    }

    /// Random numbers from -1 to 1.
    fn tensor(&mut self, shape: &[usize], dtype: DType) -> Tensor {
        let n: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let unit = self.next() as f64 / (1u64 << 31) as f64 * 2.0 - 1.0;
                Scalar::Float(unit).to_bytes(dtype)
            })
            .collect();
        Tensor::from_bytes(&bytes, dtype, shape, &Device::Cpu).unwrap()
    }
}

fn list(t: &Tensor) -> Vec<f64> {
    t.to_scalars().unwrap().iter().map(|v| v.float()).collect()
}

fn wide(t: &Tensor) -> Tensor {
    t.astype(DType::F64).unwrap()
}

/// Checks a result against the CPU's result in f64. The tolerance is `steps` roundings to its
/// dtype, of values of the size of a sum of `terms` random products of numbers up to 1 (of which
/// some cancel), plus the roundings of that sum in f32.
fn close(what: &str, got: &Tensor, want: &Tensor, terms: usize, steps: f64) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    let eps = match got.dtype() {
        DType::F16 => 2.0f64.powi(-11),
        DType::BF16 => 2.0f64.powi(-8),
        DType::F64 => 2.0f64.powi(-53),
        _ => 2.0f64.powi(-24),
    };
    let sums = terms as f64 * if got.dtype() == DType::F64 { eps } else { 2.0f64.powi(-24) };
    let size = (terms as f64).sqrt().max(0.25);
    for (i, (g, w)) in list(got).iter().zip(list(want)).enumerate() {
        let off = (g - w).abs();
        assert!(
            off <= steps * eps * w.abs().max(size) + sums,
            "{what} at {i}: got {g:e}, want {w:e}"
        );
    }
}

fn counted(device: &Device, what: &str, launches: u64, make: &dyn Fn() -> Tensor) -> Tensor {
    let before = device.launches();
    let out = make();
    out.eval().unwrap();
    assert_eq!(device.launches() - before, launches, "{what}");
    out
}

#[test]
fn products_of_any_size_are_correct() {
    on_both("simulated_products::products_of_any_size_are_correct", |device| {
        let mut random = Random::new("products");
        // Sizes that are multiples of sixteen bytes, and sizes that are not.
        let even = |random: &mut Random| 8 * random.size(1, 20);
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for case in 0..6 {
                let aligned = case % 2 == 0;
                let mut size = |low, high| match aligned {
                    true => even(&mut random),
                    false => random.size(low, high),
                };
                let (m, n, k) = (size(1, 150), size(1, 150), size(1, 150));
                let a = random.tensor(&[m, k], dtype);
                let b = random.tensor(&[k, n], dtype);
                let (turned_a, turned_b) = (random.next() & 1 == 1, random.next() & 1 == 1);
                // A transposed operand is a view of memory with the other order.
                let place = |t: &Tensor, turned: bool| match turned {
                    false => t.to_device(device).unwrap(),
                    true => {
                        let other = t.matrix_transpose().unwrap().to_device(device).unwrap();
                        other.eval().unwrap();
                        other.matrix_transpose().unwrap()
                    }
                };
                let (x, y) = (place(&a, turned_a), place(&b, turned_b));
                let what = format!("{dtype} {m}×{k} {turned_a} by {k}×{n} {turned_b}");
                let got = counted(device, &what, 1, &|| x.matmul(&y).unwrap());
                close(&what, &got, &wide(&a).matmul(&wide(&b)).unwrap(), k, 1.0);
            }
        }
        // Batches that broadcast, vectors, slices with steps, and products without elements.
        let (a, b) =
            (random.tensor(&[3, 1, 5, 9], DType::F32), random.tensor(&[4, 9, 7], DType::F32));
        let (x, y) = (a.to_device(device).unwrap(), b.to_device(device).unwrap());
        let got = counted(device, "batches", 1, &|| x.matmul(&y).unwrap());
        close("batches", &got, &wide(&a).matmul(&wide(&b)).unwrap(), 9, 1.0);
        let every = |t: &Tensor| {
            t.index(&[Index::At(1), Index::Slice(None, None, Some(-2)), Index::Ellipsis]).unwrap()
        };
        let got = every(&y).matrix_transpose().unwrap().matmul(&every(&y)).unwrap();
        let want = wide(&every(&b));
        close("steps", &got, &want.matrix_transpose().unwrap().matmul(&want).unwrap(), 9, 1.0);
        let v = random.tensor(&[9], DType::F32);
        let got = x.matmul(&v.to_device(device).unwrap()).unwrap();
        close("a vector", &got, &wide(&a).matmul(&wide(&v)).unwrap(), 9, 1.0);
        let none = Tensor::full(&[3, 0], Scalar::Int(0), DType::F16, device).unwrap();
        let got = none.matmul(&none.matrix_transpose().unwrap()).unwrap();
        assert_eq!(list(&got), [0.0; 9]);
    });
}

#[test]
fn readers_of_a_product_are_fused_into_it() {
    on_both("simulated_products::readers_of_a_product_are_fused_into_it", |device| {
        let mut random = Random::new("readers");
        let (m, k, n) = (random.size(1, 90), random.size(1, 90), random.size(2, 90));
        for dtype in [DType::F32, DType::F16] {
            let [x, w, b, r] =
                [&[m, k][..], &[n, k], &[n], &[m, n]].map(|s| random.tensor(s, dtype));
            let [dx, dw, db, dr] = [&x, &w, &b, &r].map(|t| t.to_device(device).unwrap());
            let [wx, ww, wb, wr] = [&x, &w, &b, &r].map(wide);
            let relu =
                |x: &Tensor, w: &Tensor, b: &Tensor| x.linear(w, Some(b)).unwrap().relu().unwrap();
            let got = counted(device, "linear, relu", 1, &|| relu(&dx, &dw, &db));
            close("linear, relu", &got, &relu(&wx, &ww, &wb), k, 3.0);
            let gelu = |x: &Tensor, w: &Tensor, b: &Tensor, r: &Tensor| {
                x.linear(w, Some(b)).unwrap().gelu(false).unwrap().add(r).unwrap()
            };
            let got = counted(device, "linear, gelu, residual", 1, &|| gelu(&dx, &dw, &db, &dr));
            close("linear, gelu, residual", &got, &gelu(&wx, &ww, &wb, &wr), k, 12.0);
            let silu = |x: &Tensor, w: &Tensor| {
                let flat = x.linear(w, None).unwrap().silu().unwrap();
                flat.astype(DType::F32).unwrap().reshape(&[-1, 1]).unwrap().neg().unwrap()
            };
            let got = counted(device, "silu, cast, reshape", 1, &|| silu(&dx, &dw));
            close(
                "silu, cast, reshape",
                &got,
                &silu(&wx, &ww),
                k,
                if dtype == DType::F16 { 65536.0 } else { 12.0 },
            );
            // A result that is also used elsewhere is computed once and then read.
            let held = dx.linear(&dw, None).unwrap();
            let got = counted(device, "held", 2, &|| held.relu().unwrap());
            close("held", &got, &wx.linear(&ww, None).unwrap().relu().unwrap(), k, 2.0);
            counted(device, "again", 0, &|| held.clone());
            // A result may also be read in a different order, or twice.
            let turned = |x: &Tensor, w: &Tensor| {
                let y = x.linear(w, None).unwrap();
                y.matrix_transpose().unwrap().neg().unwrap()
            };
            let got = counted(device, "transposed", 2, &|| turned(&dx, &dw));
            close("transposed", &got, &turned(&wx, &ww), k, 2.0);
            let two = |x: &Tensor, w: &Tensor, b: &Tensor| {
                x.linear(w, None).unwrap().add(&x.linear(w, Some(b)).unwrap()).unwrap()
            };
            close("two readers", &two(&dx, &dw, &db), &two(&wx, &ww, &wb), 4 * k, 4.0);
        }
    });
}

#[test]
fn convolutions_copy_no_windows() {
    on_both("simulated_products::convolutions_copy_no_windows", |device| {
        let mut random = Random::new("simulated_products::convolutions");
        for (case, dtype) in
            [DType::F32, DType::F16, DType::F32, DType::BF16].into_iter().enumerate()
        {
            let (groups, each, out) = (1 + case % 2, random.size(1, 5), random.size(1, 9));
            let (h, w) = (random.size(5, 12), random.size(5, 12));
            let (stride, padding, dilation) =
                (random.size(1, 2), case / 2 * random.size(0, 2), random.size(1, 2));
            let x = random.tensor(&[2, groups * each, h, w], dtype);
            let f = random.tensor(&[out * groups, each, 3, 2], dtype);
            let b = random.tensor(&[out * groups], dtype);
            let [dx, df, db] = [&x, &f, &b].map(|t| t.to_device(device).unwrap());
            let conv = |x: &Tensor, f: &Tensor, b: &Tensor| {
                let (s, p, d) = ([stride; 2], [padding; 2], [dilation; 2]);
                let windows = Windows { stride: &s, padding: &p, dilation: &d };
                x.conv(f, Some(b), &windows, groups).unwrap().relu().unwrap()
            };
            let what = format!(
                "{dtype}, {groups} groups of {each} channels, \
                 {out}, {h}×{w}, stride {stride}, padding {padding}, dilation {dilation}"
            );
            // Padding makes a copy of the image: one launch fills it, one copies.
            let launches = if padding > 0 { 3 } else { 1 };
            let got = counted(device, &what, launches, &|| conv(&dx, &df, &db));
            close(&what, &got, &conv(&wide(&x), &wide(&f), &wide(&b)), 6 * each, 3.0);
        }
    });
}

#[test]
fn large_convolutions_copy_the_image_with_channels_as_neighbours() {
    on_both(
        "simulated_products::large_convolutions_copy_the_image_with_channels_as_neighbours",
        |device| {
            let mut random = Random::new("simulated_products::large_convolutions");
            for dtype in [DType::F16, DType::F32] {
                let (channels, out) = (8 * random.size(6, 8), random.size(120, 130));
                let (h, w) = (random.size(40, 44), random.size(40, 44));
                let (stride, padding) = (random.size(1, 2), random.size(0, 2));
                let x = random.tensor(&[1, channels, h, w], dtype);
                let f = random.tensor(&[out, channels, 3, 3], dtype);
                let [dx, df] = [&x, &f].map(|t| t.to_device(device).unwrap());
                let conv = |x: &Tensor, f: &Tensor| {
                    let (s, p) = ([stride; 2], [padding; 2]);
                    let windows = Windows { stride: &s, padding: &p, dilation: &[1, 1] };
                    x.conv(f, None, &windows, 1).unwrap().relu().unwrap()
                };
                let what = format!(
                    "{dtype}, {channels} channels to {out}, \
                     {h}×{w}, stride {stride}, padding {padding}"
                );
                // Copies of the image (first zeros, if there is padding) and of the weight.
                let launches = if padding > 0 { 4 } else { 3 };
                let got = counted(device, &what, launches, &|| conv(&dx, &df));
                close(&what, &got, &conv(&wide(&x), &wide(&f)), 9 * channels, 3.0);
            }
        },
    );
}

#[test]
fn copies_turn_axes_by_tiles() {
    on_both("simulated_products::copies_turn_axes_by_tiles", |device| {
        let mut random = Random::new("simulated_products::copies_turn_axes");
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            let shape = [random.size(1, 3), random.size(10, 140), random.size(1, 3)];
            let shape = [shape[0], shape[1], shape[2], random.size(16, 140)];
            let n: usize = shape.iter().product();
            let bytes: Vec<u8> =
                (0..n * dtype.size()).map(|_| random.next() as u8 & 0x3b).collect();
            let x = Tensor::from_bytes(&bytes, dtype, &shape, &Device::Cpu).unwrap();
            let turned = |x: &Tensor| {
                let x = x.permute(&[2, 0, 3, 1]).unwrap();
                x.pad(&[(0, 1), (0, 0), (2, 0), (0, 3)], Scalar::Int(1)).unwrap()
            };
            let what = format!("{dtype} of {shape:?}");
            let dx = x.to_device(device).unwrap();
            let got = counted(device, &what, 2, &|| turned(&dx));
            assert_eq!(got.to_bytes().unwrap(), turned(&x).to_bytes().unwrap(), "{what}");
        }
    });
}

#[test]
fn softmax_and_norms_are_one_launch() {
    on_both("simulated_products::softmax_and_norms_are_one_launch", |device| {
        let mut random = Random::new("rows");
        for (case, n) in [
            random.size(1, 60),
            random.size(65, 500),
            random.size(600, 5000),
            random.size(16_400, 20_000),
            // Rows of whole packs: held in registers, and read again.
            8 * random.size(1, 90),
            8 * random.size(4100, 4400),
        ]
        .into_iter()
        .enumerate()
        {
            let dtype = [DType::F32, DType::F16, DType::F32, DType::BF16][case % 4];
            let m = random.size(1, 5);
            let x = random.tensor(&[m, n], dtype);
            let [w, b] = [(); 2].map(|()| random.tensor(&[n], dtype));
            let [dx, dw, db] = [&x, &w, &b].map(|t| t.to_device(device).unwrap());
            let what = |op: &str| format!("{op} of {m} rows of {n}, {dtype}");
            // A row of one element is not a reduction.
            let one = |name: &str| if n > 1 { (what(name), 1) } else { (what(name), 3) };
            let check =
                |name: &str, steps: f64, f: &dyn Fn(&Tensor, &Tensor, &Tensor) -> Tensor| {
                    let (what, launches) = one(name);
                    let before = device.launches();
                    let got = f(&dx, &dw, &db);
                    got.eval().unwrap();
                    let launched = device.launches() - before;
                    assert!(launched <= launches, "{what}: {launched} launches");
                    // The CPU computes the same steps in the same dtype.
                    close(&what, &got, &f(&x, &w, &b).astype(DType::F64).unwrap(), 0, steps);
                };
            check("softmax", 4.0, &|x, _, _| x.softmax(-1).unwrap());
            check("log_softmax", 8.0, &|x, _, _| x.log_softmax(1).unwrap());
            check("layer_norm", 8.0, &|x, w, b| {
                x.layer_norm(&[n], Some(w), Some(b), 1e-5).unwrap()
            });
            check("rms_norm", 8.0, &|x, w, _| {
                x.rms_norm(&[n], Some(w), 1e-5).unwrap().neg().unwrap()
            });
            check("softmax of a chain", 8.0, &|x, w, b| {
                x.mul(w).unwrap().add(b).unwrap().softmax(-1).unwrap()
            });
        }
        // Reductions along another axis, over two axes, and over groups of channels.
        let x = random.tensor(&[3, 8, 5, 7], DType::F32);
        let [w, b] = [(); 2].map(|()| random.tensor(&[8], DType::F32));
        let [dx, dw, db] = [&x, &w, &b].map(|t| t.to_device(device).unwrap());
        let got = counted(device, "softmax of axis 1", 1, &|| dx.softmax(1).unwrap());
        close("softmax of axis 1", &got, &x.softmax(1).unwrap(), 0, 4.0);
        let got = counted(device, "layer_norm of two axes", 1, &|| {
            dx.layer_norm(&[5, 7], None, None, 1e-5).unwrap()
        });
        close(
            "layer_norm of two axes",
            &got,
            &x.layer_norm(&[5, 7], None, None, 1e-5).unwrap(),
            0,
            8.0,
        );
        let group =
            |x: &Tensor, w: &Tensor, b: &Tensor| x.group_norm(4, Some(w), Some(b), 1e-5).unwrap();
        let got = counted(device, "group_norm", 1, &|| group(&dx, &dw, &db));
        close("group_norm", &got, &group(&x, &w, &b), 0, 8.0);
        let turned = |x: &Tensor| x.softmax(-1).unwrap().matrix_transpose().unwrap().neg().unwrap();
        let got = counted(device, "softmax, transposed", 1, &|| turned(&dx));
        close("softmax, transposed", &got, &turned(&x), 0, 4.0);
        // Infinities and NaN give the same results as on the CPU.
        let mut values = [0.5f64; 12];
        (values[1], values[5], values[6]) = (f64::NEG_INFINITY, f64::NAN, f64::INFINITY);
        let bytes: Vec<u8> =
            values.iter().flat_map(|v| Scalar::Float(*v).to_bytes(DType::F32)).collect();
        let x = Tensor::from_bytes(&bytes, DType::F32, &[4, 3], &Device::Cpu).unwrap();
        let (got, want) =
            (x.to_device(device).unwrap().softmax(-1).unwrap(), x.softmax(-1).unwrap());
        for (g, w) in list(&got).iter().zip(list(&want)) {
            assert!(
                g.is_nan() == w.is_nan() && (w.is_nan() || (g - w).abs() < 1e-6),
                "{g} for {w}"
            );
        }
        // A reduction that is also used elsewhere is computed once.
        let top = dx.max(Some(&[-1]), true).unwrap();
        let d = dx.sub(&top).unwrap();
        counted(device, "held fold", 2, &|| d.clone());
        counted(device, "held fold, again", 0, &|| top.clone());
    });
}

#[test]
fn attention_is_one_f16_launch() {
    on_both("simulated_products::attention_is_one_f16_launch", |device| {
        let mut random = Random::new("attention");
        for dtype in [DType::F32, DType::F16] {
            let (t, s, d) = (random.size(2, 70), random.size(2, 70), 8 * random.size(1, 8));
            let [q, k, v] = [t, s, s].map(|n| random.tensor(&[2, n, d], dtype));
            let [dq, dk, dv] = [&q, &k, &v].map(|x| x.to_device(device).unwrap());
            for causal in [false, true] {
                let run = |q: &Tensor, k: &Tensor, v: &Tensor| {
                    q.attention(k, v, None, causal, None).unwrap()
                };
                let got =
                    counted(device, "attention", if dtype == DType::F16 { 1 } else { 3 }, &|| {
                        run(&dq, &dk, &dv)
                    });
                // Scores and weights are rounded to the dtype.
                close("attention", &got, &run(&wide(&q), &wide(&k), &wide(&v)), s + d, 24.0);
            }
        }
    });
}

/// The bools of random bits, of which about a quarter is false.
fn random_bools(random: &mut Random, shape: &[usize]) -> Tensor {
    let bytes: Vec<u8> =
        (0..shape.iter().product()).map(|_| u8::from(random.next() & 3 != 0)).collect();
    Tensor::from_bytes(&bytes, DType::Bool, shape, &Device::Cpu).unwrap()
}

#[test]
fn masked_windowed_and_wide_attention_is_one_launch() {
    on_both("simulated_products::masked_windowed_and_wide_attention_is_one_launch", |device| {
        let mut random = Random::new("masked attention");
        let one = |t: &Tensor, i: usize| t.index(&[Index::At(i as i64)]).unwrap();
        // Windows, and masks of bools or of numbers that are shared by none, one or both axes.
        for case in 0..6 {
            let (b, t, s) = (random.size(1, 3), random.size(2, 100), random.size(2, 100));
            let d = 8 * if case % 3 == 0 { random.size(17, 32) } else { random.size(1, 16) };
            let [q, k, v] = [t, s, s].map(|n| random.tensor(&[b, n, d], DType::F16));
            let bound = |random: &mut Random| match random.next() % 3 {
                0 => None,
                _ => Some(random.size(0, 70) as u32),
            };
            let window = match case {
                0 | 1 => (None, None),
                _ => (bound(&mut random), bound(&mut random)),
            };
            let shape: &[usize] = match random.next() % 4 {
                0 => &[b, t, s],
                1 => &[t, s],
                2 => &[b, 1, s],
                _ => &[t, 1],
            };
            let mask = match case % 3 {
                0 => Some(random_bools(&mut random, shape)),
                1 => {
                    let seen = random_bools(&mut random, shape);
                    let low = Tensor::full(
                        &[],
                        Scalar::Float(f64::NEG_INFINITY),
                        DType::F16,
                        &Device::Cpu,
                    );
                    Some(seen.select(&random.tensor(shape, DType::F16), &low.unwrap()).unwrap())
                }
                _ => None,
            };
            let run = |x: [&Tensor; 3], mask: Option<&Tensor>| {
                x[0].windowed_attention(x[1], x[2], mask, window, None).unwrap()
            };
            let [dq, dk, dv] = [&q, &k, &v].map(|x| x.to_device(device).unwrap());
            let there = mask.as_ref().map(|m| m.to_device(device).unwrap());
            there.iter().for_each(|m| m.eval().unwrap());
            let what =
                format!("{:?} {window:?} mask {:?}", q.shape(), mask.as_ref().map(|_| shape));
            let got = counted(device, &what, 1, &|| run([&dq, &dk, &dv], there.as_ref()));
            let exact =
                mask.as_ref().map(|m| if m.dtype() == DType::Bool { m.clone() } else { wide(m) });
            let want = run([&wide(&q), &wide(&k), &wide(&v)], exact.as_ref());
            // Rows that see no key are NaN in both.
            let blind: Vec<bool> = list(&want).iter().map(|w| w.is_nan()).collect();
            let nan: Vec<bool> = list(&got).iter().map(|g| g.is_nan()).collect();
            assert_eq!(nan, blind, "{what}");
            let zero = |x: &Tensor| {
                let blank = Tensor::full(&[], Scalar::Float(0.0), x.dtype(), &Device::Cpu).unwrap();
                let x = x.to_device(&Device::Cpu).unwrap();
                x.ne(&x).unwrap().select(&blank, &x).unwrap()
            };
            close(&what, &zero(&got), &zero(&want), s + d, 24.0);
            // The first batch alone: the mask's view has no batch.
            if let (Some(m), true) = (&there, shape.len() == 3) {
                let got = run([&one(&dq, 0), &one(&dk, 0), &one(&dv, 0)], Some(&one(m, 0)));
                close(&what, &zero(&got), &zero(&one(&want, 0)), s + d, 24.0);
            }
        }
    });
}
