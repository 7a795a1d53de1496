//! Losses, composed of the other operations.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::channel_shape;
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// Reduction of the elements of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The loss of each element.
    None,
    /// The mean.
    Mean,
    /// The sum.
    Sum,
}

impl Tensor {
    fn reduced(&self, by: Reduction) -> Result<Tensor> {
        match by {
            Reduction::None => Ok(self.clone()),
            Reduction::Mean => self.mean(None, false),
            Reduction::Sum => self.sum(None, false, None),
        }
    }

    /// (x - target)².
    ///
    /// # Errors
    /// As [`Tensor::binary`].
    pub fn mse_loss(&self, target: &Tensor, by: Reduction) -> Result<Tensor> {
        let d = self.sub(target)?;
        d.mul(&d)?.reduced(by)
    }

    /// -(t log p + (1 - t) log(1 - p)) for probabilities; logarithms are at least -100.
    ///
    /// # Errors
    /// As [`Tensor::binary`].
    pub fn bce_loss(&self, target: &Tensor, by: Reduction) -> Result<Tensor> {
        let p = self.floating("bce_loss")?;
        let one = p.number(1.0)?;
        let least = p.number(-100.0)?;
        let (a, b) = (p.log()?.maximum(&least)?, one.sub(&p)?.log()?.maximum(&least)?);
        target.mul(&a)?.add(&one.sub(target)?.mul(&b)?)?.neg()?.reduced(by)
    }

    /// -x at the target class, for log-probabilities (n, classes, …). Targets equal to `ignore` do
    /// not count.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Index`].
    pub fn nll_loss(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore: i64,
        by: Reduction,
    ) -> Result<Tensor> {
        const OP: &str = "nll_loss";
        let x = self.floating(OP)?;
        if !target.dtype().is_int() || x.rank() == 0 {
            return Err(Error::takes(OP, "integer classes", target.dtype()));
        }
        let at = if x.rank() == 1 { 0 } else { 1 };
        let index = target.astype(DType::I64)?;
        let ignored = Tensor::full(&[], Scalar::Int(i128::from(ignore)), DType::I64, x.device())?;
        let zero = Tensor::full(&[], Scalar::Int(0), DType::I64, x.device())?;
        let counts = index.ne(&ignored)?;
        let index = counts.select(&index, &zero)?;
        let picked = x.take_along_axis(&index.expand_dims(&[at])?, at)?.squeeze(&[at])?;
        let weights = match weight {
            Some(w) => w.embedding_row(&index)?.mul(&counts.astype(x.dtype())?)?,
            None => counts.astype(x.dtype())?,
        };
        let none = x.number(0.0)?;
        let loss = counts.select(&picked.neg()?.mul(&weights)?, &none)?;
        match by {
            Reduction::Mean => loss.sum(None, false, None)?.div(&weights.sum(None, false, None)?),
            other => loss.reduced(other),
        }
    }

    /// Elements of a 1-d tensor at an index of any shape.
    fn embedding_row(&self, index: &Tensor) -> Result<Tensor> {
        let flat = index.shaped(&[index.numel()])?;
        self.take(&flat, 0)?.shaped(index.shape())
    }

    /// The loss of scores (n, classes, …); targets are classes (integers) or probabilities.
    ///
    /// # Errors
    /// As [`Tensor::nll_loss`].
    pub fn cross_entropy(
        &self,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore: i64,
        by: Reduction,
    ) -> Result<Tensor> {
        let at = if self.rank() == 1 { 0 } else { 1 };
        let logs = self.log_softmax(at)?;
        if target.dtype().is_int() {
            return logs.nll_loss(target, weight, ignore, by);
        }
        let mut each = target.mul(&logs)?;
        if let Some(w) = weight {
            let c = self.shape().get(at as usize).copied().unwrap_or(1);
            each = each.mul(&w.reshape(&channel_shape(c, self.rank()))?)?;
        }
        let loss = each.sum(Some(&[at]), false, None)?.neg()?;
        loss.reduced(by)
    }
}
