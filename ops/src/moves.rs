//! Moving elements: shapes, orders, concatenation. All operations except concat and repeat are
//! views.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::expr;
use crate::node::{Node, Op, Region};
use crate::promotion::promote;
use crate::scalar::Scalar;
use crate::shape::{axes, axis, count, resolve, show};
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// A view with a different shape.
    pub(crate) fn viewed(&self, view: &View, shape: &[usize]) -> Result<Tensor> {
        self.parts(|node| expr::view(node, view.clone(), shape.to_vec()))
    }

    /// The elements with a different shape of equal size. One size may be -1.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn reshape(&self, shape: &[i64]) -> Result<Tensor> {
        let shape = resolve("reshape", self.shape(), shape)?;
        self.parts(|node| expr::reshape(node, shape.clone()))
    }

    pub(crate) fn shaped(&self, shape: &[usize]) -> Result<Tensor> {
        self.parts(|node| expr::reshape(node, shape.to_vec()))
    }

    /// Permutes the axes.
    ///
    /// # Errors
    /// [`Error::Shape`] unless each axis occurs once.
    pub fn permute(&self, order: &[i64]) -> Result<Tensor> {
        let order = axes("permute_dims", Some(order), self.rank())?;
        if order.len() != self.rank() {
            return Err(Error::shape(
                "permute_dims",
                format!("{} axes do not match {}", order.len(), show(self.shape())),
            ));
        }
        let from: Vec<_> = (0..self.rank()).map(|a| order.iter().position(|o| *o == a)).collect();
        let shape: Vec<usize> =
            order.iter().filter_map(|a| self.shape().get(*a).copied()).collect();
        self.viewed(&View::axes(self.rank(), &from), &shape)
    }

    /// Two axes swapped.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn swap(&self, a: i64, b: i64) -> Result<Tensor> {
        let (a, b) = (axis("transpose", a, self.rank())?, axis("transpose", b, self.rank())?);
        let mut order: Vec<i64> = (0..self.rank() as i64).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// The last two axes swapped.
    ///
    /// # Errors
    /// [`Error::Shape`] below two axes.
    pub fn matrix_transpose(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            return Err(Error::shape(
                "matrix_transpose",
                format!("{} has fewer than two axes", show(self.shape())),
            ));
        }
        self.swap(-2, -1)
    }

    /// Axes from `from` moved to `to`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn move_axes(&self, from: &[i64], to: &[i64]) -> Result<Tensor> {
        let (from, to) =
            (axes("moveaxis", Some(from), self.rank())?, axes("moveaxis", Some(to), self.rank())?);
        if from.len() != to.len() {
            return Err(Error::shape(
                "moveaxis",
                format!("{} source axes, but {} destination axes", from.len(), to.len()),
            ));
        }
        let mut rest = (0..self.rank()).filter(|a| !from.contains(a));
        let order: Vec<i64> = (0..self.rank())
            .filter_map(|at| match to.iter().position(|t| *t == at) {
                Some(i) => from.get(i).copied(),
                None => rest.next(),
            })
            .map(|a| a as i64)
            .collect();
        self.permute(&order)
    }

    /// Broadcasts to `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        count("broadcast_to", shape)?;
        let common = crate::shape::broadcast("broadcast_to", self.shape(), shape)?;
        if common != shape {
            return Err(Error::shape(
                "broadcast_to",
                format!("{} cannot be broadcast to {}", show(self.shape()), show(shape)),
            ));
        }
        self.parts(|node| expr::expand(node, shape))
    }

    /// Adds axes of size 1 at these positions of the result.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn expand_dims(&self, at: &[i64]) -> Result<Tensor> {
        let rank = self.rank() + at.len();
        let new = axes("expand_dims", Some(at), rank)?;
        let mut rest = self.shape().iter();
        let shape: Vec<usize> = (0..rank)
            .map(|i| if new.contains(&i) { 1 } else { rest.next().copied().unwrap_or(1) })
            .collect();
        self.shaped(&shape)
    }

    /// Removes these axes of size 1.
    ///
    /// # Errors
    /// [`Error::Shape`] if one has a different size.
    pub fn squeeze(&self, at: &[i64]) -> Result<Tensor> {
        let removed = axes("squeeze", Some(at), self.rank())?;
        let mut shape = Vec::new();
        for (i, &n) in self.shape().iter().enumerate() {
            if !removed.contains(&i) {
                shape.push(n);
            } else if n != 1 {
                return Err(Error::shape(
                    "squeeze",
                    format!("axis {i} of {} has size {n}, not 1", show(self.shape())),
                ));
            }
        }
        self.shaped(&shape)
    }

    /// Reverses these axes, or all.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn flip(&self, at: Option<&[i64]>) -> Result<Tensor> {
        let turned = axes("flip", at, self.rank())?;
        let mut view = View::identity(self.rank());
        for a in turned {
            let n = self.shape().get(a).copied().unwrap_or(1) as i64;
            if let (Some(o), Some(c)) =
                (view.offset.get_mut(a), view.coef.get_mut(a).and_then(|r| r.get_mut(a)))
            {
                (*o, *c) = (n - 1, -1);
            }
        }
        self.viewed(&view, self.shape())
    }

    /// `count` elements of one axis from `start` on, with step `step`.
    pub(crate) fn slice_axis(
        &self,
        at: usize,
        start: i64,
        step: i64,
        count: usize,
    ) -> Result<Tensor> {
        let mut view = View::identity(self.rank());
        if let (Some(o), Some(c)) =
            (view.offset.get_mut(at), view.coef.get_mut(at).and_then(|r| r.get_mut(at)))
        {
            (*o, *c) = (start, step);
        }
        let mut shape = self.shape().to_vec();
        if let Some(n) = shape.get_mut(at) {
            *n = count;
        }
        self.viewed(&view, &shape)
    }

    /// Concatenates tensors along an axis, promoted to one dtype.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match;
    /// [`Error::Value`] without tensors.
    pub fn concat(tensors: &[Tensor], at: i64) -> Result<Tensor> {
        let Some((first, others)) = tensors.split_first() else {
            return Err(Error::value("concat", "needs at least one tensor"));
        };
        let rank = first.rank();
        let at = axis("concat", at, rank)?;
        let mut dtype = first.dtype();
        let mut shape = first.shape().to_vec();
        for other in others {
            Device::same("concat", first.device(), other.device())?;
            dtype = promote("concat", dtype, other.dtype())?;
            let fits = other.rank() == rank
                && other
                    .shape()
                    .iter()
                    .zip(first.shape())
                    .enumerate()
                    .all(|(i, (a, b))| i == at || a == b);
            if !fits {
                return Err(Error::shape(
                    "concat",
                    format!(
                        "{} and {} differ in an axis other than {at}",
                        show(first.shape()),
                        show(other.shape())
                    ),
                ));
            }
            if let (Some(n), Some(m)) = (shape.get_mut(at), other.shape().get(at)) {
                *n += m;
            }
        }
        let parts: Vec<Tensor> = tensors.iter().map(|t| t.astype(dtype)).collect::<Result<_>>()?;
        if let [one] = parts.as_slice() {
            return Ok(one.clone());
        }
        let mut regions = Vec::new();
        let mut place = 0;
        for part in &parts {
            let mut start = vec![0; rank];
            if let (Some(s), Some(n)) = (start.get_mut(at), part.shape().get(at)) {
                *s = place;
                place += *n as i64;
            }
            regions.push(Region { start, step: vec![1; rank] });
        }
        Tensor::full(&shape, Scalar::Int(0), dtype, first.device())?.assembled(&regions, &parts)
    }

    /// A copy with each input written to its region, cast to this dtype.
    pub(crate) fn assembled(&self, regions: &[Region], parts: &[Tensor]) -> Result<Tensor> {
        let build = |imaginary: bool| {
            let node = |t: &Tensor| match (&t.im, imaginary) {
                (Some(im), true) => im.clone(),
                _ => t.re.clone(),
            };
            let base = node(self);
            let (dtype, shape, device) = (base.dtype, base.shape.clone(), base.device.clone());
            let inputs = std::iter::once(base).chain(parts.iter().map(node)).collect();
            Node::new(Op::Assemble(regions.to_vec()), inputs, dtype, shape, &device)
        };
        let im = self.im.as_ref().map(|_| build(true)).transpose()?;
        Ok(Tensor { re: build(false)?, im })
    }

    /// Concatenates tensors of one shape along a new axis.
    ///
    /// # Errors
    /// As [`Tensor::concat`].
    pub fn stack(tensors: &[Tensor], at: i64) -> Result<Tensor> {
        if let Some(other) =
            tensors.iter().find(|t| Some(t.shape()) != tensors.first().map(Tensor::shape))
        {
            let first = tensors.first().map_or(&[][..], Tensor::shape);
            return Err(Error::shape(
                "stack",
                format!("{} and {} differ", show(first), show(other.shape())),
            ));
        }
        let parts: Vec<Tensor> =
            tensors.iter().map(|t| t.expand_dims(&[at])).collect::<Result<_>>()?;
        Tensor::concat(&parts, at)
    }

    /// The slices of an axis.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn unstack(&self, at: i64) -> Result<Vec<Tensor>> {
        let at = axis("unstack", at, self.rank())?;
        let n = self.shape().get(at).copied().unwrap_or(0);
        (0..n).map(|i| self.slice_axis(at, i as i64, 1, 1)?.squeeze(&[at as i64])).collect()
    }

    /// Adds `value` before and after each axis.
    ///
    /// # Errors
    /// [`Error::Shape`] unless there is a pair for each axis.
    pub fn pad(&self, pairs: &[(usize, usize)], value: Scalar) -> Result<Tensor> {
        if pairs.len() != self.rank() {
            return Err(Error::shape(
                "pad",
                format!("{} pairs of widths do not match {}", pairs.len(), show(self.shape())),
            ));
        }
        if pairs.iter().all(|p| *p == (0, 0)) {
            return Ok(self.clone());
        }
        let grown = |(n, (a, b)): (&usize, &(usize, usize))| {
            n.checked_add(*a).and_then(|n| n.checked_add(*b)).unwrap_or(usize::MAX)
        };
        let shape: Vec<usize> = self.shape().iter().zip(pairs).map(grown).collect();
        count("pad", &shape)?;
        let start = pairs.iter().map(|p| p.0 as i64).collect();
        let region = Region { start, step: vec![1; self.rank()] };
        let base = Tensor::full(&shape, value, self.dtype(), self.device())?;
        base.assembled(&[region], std::slice::from_ref(self))
    }

    /// Rotates an axis by `shift`: the last elements move to the front.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn roll(&self, shift: i64, at: i64) -> Result<Tensor> {
        let at = axis("roll", at, self.rank())?;
        let n = self.shape().get(at).copied().unwrap_or(0) as i64;
        let by = if n == 0 { 0 } else { shift.rem_euclid(n) };
        if by == 0 {
            return Ok(self.clone());
        }
        let tail = self.slice_axis(at, n - by, 1, by as usize)?;
        let head = self.slice_axis(at, 0, 1, (n - by) as usize)?;
        Tensor::concat(&[tail, head], at as i64)
    }

    /// Repeats the tensor along each axis. If `times` has more entries, axes are added in front.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn tile(&self, times: &[usize]) -> Result<Tensor> {
        let rank = times.len().max(self.rank());
        let padded = |list: &[usize]| -> Vec<usize> {
            std::iter::repeat_n(1, rank - list.len()).chain(list.iter().copied()).collect()
        };
        let (shape, times) = (padded(self.shape()), padded(times));
        // (t0, n0, t1, n1, …); the sizes t are broadcast.
        let wide: Vec<usize> = shape.iter().flat_map(|n| [1, *n]).collect();
        let both: Vec<usize> = shape.iter().zip(&times).flat_map(|(n, t)| [*t, *n]).collect();
        count("tile", &both)?;
        let flat: Vec<usize> =
            shape.iter().zip(&times).map(|(n, t)| n.saturating_mul(*t)).collect();
        self.shaped(&wide)?.broadcast_to(&both)?.shaped(&flat)
    }
}
