//! Products of matrices and vectors. On a GPU, products of integers are sums of products by the
//! fold kernel, which is slow for large matrices.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::node::{Node, Op};
use crate::promotion::promote;
use crate::shape::{axes, axis, broadcast, numel, show};
use crate::tensor::Tensor;

impl Tensor {
    /// The matrix product of the last two axes; a vector is a row (left) or a column (right).
    /// Batches broadcast.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match.
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        const OP: &str = "matmul";
        Device::same(OP, self.device(), other.device())?;
        let dtype = promote(OP, self.dtype(), other.dtype())?;
        if dtype == DType::Bool {
            return Err(Error::takes(OP, "numbers", dtype));
        }
        let fail = |why: &str| {
            Error::shape(OP, format!("{} and {} {why}", show(self.shape()), show(other.shape())))
        };
        if self.rank() == 0 || other.rank() == 0 {
            return Err(fail("must have axes"));
        }
        let (a, b) = (self.astype(dtype)?, other.astype(dtype)?);
        let a = if a.rank() == 1 { a.expand_dims(&[0])? } else { a };
        let b = if b.rank() == 1 { b.expand_dims(&[1])? } else { b };
        let ([left @ .., m, k], [right @ .., k2, n]) = (a.shape(), b.shape()) else {
            return Err(fail("must have axes"));
        };
        if k != k2 {
            return Err(fail(&format!("cannot be multiplied: {k} columns, but {k2} rows")));
        }
        let batch = broadcast(OP, left, right)?;
        let (m, k, n) = (*m, *k, *n);
        let a = a.broadcast_to(&[&batch[..], &[m, k]].concat())?;
        let b = b.broadcast_to(&[&batch[..], &[k, n]].concat())?;
        let shape = [&batch[..], &[m, n]].concat();
        let out = product(&a, &b, &shape)?;
        let mut removed = Vec::new();
        if other.rank() == 1 {
            removed.push(-1);
        }
        if self.rank() == 1 {
            removed.push(-2);
        }
        out.squeeze(&removed)
    }

    /// Sum of products over an axis of each, with the first operand conjugated.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match.
    pub fn vecdot(&self, other: &Tensor, at: i64) -> Result<Tensor> {
        const OP: &str = "vecdot";
        let last = |t: &Tensor| {
            axis(OP, at, t.rank())?;
            t.move_axes(&[at], &[-1])
        };
        let (a, b) = (last(self)?, last(other)?);
        if a.shape().last() != b.shape().last() {
            return Err(Error::shape(
                OP,
                format!("{} and {} differ in axis {at}", show(self.shape()), show(other.shape())),
            ));
        }
        let dtype = promote(OP, a.dtype(), b.dtype())?;
        if dtype == DType::Bool {
            return Err(Error::takes(OP, "numbers", dtype));
        }
        a.conj()?.mul(&b)?.sum(Some(&[-1]), false, Some(dtype))
    }

    /// Sum of products over several axes of each.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match.
    pub fn tensordot(&self, other: &Tensor, of_a: &[i64], of_b: &[i64]) -> Result<Tensor> {
        const OP: &str = "tensordot";
        let (x, y) = (axes(OP, Some(of_a), self.rank())?, axes(OP, Some(of_b), other.rank())?);
        let sizes = |t: &Tensor, a: &[usize]| -> Vec<usize> {
            a.iter().filter_map(|i| t.shape().get(*i).copied()).collect()
        };
        let (sa, sb) = (sizes(self, &x), sizes(other, &y));
        if sa != sb {
            return Err(Error::shape(
                OP,
                format!(
                    "{} and {} differ in the contracted axes: {} and {}",
                    show(self.shape()),
                    show(other.shape()),
                    show(&sa),
                    show(&sb)
                ),
            ));
        }
        let rest = |t: &Tensor, a: &[usize]| -> Vec<usize> {
            (0..t.rank()).filter(|i| !a.contains(i)).collect()
        };
        let (ra, rb) = (rest(self, &x), rest(other, &y));
        let order =
            |list: Vec<&[usize]>| -> Vec<i64> { list.concat().iter().map(|a| *a as i64).collect() };
        let (ha, hb) = (sizes(self, &ra), sizes(other, &rb));
        let k = numel(&sa);
        let a = self.permute(&order(vec![&ra, &x]))?.shaped(&[numel(&ha), k])?;
        let b = other.permute(&order(vec![&y, &rb]))?.shaped(&[k, numel(&hb)])?;
        a.matmul(&b)?.shaped(&[ha, hb].concat())
    }
}

/// (…, m, k) × (…, k, n) with equal batches; complex products by products of real and imaginary
/// parts.
fn product(a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let part = |x: Tensor, y: Tensor| -> Result<Tensor> {
        let kernel = x.dtype().is_float();
        if !kernel && matches!(x.device(), Device::Gpu(_)) {
            // (…, m, 1, k) × (…, 1, n, k), summed over k.
            let y = y.matrix_transpose()?.expand_dims(&[-3])?;
            let all = x.expand_dims(&[-2])?.mul(&y)?;
            return all.sum(Some(&[-1]), false, Some(x.dtype()));
        }
        if x.re.shape.last() == Some(&0) {
            let zero = crate::scalar::Scalar::Int(0);
            return Tensor::full(shape, zero, x.dtype(), x.device());
        }
        let inputs = vec![x.re.clone(), y.re.clone()];
        Ok(Tensor::real(Node::new(Op::Product, inputs, x.dtype(), shape.to_vec(), x.device())?))
    };
    if a.im.is_none() {
        return part(a.clone(), b.clone());
    }
    let (ar, ai) = (a.real_part()?, a.imag_part()?);
    let (br, bi) = (b.real_part()?, b.imag_part()?);
    let re = part(ar.clone(), br.clone())?.sub(&part(ai.clone(), bi.clone())?)?;
    let im = part(ar, bi)?.add(&part(ai, br)?)?;
    Tensor::pair(re.v(), im.v())
}
