//! Creation of tensors: constant values, ranges, random numbers.

use crate::device::Device;
use crate::dtype::{DType, Kind};
use crate::error::{Error, Result};
use crate::expr::{self, V};
use crate::node::{Node, Op};
use crate::scalar::Scalar;
use crate::shape::count;
use crate::tensor::Tensor;
use std::sync::Mutex;
use std::sync::PoisonError;

/// Key and next counter of the default generator.
static RANDOM: Mutex<(u64, u64)> = Mutex::new((0, 0));

/// Seeds the default generator. One seed gives the same numbers on every device.
pub fn manual_seed(seed: u64) {
    *RANDOM.lock().unwrap_or_else(PoisonError::into_inner) = (seed, 0);
}

/// `each` random words for each element.
fn words(shape: &[usize], each: usize, device: &Device) -> Result<Tensor> {
    let wide: Vec<usize> = [&[each], shape].concat();
    let n = count("random", &wide)? as u64;
    let (key, first) = {
        let mut state = RANDOM.lock().unwrap_or_else(PoisonError::into_inner);
        let first = state.1;
        state.1 = first.wrapping_add(n.next_multiple_of(4));
        (state.0, first)
    };
    Ok(Tensor::real(Node::new(Op::Random(key, first), Vec::new(), DType::U32, wide, device)?))
}

fn row(words: &Tensor, i: i64) -> Result<Tensor> {
    words.slice_axis(0, i, 1, 1)?.squeeze(&[0])
}

/// A float from 24 random bits, in [0, 1).
fn uniform(words: &Tensor, i: i64, dtype: DType) -> Result<V> {
    let word = row(words, i)?;
    let eight = Tensor::full(&[], Scalar::Int(8), DType::U32, word.device())?;
    let bits = word.binary(crate::element::BinOp::Shr, &eight)?;
    Ok(bits.v().to(dtype) * (1.0 / 16_777_216.0))
}

impl Tensor {
    /// Uniform random numbers in [0, 1).
    ///
    /// # Errors
    /// [`Error::DType`] unless it is a real float.
    pub fn rand(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        floats("rand", dtype)?;
        let words = words(shape, 1, device)?;
        Tensor::from_v(uniform(&words, 0, DType::F32)?)?.astype(dtype)
    }

    /// Normal random numbers with mean 0 and deviation 1 (Box–Muller transform).
    ///
    /// # Errors
    /// [`Error::DType`] unless it is a real float.
    pub fn randn(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        floats("randn", dtype)?;
        let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let words = words(shape, 2, device)?;
        // 1 - u is never 0, so its logarithm is finite.
        let u = -uniform(&words, 0, work)? + 1.0;
        let angle = uniform(&words, 1, work)? * std::f64::consts::TAU;
        Tensor::from_v((u.log() * -2.0).sqrt() * angle.cos())?.astype(dtype)
    }

    /// Uniform random integers in `low..high`.
    ///
    /// # Errors
    /// [`Error::Value`] for an empty range or one beyond the dtype.
    pub fn randint(
        low: i64,
        high: i64,
        shape: &[usize],
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let (least, most) = dtype.range();
        let span = i128::from(high) - i128::from(low);
        if !dtype.is_int() || span <= 0 || i128::from(low) < least || i128::from(high) - 1 > most {
            return Err(Error::value(
                "randint",
                format!("{low} to {high} is not a range of {dtype}"),
            ));
        }
        if span > i128::from(u32::MAX) {
            return Err(Error::value("randint", "the range has more than 2^32 - 1 integers"));
        }
        // 64 random bits modulo the range: the bias is below 2^-32.
        let words = words(shape, 2, device)?;
        let wide = |i| row(&words, i)?.astype(DType::U64);
        let constant = |v: i128| Tensor::full(&[], Scalar::Int(v), DType::U64, device);
        let all = wide(0)?
            .binary(crate::element::BinOp::Shl, &constant(32)?)?
            .add(&wide(1)?)?
            .binary(crate::element::BinOp::Rem, &constant(span)?)?
            .astype(DType::I64)?;
        let low = Tensor::full(&[], Scalar::Int(i128::from(low)), DType::I64, device)?;
        all.add(&low)?.astype(dtype)
    }

    /// `start`, `start + step`, … before `stop`.
    ///
    /// # Errors
    /// [`Error::Value`] for a step of 0 or infinite numbers.
    pub fn arange(
        start: Scalar,
        stop: Scalar,
        step: Scalar,
        dtype: Option<DType>,
        device: &Device,
    ) -> Result<Tensor> {
        let whole = [start, stop, step].iter().all(|s| matches!(s, Scalar::Int(_)));
        let dtype = dtype.unwrap_or(if whole { DType::I64 } else { DType::F32 });
        if dtype.is_complex() || dtype == DType::Bool {
            return Err(Error::takes("arange", "real numbers", dtype));
        }
        let n = if whole {
            let (a, b, s) = (start.int(), stop.int(), step.int());
            if s == 0 {
                return Err(Error::value("arange", "the step is 0"));
            }
            let span = if s > 0 { b - a } else { a - b };
            if span <= 0 { 0 } else { ((span - 1) / s.abs() + 1) as usize }
        } else {
            let n = ((stop.float() - start.float()) / step.float()).ceil();
            if step.float() == 0.0 || !n.is_finite() || n > 1e15 {
                return Err(Error::value("arange", "the step is 0, or the range is endless"));
            }
            n.max(0.0) as usize
        };
        count("arange", &[n])?;
        let places = Tensor::iota(&[n], device)?;
        if whole && dtype.is_int() {
            let constant = |v| Tensor::full(&[], v, DType::I64, device);
            return places.mul(&constant(step)?)?.add(&constant(start)?)?.astype(dtype);
        }
        let places = expr::cast(&places.re, DType::F64)?;
        let out = V::of(&places) * step.float() + start.float();
        Tensor::from_v(out)?.astype(dtype)
    }

    /// `n` evenly spaced values from `start` to `stop`.
    ///
    /// # Errors
    /// [`Error::DType`] unless it is a float.
    pub fn linspace(
        start: Scalar,
        stop: Scalar,
        n: usize,
        dtype: DType,
        endpoint: bool,
        device: &Device,
    ) -> Result<Tensor> {
        if !dtype.is_float() {
            return Err(Error::takes("linspace", "a float dtype", dtype));
        }
        count("linspace", &[n])?;
        let places = expr::cast(&Tensor::iota(&[n], device)?.re, DType::F64)?;
        let steps = if endpoint { n.saturating_sub(1) } else { n };
        let part = |a: f64, b: f64| {
            let step = if steps == 0 { 0.0 } else { (b - a) / steps as f64 };
            let x = V::of(&places);
            let line = x.clone() * step + a;
            if !endpoint || n < 2 {
                return line;
            }
            // Sets the last value exactly.
            let last = x.clone().eq(x.like((n - 1) as f64));
            let end = line.like(b);
            last.select(end, line)
        };
        let ((a, ai), (b, bi)) = (start.parts(), stop.parts());
        let re = part(a.float(), b.float());
        if dtype.is_complex() {
            let im = part(ai.float(), bi.float());
            return Tensor::pair(re.to(dtype.part()), im.to(dtype.part()));
        }
        Tensor::from_v(re.to(dtype))
    }

    /// Ones on the `k`-th diagonal of a matrix.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn eye(
        rows: usize,
        columns: usize,
        k: i64,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        count("eye", &[rows, columns])?;
        let on = diagonal(rows, columns, device)?;
        let k = Tensor::full(&[], Scalar::Int(i128::from(k)), DType::I64, device)?;
        on.eq(&k)?.astype(dtype)
    }

    /// The last two axes with zeros above (`upper`: below) the `k`-th diagonal.
    ///
    /// # Errors
    /// [`Error::Shape`] below two axes.
    pub fn triangle(&self, upper: bool, k: i64) -> Result<Tensor> {
        let op = if upper { "triu" } else { "tril" };
        let [.., rows, columns] = *self.shape() else {
            return Err(Error::shape(op, "needs at least two axes"));
        };
        let on = diagonal(rows, columns, self.device())?;
        let k = Tensor::full(&[], Scalar::Int(i128::from(k)), DType::I64, self.device())?;
        let keep = if upper { on.ge(&k)? } else { on.le(&k)? };
        let zero = Tensor::full(&[], Scalar::Int(0), self.dtype(), self.device())?;
        keep.select(self, &zero)
    }
}

/// Column minus row for each element of a matrix.
fn diagonal(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let row = Tensor::iota(&[rows], device)?.shaped(&[rows, 1])?;
    Tensor::iota(&[columns], device)?.sub(&row)
}

fn floats(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.kind() == Kind::Float {
        return Ok(());
    }
    Err(Error::takes(op, "a real float dtype", dtype))
}
