//! Tensor operations on simulated AMD devices compared with the CPU's, for waves of 32 and of 64
//! lanes. Each test runs in a new process with the simulated HIP runtime.

use crate::common::{TEMPORARY, WORKER};
use kjit_ops::{
    BinOp, DType, Device, ElementwiseKernel, Index, KernelArg, RawKernel, ReductionKernel, Scalar,
    Tensor, UnOp, Windows,
};
use kjit_tests::simulator::{Setup, cache, engine};

/// Runs `body` with a device of waves of 32 lanes, and with one of 64.
fn on_both(test: &str, body: impl Fn(&Device)) {
    // Many small kernels, compiled with -Og and only for the simulator. ops/tests/it/compile.rs
    // compiles them to machine code with clang.
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

/// Random numbers from -`range` to `range`, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn tensor(&mut self, shape: &[usize], dtype: DType, range: f64) -> Tensor {
        let n: usize = shape.iter().product();
        let bytes: Vec<u8> = (0..n)
            .flat_map(|_| {
                let unit = self.next() as f64 / (1u64 << 31) as f64 * 2.0 - 1.0;
                let value = match dtype.is_float() {
                    true => Scalar::Float(unit * range),
                    false => Scalar::Int((unit * range) as i128),
                };
                value.to_bytes(dtype)
            })
            .collect();
        Tensor::from_bytes(&bytes, dtype, shape, &Device::Cpu).unwrap()
    }
}

/// Checks that both have the same dtype, shape and values: equal bits, or floats within `units` in
/// the last place.
fn same(what: &str, got: &Tensor, want: &Tensor, units: f64) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    let eps = match got.dtype() {
        DType::F16 => 2.0f64.powi(-10),
        DType::BF16 => 2.0f64.powi(-7),
        DType::F32 | DType::C64 => 2.0f64.powi(-23),
        _ => 2.0f64.powi(-52),
    };
    let (got, want) = (got.to_scalars().unwrap(), want.to_scalars().unwrap());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let ((gr, gi), (wr, wi)) = (g.parts(), w.parts());
        for (g, w) in [(gr, wr), (gi, wi)] {
            let close = match (g, w) {
                (Scalar::Float(g), Scalar::Float(w)) => {
                    g == w
                        || (g.is_nan() && w.is_nan())
                        || (g - w).abs() <= units * eps * w.abs().max(f64::MIN_POSITIVE)
                }
                (g, w) => g == w,
            };
            assert!(close, "{what} at {i}: got {g:?}, want {w:?}");
        }
    }
}

const SHAPES: &[&[usize]] = &[&[0], &[65], &[3, 257], &[7, 1, 13], &[2, 3, 5, 11]];

/// Stacks tensors of the same shape as rows in f64, so that one kernel computes all of them.
fn together(list: &[Tensor]) -> Tensor {
    let device = list[0].device();
    let rows =
        Tensor::arange(0.into(), (list.len() as i64).into(), 1.into(), None, device).unwrap();
    let rows = rows.reshape(&[-1, 1]).unwrap();
    let mut out = list[0].astype(DType::F64).unwrap();
    for (i, t) in list.iter().enumerate() {
        let own = Tensor::full(&[], Scalar::Int(i as i128), DType::I64, device).unwrap();
        out = rows.eq(&own).unwrap().select(&t.astype(DType::F64).unwrap(), &out).unwrap();
    }
    out
}

/// Every function of two tensors for this dtype, except `without`.
fn functions(x: &Tensor, y: &Tensor, without: &[UnOp]) -> Vec<(&'static str, Tensor)> {
    let un = UnOp::ALL.iter().filter(|op| !without.contains(op));
    let un = un.filter_map(|op| Some((op.name(), x.unary(*op).ok()?)));
    let bin = BinOp::ALL.iter().filter_map(|op| Some((op.name(), x.binary(*op, y).ok()?)));
    un.chain(bin).collect()
}

/// Compares all functions on the device with the CPU's, ten functions per kernel.
fn all_same(x: &Tensor, y: &Tensor, device: &Device, without: &[UnOp], pow: f64) {
    let (dx, dy) = (x.to_device(device).unwrap(), y.to_device(device).unwrap());
    let (want, got) = (functions(x, y, without), functions(&dx, &dy, without));
    let dtype = x.dtype();
    let eps = |of: DType| match of {
        DType::F16 => 2.0f64.powi(-10),
        DType::BF16 => 2.0f64.powi(-7),
        DType::F32 => 2.0f64.powi(-23),
        DType::F64 => 2.0f64.powi(-52),
        _ => 0.0,
    };
    for (want, got) in want.chunks(10).zip(got.chunks(10)) {
        let tensors: Vec<Tensor> = got.iter().map(|(_, t)| t.clone()).collect();
        let values = together(&tensors).to_scalars().unwrap();
        for ((name, want), got) in want.iter().zip(values.chunks(x.numel())) {
            // The result of logaddexp can be far smaller than its operands.
            let units = match *name {
                "pow" => pow,
                "logaddexp" => 64.0,
                _ => 4.0,
            };
            let eps = eps(want.dtype());
            let want = want.astype(DType::F64).unwrap().to_scalars().unwrap();
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                let (g, w) = (g.float(), w.float());
                let close = g == w
                    || (g.is_nan() && w.is_nan())
                    || (g - w).abs() <= units * eps * w.abs().max(f64::MIN_POSITIVE);
                assert!(close, "{name} of {dtype} at {i}: got {g:e}, want {w:e}");
            }
        }
    }
}

#[test]
fn every_function_matches_cpu() {
    on_both("simulated_ops::every_function_matches_cpu", |device| {
        let mut random = Random(1);
        for dtype in
            [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::I64, DType::U32]
        {
            let x = random.tensor(&[67], dtype, if dtype.is_float() { 3.0 } else { 100.0 });
            let y = random.tensor(&[67], dtype, if dtype.is_float() { 3.0 } else { 6.0 });
            // The device computes pow as exp(y log x), and f64 loses ten bits of the exponent's
            // argument.
            all_same(&x, &y, device, &[], if dtype == DType::F64 { 4096.0 } else { 4.0 });
        }
    });
}

#[test]
fn special_values_match_cpu() {
    on_both("simulated_ops::special_values_match_cpu", |device| {
        let list = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -2.0,
            3.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            1e-40,
            88.7,
            -104.0,
            1e30,
        ];
        for dtype in [DType::F32, DType::F64] {
            let bytes: Vec<u8> =
                list.iter().flat_map(|v| Scalar::Float(*v).to_bytes(dtype)).collect();
            let n = list.len();
            let x = Tensor::from_bytes(&bytes, dtype, &[n], &Device::Cpu).unwrap();
            let pairs = |t: &Tensor| t.broadcast_to(&[n, n]).unwrap().reshape(&[-1]).unwrap();
            let y = pairs(&x.reshape(&[-1, 1]).unwrap());
            // Circular functions are defined for magnitudes below 2^40.
            let circular = [UnOp::Sin, UnOp::Cos, UnOp::Tan];
            all_same(&pairs(&x), &y, device, &circular, 1e5);
        }
        let x: Vec<u8> = list.iter().flat_map(|v| Scalar::Float(*v).to_bytes(DType::F64)).collect();
        let x = Tensor::from_bytes(&x, DType::F64, &[list.len()], &Device::Cpu).unwrap();
        let d = x.to_device(device).unwrap();
        let all = [
            DType::I8,
            DType::U16,
            DType::I32,
            DType::I64,
            DType::U64,
            DType::Bool,
            DType::F16,
            DType::BF16,
        ];
        let casts = |t: &Tensor| all.map(|to| t.astype(to).unwrap());
        same("astype", &together(&casts(&d)), &together(&casts(&x)), 0.0);
    });
}

#[test]
fn reductions_and_views_match_cpu() {
    on_both("simulated_ops::reductions_and_views_match_cpu", |device| {
        let mut random = Random(2);
        for shape in SHAPES {
            for dtype in [DType::F32, DType::F16, DType::I32] {
                // Other dtypes use one shape only, because each dtype needs another kernel.
                if dtype != DType::F32 && shape.len() != 2 {
                    continue;
                }
                let x = random.tensor(shape, dtype, 40.0);
                let d = x.to_device(device).unwrap();
                let views = |t: &Tensor| -> Vec<Tensor> {
                    let turned: Vec<i64> = (0..t.rank() as i64).rev().collect();
                    let step = Index::Slice(None, None, Some(-2));
                    vec![
                        t.clone(),
                        t.permute(&turned).unwrap(),
                        t.flip(None).unwrap(),
                        t.index(&[Index::Ellipsis, step]).unwrap(),
                        t.permute(&turned).unwrap().reshape(&[-1]).unwrap(),
                    ]
                };
                for (x, d) in views(&x).iter().zip(&views(&d)) {
                    let one = Tensor::full(&[], Scalar::Int(1), dtype, &Device::Cpu).unwrap();
                    let (y, e) =
                        (x.add(&one).unwrap(), d.add(&one.to_device(device).unwrap()).unwrap());
                    same("add", &e, &y, 0.0);
                    for at in [None, Some(&[0][..]), Some(&[-1][..])] {
                        same(
                            "sum",
                            &e.sum(at, false, None).unwrap(),
                            &y.sum(at, false, None).unwrap(),
                            8.0,
                        );
                        if x.numel() == 0 {
                            assert!(e.max(at, false).is_err() || at.is_some());
                            continue;
                        }
                        same("max", &d.max(at, true).unwrap(), &x.max(at, true).unwrap(), 0.0);
                        same("any", &d.any(at, true).unwrap(), &x.any(at, true).unwrap(), 0.0);
                        let one = at.and_then(|a| a.first().copied());
                        same(
                            "argmin",
                            &d.argmin(one, false).unwrap(),
                            &x.argmin(one, false).unwrap(),
                            0.0,
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn networks_match_cpu_with_counted_launches() {
    on_both("simulated_ops::networks_match_cpu_with_counted_launches", |device| {
        let mut random = Random(3);
        let count = |what: &str, most: u64, make: &dyn Fn() -> Tensor| -> Tensor {
            let before = device.launches();
            let out = make();
            out.eval().unwrap();
            let launched = device.launches() - before;
            assert!(launched <= most, "{what}: {launched} launches, {most} at most");
            out
        };
        let x = random.tensor(&[5, 65], DType::F32, 3.0);
        let w = random.tensor(&[33, 65], DType::F32, 1.0);
        let b = random.tensor(&[33], DType::F32, 1.0);
        let [dx, dw, db] = [&x, &w, &b].map(|t| t.to_device(device).unwrap());
        // One launch for the product, one for bias and activation.
        let got = count("linear, relu", 2, &|| dx.linear(&dw, Some(&db)).unwrap().relu().unwrap());
        // Sums of 65 products, some of which cancel.
        same("linear", &got, &x.linear(&w, Some(&b)).unwrap().relu().unwrap(), 4096.0);
        let chain = |t: &Tensor| t.exp().unwrap().mul(t).unwrap().tanh().unwrap();
        same("chain", &count("chain", 1, &|| chain(&dx)), &chain(&x), 4.0);
        // Three launches: maximum, sum, quotient.
        same(
            "softmax",
            &count("softmax", 3, &|| dx.softmax(-1).unwrap()),
            &x.softmax(-1).unwrap(),
            8.0,
        );
        let norm = |t: &Tensor| t.layer_norm(&[65], None, None, 1e-5).unwrap();
        same("layer_norm", &count("layer_norm", 3, &|| norm(&dx)), &norm(&x), 64.0);
        let gelu = |t: &Tensor| t.gelu(false).unwrap();
        same("gelu", &count("gelu", 1, &|| gelu(&dx)), &gelu(&x), 64.0);
        let image = random.tensor(&[2, 4, 9, 7], DType::F32, 1.0);
        let weight = random.tensor(&[6, 2, 3, 2], DType::F32, 1.0);
        let (di, dk) = (image.to_device(device).unwrap(), weight.to_device(device).unwrap());
        let windows = Windows { stride: &[2, 1], padding: &[1, 0], dilation: &[1, 2] };
        let conv = |i: &Tensor, k: &Tensor| i.conv(k, None, &windows, 2).unwrap();
        same("conv", &conv(&di, &dk), &conv(&image, &weight), 4096.0);
        let pool = |t: &Tensor| t.max_pool(&[3, 2], &windows).unwrap();
        same("max_pool", &pool(&di), &pool(&image), 0.0);
        let index =
            Tensor::from_bytes(bytemuck_i64(&[3, 0, -1, 2]), DType::I64, &[4], &Device::Cpu)
                .unwrap();
        let rows = |t: &Tensor, i: &Tensor| t.take(i, 0).unwrap();
        same("take", &rows(&dx, &index.to_device(device).unwrap()), &rows(&x, &index), 0.0);
        let joined = |t: &Tensor| Tensor::concat(&[t.clone(), t.flip(None).unwrap()], 1).unwrap();
        same("concat", &count("concat", 2, &|| joined(&dx)), &joined(&x), 0.0);
        let written = |t: &Tensor| {
            let value = Tensor::full(&[], Scalar::Int(7), DType::F32, t.device()).unwrap();
            t.with(&[Index::Slice(Some(1), None, Some(2)), Index::At(3)], &value).unwrap()
        };
        same("assignment", &written(&dx), &written(&x), 0.0);
        let z = Tensor::pair_of(&x, &x.flip(None).unwrap()).unwrap();
        let dz = z.to_device(device).unwrap();
        same(
            "complex",
            &dz.mul(&dz).unwrap().exp().unwrap(),
            &z.mul(&z).unwrap().exp().unwrap(),
            64.0,
        );
        kjit_ops::manual_seed(5);
        let here = Tensor::rand(&[77], DType::F32, &Device::Cpu).unwrap();
        kjit_ops::manual_seed(5);
        same("rand", &Tensor::rand(&[77], DType::F32, device).unwrap(), &here, 0.0);
    });
}

fn bytemuck_i64(values: &[i64]) -> &'static [u8] {
    values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>().leak()
}

#[test]
fn new_shapes_compile_nothing() {
    on_both("simulated_ops::new_shapes_compile_nothing", |device| {
        let count = || kjit_ops::device::engine().counts();
        let run = |n: usize, scale: f64| {
            let x = Tensor::full(&[n], Scalar::Float(1.5), DType::F32, &Device::Cpu).unwrap();
            let x = x.to_device(device).unwrap();
            let by = Tensor::full(&[], Scalar::Float(scale), DType::F32, device).unwrap();
            let sum = x.mul(&by).unwrap().sum(None, false, None).unwrap();
            assert_eq!(sum.item().unwrap().float(), 1.5 * scale * n as f64);
        };
        run(100, 2.0);
        let before = count();
        (101..201).for_each(|n| run(n, n as f64));
        let after = count();
        assert_eq!((before.compiled, before.cached), (after.compiled, after.cached));
    });
}

#[test]
fn raw_kernels_run_and_preserve_their_inputs() {
    on_both("simulated_ops::raw_kernels_run_and_preserve_their_inputs", |device| {
        let mut random = Random(4);
        let x = random.tensor(&[1009], DType::F32, 2.0);
        let y = random.tensor(&[1009], DType::F32, 2.0);
        let (dx, dy) = (x.to_device(device).unwrap(), y.to_device(device).unwrap());
        let text = "extern \"C\" __global__ void saxpy(const float* x, float* y, float a, int n) \
            {\n\
                    int i = blockIdx.x * 128 + threadIdx.x;\n  if (i < n) y[i] = a * x[i];\n}";
        let kernel = RawKernel::new(text, "saxpy").unwrap();
        let args = [
            KernelArg::Tensor(dx.clone()),
            KernelArg::Tensor(dy.clone()),
            KernelArg::Scalar(Scalar::Float(3.0)),
            KernelArg::Scalar(Scalar::Int(1009)),
        ];
        // SAFETY: the kernel touches 1009 elements of each argument.
        let out = unsafe { kernel.launch([8, 1, 1], [128, 1, 1], 0, &args) }.unwrap();
        let three = Tensor::full(&[], Scalar::Int(3), DType::F32, &Device::Cpu).unwrap();
        same("saxpy", &out[1], &x.mul(&three).unwrap(), 0.0);
        same("the given output", &dy, &y, 0.0);
        let squares =
            ElementwiseKernel::new("T x, T y", "T z", "z = (x - y) * (x - y)", "squares").unwrap();
        let d = x.sub(&y).unwrap();
        let got = squares.call(&[dx.clone(), dy.clone()]).unwrap();
        same("squares", &got[0], &d.mul(&d).unwrap(), 2.0);
        let norm = ReductionKernel::new("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
            .unwrap();
        let want = x.mul(&x).unwrap().sum(None, false, None).unwrap().sqrt().unwrap();
        same("norm", &norm.call(&dx, None, false).unwrap(), &want, 64.0);
        let error = squares.call(&[x.clone(), y.clone()]).unwrap_err().to_string();
        assert!(error.contains("cannot be compiled for the CPU"), "{error}");
        let wrong = RawKernel::new(&text.replace("a * x[i]", "a * q[i]"), "saxpy").unwrap();
        // SAFETY: the kernel does not compile, so nothing runs.
        let error = unsafe { wrong.launch([8, 1, 1], [128, 1, 1], 0, &args) }.unwrap_err();
        assert!(error.to_string().contains("saxpy.cu:3"), "{error}");
    });
}
