//! Reductions over axes (sums, products, extremes, means) and cumulative ones.

use crate::dtype::{DType, Kind};
use crate::element::FoldOp;
use crate::error::{Error, Result};
use crate::expr::{self, V};
use crate::node::{Node, Op};
use crate::scalar::Scalar;
use crate::shape::{axes, axis, numel, show};
use crate::tensor::Tensor;

/// The dtype for sums of integers: bool and narrow integers would overflow.
fn wide(dtype: DType) -> DType {
    match dtype.kind() {
        Kind::Bool | Kind::Signed => DType::I64,
        Kind::Unsigned => DType::U64,
        _ => dtype,
    }
}

impl Tensor {
    /// Permutes the reduced axes to the end. Returns the result's shapes without them and with size
    /// 1.
    fn last(&self, op: &'static str, at: Option<&[i64]>) -> Result<(Tensor, usize, KeptAxes)> {
        let reduced = axes(op, at, self.rank())?;
        let stay: Vec<usize> = (0..self.rank()).filter(|a| !reduced.contains(a)).collect();
        // The reduced axes keep their order, because argmax counts in it.
        let mut last: Vec<usize> = reduced.clone();
        last.sort_unstable();
        let order: Vec<i64> = stay.iter().chain(&last).map(|a| *a as i64).collect();
        let size = |a: &usize| self.shape().get(*a).copied().unwrap_or(1);
        let kept = KeptAxes {
            short: stay.iter().map(size).collect(),
            long: (0..self.rank())
                .map(|a| if reduced.contains(&a) { 1 } else { size(&a) })
                .collect(),
        };
        Ok((self.permute(&order)?, reduced.len(), kept))
    }

    /// Reduces the axes (`None`: all) with an operation that takes this dtype.
    fn folded(
        &self,
        op: FoldOp,
        at: Option<&[i64]>,
        keep: bool,
        empty: Option<Scalar>,
    ) -> Result<Tensor> {
        let (x, n, kept) = self.last(op.name(), at)?;
        let shape = if keep { &kept.long } else { &kept.short };
        let split = x.rank() - n;
        if numel(x.shape().get(split..).unwrap_or_default()) == 0 {
            let Some(value) = empty.or((numel(shape) == 0).then_some(Scalar::Int(0))) else {
                return Err(Error::value(
                    op.name(),
                    format!("{} has no elements to choose from", show(self.shape())),
                ));
            };
            return Tensor::full(shape, value, op.result(self.dtype().part()), self.device());
        }
        Tensor::from_v(x.v().fold(op, n).shape(shape))
    }

    /// Sum over axes. Integers and bools are summed in 64 bits unless `dtype` is given.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn sum(&self, at: Option<&[i64]>, keep: bool, dtype: Option<DType>) -> Result<Tensor> {
        let x = self.astype(dtype.unwrap_or(wide(self.dtype())))?;
        if x.is_bool() {
            return x.any(at, keep);
        }
        if x.im.is_some() {
            let part = |t: Tensor| t.folded(FoldOp::Sum, at, keep, Some(Scalar::Int(0)));
            return Tensor::pair(part(x.real_part()?)?.v(), part(x.imag_part()?)?.v());
        }
        x.folded(FoldOp::Sum, at, keep, Some(Scalar::Int(0)))
    }

    /// Product over axes, as [`Tensor::sum`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn prod(&self, at: Option<&[i64]>, keep: bool, dtype: Option<DType>) -> Result<Tensor> {
        let x = self.astype(dtype.unwrap_or(wide(self.dtype())))?;
        if x.is_bool() {
            return x.all(at, keep);
        }
        if x.im.is_none() {
            return x.folded(FoldOp::Prod, at, keep, Some(Scalar::Int(1)));
        }
        // Tree reduction: multiplies both halves of the axis until one element is left.
        let (y, n, kept) = x.last("prod", at)?;
        let head = kept.short.clone();
        let count = numel(y.shape().get(y.rank() - n..).unwrap_or_default());
        let mut y = y.shaped(&[&head[..], &[count]].concat())?;
        let shape = if keep { &kept.long } else { &kept.short };
        if count == 0 {
            return Tensor::full(shape, Scalar::Int(1), x.dtype(), x.device());
        }
        let at = head.len();
        loop {
            let n = y.shape().get(at).copied().unwrap_or(1);
            if n <= 1 {
                return y.shaped(shape);
            }
            let (a, b) =
                (y.slice_axis(at, 0, 1, n / 2)?, y.slice_axis(at, (n / 2) as i64, 1, n / 2)?);
            let half = a.mul(&b)?;
            y = match n % 2 {
                0 => half,
                _ => Tensor::concat(&[half, y.slice_axis(at, n as i64 - 1, 1, 1)?], at as i64)?,
            };
        }
    }

    fn extreme(&self, op: FoldOp, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        if self.im.is_some() {
            return Err(Error::takes(op.name(), "real numbers", self.dtype()));
        }
        self.folded(op, at, keep, None)
    }

    /// The greatest element over axes; NaN if any is NaN.
    ///
    /// # Errors
    /// [`Error::Value`] without elements; [`Error::DType`] for complex ones.
    pub fn max(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        self.extreme(FoldOp::Max, at, keep)
    }

    /// The least element over axes; NaN if any is NaN.
    ///
    /// # Errors
    /// As [`Tensor::max`].
    pub fn min(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        self.extreme(FoldOp::Min, at, keep)
    }

    /// Index of the first greatest element of an axis, or of all elements in row-major order; the
    /// first NaN if there is one. int64.
    ///
    /// # Errors
    /// As [`Tensor::max`].
    pub fn argmax(&self, at: Option<i64>, keep: bool) -> Result<Tensor> {
        self.extreme(FoldOp::ArgMax, at.as_ref().map(std::slice::from_ref), keep)
    }

    /// Index of the first least element; see [`Tensor::argmax`].
    ///
    /// # Errors
    /// As [`Tensor::max`].
    pub fn argmin(&self, at: Option<i64>, keep: bool) -> Result<Tensor> {
        self.extreme(FoldOp::ArgMin, at.as_ref().map(std::slice::from_ref), keep)
    }

    /// Whether any element is nonzero.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn any(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        self.truth()?.folded(FoldOp::Max, at, keep, Some(Scalar::Bool(false)))
    }

    /// Whether every element is nonzero.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn all(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        self.truth()?.folded(FoldOp::Min, at, keep, Some(Scalar::Bool(true)))
    }

    /// Number of nonzero elements. int64.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn count_nonzero(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        self.truth()?.sum(at, keep, Some(DType::I64))
    }

    /// Number of elements that are reduced to one.
    fn joined(&self, op: &'static str, at: Option<&[i64]>) -> Result<f64> {
        let reduced = axes(op, at, self.rank())?;
        Ok(reduced.iter().filter_map(|a| self.shape().get(*a)).product::<usize>() as f64)
    }

    /// Mean over axes; NaN without elements. Integers are averaged in f32.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn mean(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        let x = if self.dtype().is_float() { self.clone() } else { self.astype(DType::F32)? };
        let n = x.joined("mean", at)?;
        // A sum of many f16 values overflows although their mean does not.
        let narrow = matches!(x.dtype(), DType::F16 | DType::BF16);
        let sum = x.sum(at, keep, narrow.then_some(DType::F32))?;
        let mean = sum.parts(|node| (V::of(node) / V::of(node).like(n)).0)?;
        mean.astype(x.dtype())
    }

    /// Variance: the squared distances from the mean, divided by n - `correction`.
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::DType`] for complex ones.
    pub fn var(&self, at: Option<&[i64]>, correction: f64, keep: bool) -> Result<Tensor> {
        let x = if self.dtype().is_float() { self.clone() } else { self.astype(DType::F32)? };
        if x.im.is_some() {
            return Err(Error::takes("var", "real numbers", x.dtype()));
        }
        let n = x.joined("var", at)?;
        let narrow = matches!(x.dtype(), DType::F16 | DType::BF16);
        let y = if narrow { x.astype(DType::F32)? } else { x.clone() };
        let mean = y.mean(at, true)?;
        let d = y.sub(&mean)?;
        let sum = d.mul(&d)?.sum(at, keep, None)?;
        let left = (n - correction).max(0.0);
        Tensor::from_v(sum.v() / sum.v().like(left))?.astype(x.dtype())
    }

    /// Square root of [`Tensor::var`].
    ///
    /// # Errors
    /// As [`Tensor::var`].
    pub fn std(&self, at: Option<&[i64]>, correction: f64, keep: bool) -> Result<Tensor> {
        self.var(at, correction, keep)?.sqrt()
    }

    /// Cumulative sum (or product) along an axis; `initial` puts the neutral element in front.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn cumulative(
        &self,
        product: bool,
        at: i64,
        dtype: Option<DType>,
        initial: bool,
    ) -> Result<Tensor> {
        let (name, op) = match product {
            true => ("cumulative_prod", FoldOp::Prod),
            false => ("cumulative_sum", FoldOp::Sum),
        };
        let at = axis(name, at, self.rank())?;
        let x = self.astype(dtype.unwrap_or(wide(self.dtype())))?;
        if x.is_bool() {
            return Err(Error::takes(name, "numbers", x.dtype()));
        }
        let run = match product && x.im.is_some() {
            true => x.complex_products(at)?,
            false => {
                let moved = x.move_axes(&[at as i64], &[-1])?;
                let run = moved.parts(|node| {
                    Node::new(
                        Op::Scan(op),
                        vec![node.clone()],
                        node.dtype,
                        node.shape.clone(),
                        &node.device,
                    )
                })?;
                run.move_axes(&[-1], &[at as i64])?
            }
        };
        if !initial {
            return Ok(run);
        }
        let mut shape = x.shape().to_vec();
        if let Some(n) = shape.get_mut(at) {
            *n = 1;
        }
        let first = Tensor::full(&shape, Scalar::Int(i128::from(product)), x.dtype(), x.device())?;
        Tensor::concat(&[first, run], at as i64)
    }

    /// The product of all elements so far along an axis, in log2(n) rounds: each multiplies the
    /// products of twice as many elements.
    fn complex_products(&self, at: usize) -> Result<Tensor> {
        let n = self.shape().get(at).copied().unwrap_or(0);
        let (mut run, mut step) = (self.clone(), 1);
        while step < n {
            let first = run.slice_axis(at, 0, 1, step)?;
            let early = run.slice_axis(at, 0, 1, n - step)?;
            let late = run.slice_axis(at, step as i64, 1, n - step)?;
            run = Tensor::concat(&[first, early.mul(&late)?], at as i64)?;
            step *= 2;
        }
        Ok(run)
    }

    /// Differences of neighbours along an axis, applied `times` times.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn diff(&self, at: i64, times: usize) -> Result<Tensor> {
        let at = axis("diff", at, self.rank())?;
        let mut x = self.clone();
        for _ in 0..times {
            let n = x.shape().get(at).copied().unwrap_or(0);
            let less = n.saturating_sub(1);
            let (a, b) = (x.slice_axis(at, 1, 1, less)?, x.slice_axis(at, 0, 1, less)?);
            x = if x.is_bool() { a.ne(&b)? } else { a.sub(&b)? };
        }
        Ok(x)
    }

    /// log(sum(exp(x))) over axes, without overflow.
    ///
    /// # Errors
    /// [`Error::Value`] without elements.
    pub fn logsumexp(&self, at: Option<&[i64]>, keep: bool) -> Result<Tensor> {
        let top = self.max(at, true)?;
        // An infinite maximum is not subtracted, because inf - inf is NaN.
        let zero = top.v().like(0.0);
        let top = Tensor::from_v(top.v().is_finite().select(top.v(), zero))?;
        let sum = self.sub(&top)?.exp()?.sum(at, true, None)?.log()?.add(&top)?;
        if keep {
            return Ok(sum);
        }
        let reduced: Vec<i64> =
            axes("logsumexp", at, self.rank())?.into_iter().map(|a| a as i64).collect();
        sum.squeeze(&reduced)
    }
}

struct KeptAxes {
    short: Vec<usize>,
    long: Vec<usize>,
}

impl Tensor {
    /// Row-major indices of a shape, int64.
    pub(crate) fn iota(shape: &[usize], device: &crate::device::Device) -> Result<Tensor> {
        Ok(Tensor::real(expr::iota(shape, device)?))
    }

    /// Permutes the reduced axes to the end. Returns their number and the result's shapes without
    /// them and with size 1.
    pub(crate) fn folding(
        &self,
        op: &'static str,
        at: Option<&[i64]>,
    ) -> Result<(Tensor, usize, Vec<usize>, Vec<usize>)> {
        let (x, n, kept) = self.last(op, at)?;
        Ok((x, n, kept.short, kept.long))
    }
}
