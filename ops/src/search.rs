//! Sorting, searching and sets. Results whose shape depends on values are computed immediately on
//! the host.

use crate::device::Device;
use crate::dtype::DType;
use crate::element::BinOp;
use crate::error::{Error, Result};
use crate::node::{Node, Op};
use crate::promotion::promote;
use crate::shape::{axis, show, strides};
use crate::tensor::Tensor;

/// The result of [`Tensor::unique`]: the values, the index of each value's first element, the
/// number of the value for each element, and the number of elements with each value.
pub struct Unique {
    /// Sorted; each NaN is a distinct value.
    pub values: Tensor,
    /// int64.
    pub indices: Tensor,
    /// int64, in the input's shape.
    pub inverse: Tensor,
    /// int64.
    pub counts: Tensor,
}

fn integers(values: &[i64], shape: &[usize], device: &Device) -> Result<Tensor> {
    Tensor::from_bytes(bytemuck::cast_slice(values), DType::I64, shape, device)
}

impl Tensor {
    /// Indices that sort an axis: stable in both directions, NaN last (first if descending).
    ///
    /// # Errors
    /// [`Error::Shape`]; [`Error::DType`] for complex ones.
    pub fn argsort(&self, at: i64, descending: bool) -> Result<Tensor> {
        if self.im.is_some() {
            return Err(Error::takes("argsort", "real numbers", self.dtype()));
        }
        let at = axis("argsort", at, self.rank())?;
        let x = self.move_axes(&[at as i64], &[-1])?;
        let order = Node::new(
            Op::ArgSort { descending },
            vec![x.re.clone()],
            DType::I64,
            x.shape().to_vec(),
            self.device(),
        )?;
        Tensor::real(order).move_axes(&[-1], &[at as i64])
    }

    /// The elements sorted along an axis.
    ///
    /// # Errors
    /// As [`Tensor::argsort`].
    pub fn sort(&self, at: i64, descending: bool) -> Result<Tensor> {
        self.take_along_axis(&self.argsort(at, descending)?, at)
    }

    /// The indices, one tensor for each axis, of the nonzero elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor without axes.
    pub fn nonzero(&self) -> Result<Vec<Tensor>> {
        if self.rank() == 0 {
            return Err(Error::shape("nonzero", "a tensor without axes has no indices"));
        }
        if let (Device::Gpu(gpu), true) = (self.device(), self.numel() > 0) {
            return self.nonzero_on(gpu);
        }
        let mask = self.truth()?.to_bytes()?;
        let steps = strides(self.shape());
        let places: Vec<i64> =
            mask.iter().enumerate().filter(|(_, v)| **v != 0).map(|(i, _)| i as i64).collect();
        steps
            .iter()
            .zip(self.shape())
            .map(|(s, &n)| {
                let index: Vec<i64> = places.iter().map(|p| p / s % n.max(1) as i64).collect();
                integers(&index, &[index.len()], self.device())
            })
            .collect()
    }

    /// [`Tensor::nonzero`] on a GPU. Only the number of elements is copied to the host.
    fn nonzero_on(&self, gpu: &std::sync::Arc<crate::gpu::Gpu>) -> Result<Vec<Tensor>> {
        let n = self.numel();
        let flat = self.truth()?.shaped(&[n])?;
        let mask = crate::eval::packed(&flat.re)?;
        let ends = flat.astype(DType::I64)?.cumulative(false, 0, None, false)?;
        let (mask, ends) = (crate::eval::value(&mask)?, crate::eval::value(&ends.re)?);
        let (places, found) = gpu.nonzero(&mask, &ends, n)?;
        let places = Tensor::real(Node::leaf(DType::I64, vec![found], places));
        let number = |v: i64| {
            let v = crate::scalar::Scalar::Int(i128::from(v));
            Tensor::full(&[], v, DType::I64, self.device())
        };
        let axes = strides(self.shape()).into_iter().zip(self.shape());
        axes.map(|(step, size)| {
            let row = places.binary(BinOp::FloorDiv, &number(step)?)?;
            row.binary(BinOp::Rem, &number(*size as i64)?)
        })
        .collect()
    }

    /// The position of each value in this sorted list, before (`right`: after) equal elements.
    /// int64.
    ///
    /// # Errors
    /// [`Error::Shape`] unless the list has one axis; [`Error::DType`].
    pub fn searchsorted(
        &self,
        values: &Tensor,
        right: bool,
        sorter: Option<&Tensor>,
    ) -> Result<Tensor> {
        const OP: &str = "searchsorted";
        if self.rank() != 1 {
            return Err(Error::shape(
                OP,
                format!("the sorted list must have one axis, got {}", show(self.shape())),
            ));
        }
        Device::same(OP, self.device(), values.device())?;
        let dtype = promote(OP, self.dtype(), values.dtype())?;
        if dtype.is_complex() {
            return Err(Error::takes(OP, "real numbers", dtype));
        }
        let list = match sorter {
            Some(order) => self.take(order, 0)?,
            None => self.clone(),
        };
        // Counts the smaller elements by bisection, with keys in the elements' order.
        let (list, wanted) =
            (list.astype(dtype)?.to_scalars()?, values.astype(dtype)?.to_scalars()?);
        let key = |s: &crate::scalar::Scalar| match s {
            crate::scalar::Scalar::Float(v) if v.is_nan() => (true, 0, 0.0),
            crate::scalar::Scalar::Float(v) => (false, 0, *v),
            other => (false, other.int(), 0.0),
        };
        let places: Vec<i64> = wanted
            .iter()
            .map(|v| {
                let v = key(v);
                list.partition_point(|x| {
                    let x = key(x);
                    if right { x <= v } else { x < v }
                }) as i64
            })
            .collect();
        integers(&places, values.shape(), self.device())
    }

    /// The distinct elements, sorted, with their positions.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn unique(&self) -> Result<Unique> {
        let flat = self.shaped(&[self.numel()])?;
        // Complex elements are sorted by real parts, then by imaginary parts; each sort is stable.
        let order = match &flat.im {
            None => flat.argsort(0, false)?,
            Some(im) => {
                let second = Tensor::real(im.clone()).argsort(0, false)?;
                let first = flat.real_part()?.take(&second, 0)?.argsort(0, false)?;
                second.take(&first, 0)?
            }
        };
        let sorted = flat.take(&order, 0)?;
        let n = self.numel();
        let differs = if n == 0 {
            Vec::new()
        } else {
            sorted
                .slice_axis(0, 1, 1, n - 1)?
                .ne(&sorted.slice_axis(0, 0, 1, n - 1)?)?
                .to_bytes()?
        };
        let order: Vec<i64> = order.to_scalars()?.iter().map(|v| v.int() as i64).collect();
        let (mut starts, mut indices, mut inverse) = (Vec::new(), Vec::new(), vec![0i64; n]);
        for (i, &at) in order.iter().enumerate() {
            if i == 0 || differs.get(i - 1).is_some_and(|d| *d != 0) {
                starts.push(i as i64);
                indices.push(at);
            }
            if let Some(slot) = inverse.get_mut(at as usize) {
                *slot = starts.len() as i64 - 1;
            }
        }
        let ends = starts.iter().skip(1).copied().chain([n as i64]);
        let counts: Vec<i64> = starts.iter().zip(ends).map(|(a, b)| b - a).collect();
        let device = self.device();
        let indices = integers(&indices, &[indices.len()], device)?;
        Ok(Unique {
            values: flat.take(&indices, 0)?,
            indices,
            inverse: integers(&inverse, self.shape(), device)?,
            counts: integers(&counts, &[counts.len()], device)?,
        })
    }

    /// Whether each element is in `set`.
    ///
    /// # Errors
    /// [`Error::DType`], [`Error::Devices`].
    pub fn isin(&self, set: &Tensor, invert: bool) -> Result<Tensor> {
        Device::same("isin", self.device(), set.device())?;
        let mut wide = self.shape().to_vec();
        wide.push(1);
        let set = set.shaped(&[set.numel()])?;
        let found = self.shaped(&wide)?.binary(BinOp::Eq, &set)?.any(Some(&[-1]), false)?;
        if invert { found.unary(crate::element::UnOp::Not) } else { Ok(found) }
    }

    /// Repeats each element `times` times along an axis.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Value`].
    pub fn repeat(&self, times: &[i64], at: i64) -> Result<Tensor> {
        let at = axis("repeat", at, self.rank())?;
        let n = self.shape().get(at).copied().unwrap_or(0);
        if times.iter().any(|t| *t < 0) {
            return Err(Error::value("repeat", "the number of repetitions must not be negative"));
        }
        if times.len() != n && times.len() != 1 {
            return Err(Error::shape(
                "repeat",
                format!("{} repetition counts for {n} elements", times.len()),
            ));
        }
        let many = |i: usize| times.get(if times.len() == 1 { 0 } else { i }).copied().unwrap_or(0);
        let total = (0..n).map(|i| i128::from(many(i))).sum::<i128>();
        let bytes = usize::try_from(total).unwrap_or(usize::MAX).saturating_mul(8);
        // Checks that there is memory for the indices.
        drop(crate::memory::HostMemory::words(bytes)?);
        let mut index = Vec::with_capacity(bytes / 8);
        for i in 0..n {
            index.extend(std::iter::repeat_n(i as i64, many(i) as usize));
        }
        self.take(&integers(&index, &[index.len()], self.device())?, at as i64)
    }
}
