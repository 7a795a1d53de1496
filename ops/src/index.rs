//! `x[...]`: reading and writing with integers, slices, new axes, masks and index tensors.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr;
use crate::node::{Node, Op, Region};
use crate::scalar::Scalar;
use crate::shape::{broadcast, numel, show};
use crate::tensor::Tensor;
use crate::view::View;

/// One entry of an index.
#[derive(Clone, Debug)]
pub enum Index {
    /// One element of an axis; a negative index counts from the end.
    At(i64),
    /// `start:stop:step`.
    Slice(Option<i64>, Option<i64>, Option<i64>),
    /// A new axis of size 1.
    New,
    /// All axes that the other entries do not use.
    Ellipsis,
    /// A mask (bool) or indices (integers).
    Tensor(Tensor),
}

/// A basic index as a region: start and step for each axis, and the result's shape.
struct Basic {
    view: View,
    shape: Vec<usize>,
    region: Region,
    /// Sizes of the region; an integer gives an axis of size 1.
    sizes: Vec<usize>,
}

/// First element and number of elements of a slice, by Python's rules.
fn slice(n: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, usize) {
    let n = n as i64;
    let clamp = |v: i64| {
        let v = if v < 0 { v.saturating_add(n) } else { v };
        if step > 0 { v.clamp(0, n) } else { v.clamp(-1, n - 1) }
    };
    let first = start.map_or(if step > 0 { 0 } else { n - 1 }, clamp);
    let last = stop.map_or(if step > 0 { n } else { -1 }, clamp);
    let span = if step > 0 { last - first } else { first - last };
    let count = if span <= 0 { 0 } else { (span - 1) / step.abs().max(1) + 1 };
    (if count == 0 { 0 } else { first }, count as usize)
}

fn basic(op: &'static str, index: &[Index], from: &[usize]) -> Result<Basic> {
    let taken = index.iter().filter(|i| !matches!(i, Index::New | Index::Ellipsis)).count();
    let dots = index.iter().filter(|i| matches!(i, Index::Ellipsis)).count();
    if dots > 1 || taken > from.len() {
        return Err(Error::shape(
            op,
            format!("{taken} indices and {dots} ellipses do not match {}", show(from)),
        ));
    }
    let whole = Index::Slice(None, None, None);
    let mut full: Vec<&Index> = Vec::new();
    for i in index {
        match i {
            Index::Ellipsis => full.extend(vec![&whole; from.len() - taken]),
            other => full.push(other),
        }
    }
    if dots == 0 {
        full.extend(vec![&whole; from.len() - taken]);
    }
    let rank = full.iter().filter(|i| !matches!(i, Index::At(_))).count();
    let mut out = Basic {
        view: View { offset: Vec::new(), coef: Vec::new() },
        shape: Vec::new(),
        region: Region { start: Vec::new(), step: Vec::new() },
        sizes: Vec::new(),
    };
    for entry in full {
        let axis = out.sizes.len();
        let size = from.get(axis).copied().unwrap_or(0);
        let (start, step, count) = match entry {
            Index::New => {
                out.shape.push(1);
                continue;
            }
            Index::At(i) => {
                let front = if *i < 0 { i + size as i64 } else { *i };
                if front < 0 || front >= size as i64 {
                    return Err(Error::Index { op, index: *i, axis, size });
                }
                (front, 0, 1)
            }
            Index::Slice(a, b, step) => {
                let step = step.unwrap_or(1);
                if step == 0 {
                    return Err(Error::value(op, "the step of a slice must not be 0"));
                }
                let (start, count) = slice(size, *a, *b, step);
                (start, step, count)
            }
            _ => return Err(Error::Inside("an advanced index among basic indices")),
        };
        let mut row = vec![0; rank];
        if !matches!(entry, Index::At(_)) {
            if let Some(c) = row.get_mut(out.shape.len()) {
                *c = step;
            }
            out.shape.push(count);
        }
        out.view.offset.push(start);
        out.view.coef.push(row);
        out.region.start.push(start);
        out.region.step.push(step);
        out.sizes.push(count);
    }
    Ok(out)
}

/// An index with tensors: the leading axes that it uses, and the row-major index in them.
struct Advanced {
    axes: usize,
    index: Tensor,
}

impl Tensor {
    /// `x[index]`.
    ///
    /// # Errors
    /// [`Error::Index`], [`Error::Shape`], [`Error::DType`] if it does not fit.
    pub fn index(&self, index: &[Index]) -> Result<Tensor> {
        if !index.iter().any(|i| matches!(i, Index::Tensor(_))) {
            let basic = basic("indexing", index, self.shape())?;
            return self.viewed(&basic.view, &basic.shape);
        }
        let Advanced { axes, index } = self.advanced("indexing", index)?;
        let rest = self.shape().get(axes..).unwrap_or_default();
        let leading = numel(self.shape().get(..axes).unwrap_or_default());
        let flat: Vec<usize> = [&[leading], rest].concat();
        let shape: Vec<usize> = [index.shape(), rest].concat();
        let one = index.shaped(&[index.numel()])?;
        self.shaped(&flat)?.take(&one, 0)?.shaped(&shape)
    }

    /// A copy with `x[index] = value`; `value` is broadcast and cast to the dtype of `self`.
    ///
    /// # Errors
    /// As [`Tensor::index`].
    pub fn with(&self, index: &[Index], value: &Tensor) -> Result<Tensor> {
        const OP: &str = "assignment";
        Device::same(OP, self.device(), value.device())?;
        if value.dtype().is_complex() && !self.dtype().is_complex() {
            return Err(Error::dtype(
                OP,
                format!("a value of {} cannot be assigned to {}", value.dtype(), self.dtype()),
            ));
        }
        let value = value.astype(self.dtype())?;
        if let [Index::Tensor(mask)] = index
            && mask.is_bool()
            && value.rank() == 0
            && mask.rank() <= self.rank()
        {
            // No positions are computed: the mask is broadcast over the trailing axes.
            let wide: Vec<usize> = mask
                .shape()
                .iter()
                .copied()
                .chain(std::iter::repeat_n(1, self.rank() - mask.rank()))
                .collect();
            self.mask_fits(OP, mask)?;
            return mask.shaped(&wide)?.select(&value, self);
        }
        if !index.iter().any(|i| matches!(i, Index::Tensor(_))) {
            let basic = basic(OP, index, self.shape())?;
            let part = value.broadcast_to(&basic.shape)?.shaped(&basic.sizes)?;
            if part.numel() == 0 {
                return Ok(self.clone());
            }
            return self.assembled(&[basic.region], &[part]);
        }
        let Advanced { axes, index } = self.advanced(OP, index)?;
        let rest = self.shape().get(axes..).unwrap_or_default();
        let leading = numel(self.shape().get(..axes).unwrap_or_default());
        let flat: Vec<usize> = [&[leading], rest].concat();
        let shape: Vec<usize> = [index.shape(), rest].concat();
        let rows: Vec<usize> = [&[index.numel()], rest].concat();
        let value = value.broadcast_to(&shape)?.shaped(&rows)?;
        let wide: Vec<usize> = [&[index.numel()][..], &vec![1; rest.len()]].concat();
        let places = index.shaped(&wide)?.broadcast_to(&rows)?;
        self.shaped(&flat)?.scatter(0, &places, &value, false)?.shaped(self.shape())
    }

    fn mask_fits(&self, op: &'static str, mask: &Tensor) -> Result<()> {
        if self.shape().get(..mask.rank()) == Some(mask.shape()) {
            return Ok(());
        }
        Err(Error::shape(
            op,
            format!(
                "the mask has the shape {}, but the tensor {}",
                show(mask.shape()),
                show(self.shape())
            ),
        ))
    }

    fn advanced(&self, op: &'static str, index: &[Index]) -> Result<Advanced> {
        // A trailing ellipsis and trailing full slices have no effect.
        let mut entries = index;
        while let [head @ .., Index::Ellipsis | Index::Slice(None, None, None)] = entries {
            entries = head;
        }
        if let [Index::Tensor(mask)] = entries
            && mask.is_bool()
        {
            self.mask_fits(op, mask)?;
            let flat = mask.shaped(&[mask.numel()])?;
            let places = flat.nonzero()?.pop().ok_or(Error::Inside("a mask has no axis"))?;
            return Ok(Advanced { axes: mask.rank(), index: places });
        }
        let mut shape = Vec::new();
        let mut columns = Vec::new();
        for entry in entries {
            let column = match entry {
                Index::At(i) => {
                    Tensor::full(&[], Scalar::Int(i128::from(*i)), DType::I64, self.device())?
                }
                Index::Tensor(t) if t.dtype().is_int() => t.clone(),
                _ => {
                    return Err(Error::value(
                        op,
                        "index tensors can be combined only with integers, for the leading axes; a mask must be the only index",
                    ));
                }
            };
            Device::same(op, self.device(), column.device())?;
            shape = broadcast(op, &shape, column.shape())?;
            columns.push(column);
        }
        if columns.len() > self.rank() {
            return Err(Error::shape(
                op,
                format!("too many indices ({}) for {}", columns.len(), show(self.shape())),
            ));
        }
        let mut linear: Option<Tensor> = None;
        for (axis, (column, &size)) in columns.iter().zip(self.shape()).enumerate() {
            let column =
                column.broadcast_to(&shape)?.astype(DType::I64)?.checked(op, axis, size)?;
            let n = Tensor::full(&[], Scalar::Int(size as i128), DType::I64, self.device())?;
            linear = Some(match linear {
                None => column,
                Some(sum) => sum.mul(&n)?.add(&column)?,
            });
        }
        let index = linear.ok_or(Error::Inside("an index without entries"))?;
        Ok(Advanced { axes: columns.len(), index })
    }

    /// Indices, with negative ones counted from the end. On the CPU each is checked; on a GPU an
    /// index out of range is reported at the next synchronisation.
    fn checked(&self, op: &'static str, axis: usize, size: usize) -> Result<Tensor> {
        let n = size as i64;
        if matches!(self.device(), Device::Cpu) {
            for v in self.to_scalars()? {
                let v = v.int() as i64;
                if v < -n || v >= n {
                    return Err(Error::Index { op, index: v, axis, size });
                }
            }
        }
        if let Device::Gpu(gpu) = self.device()
            && self.numel() > 0
        {
            let index = crate::eval::packed(&expr::cast(&self.re, DType::I64)?)?;
            gpu.check(op, &crate::eval::value(&index)?, index.numel(), axis, size)?;
        }
        let size = Tensor::full(&[], Scalar::Int(i128::from(n)), DType::I64, self.device())?;
        let zero = Tensor::full(&[], Scalar::Int(0), DType::I64, self.device())?;
        self.lt(&zero)?.select(&self.add(&size)?, self)
    }

    /// The slices of an axis at the given indices.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`]; [`Error::Index`] when it is computed on the CPU.
    pub fn take(&self, index: &Tensor, axis: i64) -> Result<Tensor> {
        const OP: &str = "take";
        let axis = crate::shape::axis(OP, axis, self.rank())?;
        if index.rank() != 1 {
            return Err(Error::shape(
                OP,
                format!("the indices must have one axis, got {}", show(index.shape())),
            ));
        }
        let mut shape = self.shape().to_vec();
        if let Some(n) = shape.get_mut(axis) {
            *n = index.numel();
        }
        let mut along = vec![1; self.rank()];
        if let Some(n) = along.get_mut(axis) {
            *n = index.numel();
        }
        let index = index.shaped(&along)?.broadcast_to(&shape)?;
        self.gather(OP, &index, axis)
    }

    /// `out[i, j] = x[index[i, j], j]` for axis 0, correspondingly for others; other axes
    /// broadcast.
    ///
    /// # Errors
    /// As [`Tensor::take`].
    pub fn take_along_axis(&self, index: &Tensor, axis: i64) -> Result<Tensor> {
        const OP: &str = "take_along_axis";
        let axis = crate::shape::axis(OP, axis, self.rank())?;
        if index.rank() != self.rank() {
            return Err(Error::shape(
                OP,
                format!("the indices {} do not match {}", show(index.shape()), show(self.shape())),
            ));
        }
        let without = |s: &[usize]| -> Vec<usize> {
            s.iter().enumerate().map(|(i, n)| if i == axis { 1 } else { *n }).collect()
        };
        let common = broadcast(OP, &without(self.shape()), &without(index.shape()))?;
        let with = |n: Option<&usize>| -> Vec<usize> {
            let n = n.copied().unwrap_or(1);
            common.iter().enumerate().map(|(i, c)| if i == axis { n } else { *c }).collect()
        };
        let index = index.broadcast_to(&with(index.shape().get(axis)))?;
        self.broadcast_to(&with(self.shape().get(axis)))?.gather(OP, &index, axis)
    }

    /// Gathers along an axis. Index and source have equal sizes in all other axes.
    pub(crate) fn gather(&self, op: &'static str, index: &Tensor, axis: usize) -> Result<Tensor> {
        Device::same(op, self.device(), index.device())?;
        if !index.dtype().is_int() {
            return Err(Error::takes(op, "integer indices", index.dtype()));
        }
        let index = expr::cast(&index.re, DType::I64)?;
        let size = self.shape().get(axis).copied().unwrap_or(0);
        if size == 0 && numel(&index.shape) > 0 {
            return Err(Error::Index { op, index: 0, axis, size });
        }
        self.parts(|node| {
            let inputs = vec![node.clone(), index.clone()];
            Node::new(
                Op::Gather { axis, size },
                inputs,
                node.dtype,
                index.shape.clone(),
                self.device(),
            )
        })
    }

    /// A copy with `values` written (or added) along an axis at `index`, which has their shape. The
    /// last of several writes to one element, in row-major order, wins.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`]; [`Error::Index`] during the
    /// computation.
    pub fn scatter(&self, axis: i64, index: &Tensor, values: &Tensor, add: bool) -> Result<Tensor> {
        let op = if add { "scatter_add" } else { "scatter" };
        let axis = crate::shape::axis(op, axis, self.rank())?;
        Device::same(op, self.device(), index.device())?;
        Device::same(op, self.device(), values.device())?;
        if !index.dtype().is_int() {
            return Err(Error::takes(op, "integer indices", index.dtype()));
        }
        if self.dtype() != values.dtype() {
            return Err(Error::dtype(
                op,
                format!("values of {} cannot be written to {}", values.dtype(), self.dtype()),
            ));
        }
        let fits = index.shape() == values.shape()
            && index.rank() == self.rank()
            && index
                .shape()
                .iter()
                .zip(self.shape())
                .enumerate()
                .all(|(i, (n, m))| i == axis || n <= m);
        if !fits {
            return Err(Error::shape(
                op,
                format!(
                    "the shapes of indices {}, values {} and destination {} do not match",
                    show(index.shape()),
                    show(values.shape()),
                    show(self.shape())
                ),
            ));
        }
        if add && self.is_bool() {
            return Err(Error::takes(op, "numbers", self.dtype()));
        }
        let index = expr::cast(&index.re, DType::I64)?;
        let build = |base: &std::sync::Arc<Node>, value: &std::sync::Arc<Node>| {
            let inputs = vec![base.clone(), index.clone(), value.clone()];
            let op = Op::Scatter { axis, add };
            Node::new(op, inputs, base.dtype, base.shape.clone(), self.device())
        };
        let im = match (&self.im, &values.im) {
            (Some(a), Some(b)) => Some(build(a, b)?),
            _ => None,
        };
        Ok(Tensor { re: build(&self.re, &values.re)?, im })
    }
}

#[cfg(test)]
mod tests {
    use super::slice;

    #[test]
    fn slices_match_python() {
        assert_eq!(slice(10, None, None, 1), (0, 10));
        assert_eq!(slice(10, Some(-3), None, 1), (7, 3));
        assert_eq!(slice(10, None, None, -1), (9, 10));
        assert_eq!(slice(10, Some(8), Some(1), -3), (8, 3));
        assert_eq!(slice(10, Some(5), Some(2), 1), (0, 0));
        assert_eq!(slice(0, None, None, -1), (0, 0));
        assert_eq!(slice(3, Some(-100), Some(100), 2), (0, 2));
    }
}
