//! Element-wise operations: values, special values, integers at their limits, grouping.

use crate::it::{Random, close, eps, floats, list, tensor};
use kjit_ops::{BinOp, DType, Device, Error, Kind, Scalar, Tensor, UnOp, promote};

type One = fn(f64) -> f64;

const FUNCTIONS: &[(UnOp, One, f64)] = &[
    (UnOp::Exp, f64::exp, 9.0),
    (UnOp::Expm1, f64::exp_m1, 2.0),
    (UnOp::Log, f64::ln, 50.0),
    (UnOp::Log1p, f64::ln_1p, 0.9),
    (UnOp::Log2, f64::log2, 50.0),
    (UnOp::Sin, f64::sin, 9.0),
    (UnOp::Cos, f64::cos, 9.0),
    (UnOp::Tan, f64::tan, 1.2),
    (UnOp::Asin, f64::asin, 1.0),
    (UnOp::Acos, f64::acos, 1.0),
    (UnOp::Atan, f64::atan, 9.0),
    (UnOp::Sinh, f64::sinh, 5.0),
    (UnOp::Cosh, f64::cosh, 5.0),
    (UnOp::Tanh, f64::tanh, 3.0),
    (UnOp::Asinh, f64::asinh, 9.0),
    (UnOp::Atanh, f64::atanh, 0.9),
    (UnOp::Sqrt, f64::sqrt, 50.0),
    (UnOp::Floor, f64::floor, 9.0),
    (UnOp::Round, f64::round_ties_even, 9.0),
];

#[test]
fn functions_are_accurate_for_every_float_type() {
    let mut random = Random(1);
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for (op, oracle, range) in FUNCTIONS {
            let x = random.tensor(&[1031], dtype, *range);
            let want: Vec<f64> = list(&x).into_iter().map(oracle).collect();
            let what = format!("{} of {dtype}", op.name());
            close(&what, &list(&x.unary(*op).unwrap()), &want, 4.0 * eps(dtype));
        }
    }
}

#[test]
fn integers_wrap_and_divide_by_array_api() {
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U32, DType::U64]
    {
        let (low, high) = dtype.range();
        let values: Vec<i128> = [low, low + 1, -7, -1, 0, 1, 2, 7, high - 1, high]
            .into_iter()
            .filter(|v| *v >= low)
            .collect();
        let n = values.len();
        let scalars: Vec<_> = values.iter().map(|v| Scalar::Int(*v)).collect();
        let x = tensor(&scalars, dtype, &[n, 1]);
        let y = tensor(&scalars, dtype, &[n]);
        let span = high - low + 1;
        let wrap = |v: i128| (v - low).rem_euclid(span) + low;
        let floor = |a: i128, b: i128| {
            if b == 0 {
                0
            } else {
                wrap(a.div_euclid(b) - i128::from(b < 0 && a.rem_euclid(b) != 0))
            }
        };
        let oracle = |op: BinOp, a: i128, b: i128| match op {
            BinOp::Add => wrap(a + b),
            BinOp::Sub => wrap(a - b),
            BinOp::Mul => wrap(a.wrapping_mul(b)),
            BinOp::FloorDiv => floor(a, b),
            BinOp::Rem if b == 0 => 0,
            BinOp::Rem => {
                a - b * a.div_euclid(b) - if b < 0 && a.rem_euclid(b) != 0 { -b } else { 0 }
            }
            BinOp::Max => a.max(b),
            BinOp::And => a & b,
            _ => i128::from(a < b),
        };
        for op in [
            BinOp::Add,
            BinOp::Sub,
            BinOp::Mul,
            BinOp::FloorDiv,
            BinOp::Rem,
            BinOp::Max,
            BinOp::And,
            BinOp::Lt,
        ] {
            let got = x.binary(op, &y).unwrap().to_scalars().unwrap();
            let pairs = values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b)));
            for ((a, b), got) in pairs.zip(got) {
                assert_eq!(got.int(), oracle(op, a, b), "{} of {dtype}: {a}, {b}", op.name());
            }
        }
    }
}

#[test]
fn float_special_values_follow_ieee_754() {
    let x = floats(&[f64::NAN, f64::INFINITY, -0.0, 2.5, -2.5], DType::F32);
    let one = floats(&[1.0], DType::F32);
    close("max", &list(&x.maximum(&one).unwrap()), &[f64::NAN, f64::INFINITY, 1.0, 2.5, 1.0], 0.0);
    let zero = floats(&[0.0], DType::F32);
    close("div", &list(&one.div(&zero).unwrap()), &[f64::INFINITY], 0.0);
    close("rem", &list(&x.binary(BinOp::Rem, &one).unwrap())[3..], &[0.5, 0.5], 0.0);
    assert!(list(&zero.neg().unwrap())[0].is_sign_negative());
    let next = list(&one.binary(BinOp::NextAfter, &x).unwrap());
    assert!(next[0].is_nan());
    assert_eq!(next[1], f64::from(1.0f32.next_up()));
    let to = x.astype(DType::I8).unwrap();
    assert_eq!(
        to.to_scalars().unwrap().iter().map(|v| v.int()).collect::<Vec<_>>(),
        [0, 127, 0, 2, -2]
    );
}

#[test]
fn long_fused_chain_is_bit_identical_to_single_steps() {
    // 300 operations: several groups, reused registers, and a graph that is deeper than the limit.
    let mut random = Random(2);
    for dtype in [DType::F32, DType::F16, DType::I32] {
        let x = random.tensor(&[3, 701], dtype, 3.0);
        let (mut lazy, mut eager) = (x.clone(), x.clone());
        for k in 0..100 {
            let by = Tensor::full(&[], Scalar::Int(k % 3 + 1), dtype, &Device::Cpu).unwrap();
            lazy = lazy.mul(&by).unwrap().sub(&x).unwrap().minimum(&by).unwrap();
            eager = eager.mul(&by).unwrap();
            eager.eval().unwrap();
            eager = eager.sub(&x).unwrap();
            eager.eval().unwrap();
            eager = eager.minimum(&by).unwrap();
            eager.eval().unwrap();
        }
        assert_eq!(lazy.to_bytes().unwrap(), eager.to_bytes().unwrap(), "{dtype}");
    }
}

#[test]
fn mismatched_operands_are_both_named() {
    let f = |shape: &[usize], d| Tensor::full(shape, Scalar::Int(1), d, &Device::Cpu).unwrap();
    let said = |e: Error| e.to_string();
    let e = said(f(&[2, 3], DType::F32).add(&f(&[4], DType::F32)).unwrap_err());
    assert!(e.contains("(2, 3)") && e.contains("(4,)"), "{e}");
    let e = said(f(&[2], DType::U64).add(&f(&[2], DType::I8)).unwrap_err());
    assert!(e.contains("uint64") && e.contains("int8"), "{e}");
    let e = said(f(&[2], DType::F32).unary(UnOp::Not).unwrap_err());
    assert!(e.contains("bitwise_invert: takes integers and bools, got float32"), "{e}");
    assert!(Tensor::full(&[1 << 40, 1 << 40], Scalar::Int(0), DType::F32, &Device::Cpu).is_err());
    assert_eq!(promote("t", DType::Bool, DType::F16).unwrap().kind(), Kind::Float);
}
