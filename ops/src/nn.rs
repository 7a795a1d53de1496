//! Activations, norms and attention, composed of the other operations.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::V;
use crate::node::{Node, Op, Sight};
use crate::promotion::promote;
use crate::scalar::Scalar;
use crate::shape::{broadcast, show};
use crate::tensor::Tensor;
use std::sync::Arc;

impl Tensor {
    /// The tensor as a real float tensor; integers become f32.
    pub(crate) fn floating(&self, op: &'static str) -> Result<Tensor> {
        match self.dtype() {
            d if d.is_complex() => Err(Error::takes(op, "real numbers", d)),
            d if d.is_float() => Ok(self.clone()),
            _ => self.astype(DType::F32),
        }
    }

    fn map(&self, op: &'static str, f: impl FnOnce(V) -> V) -> Result<Tensor> {
        self.floating(op)?.in_f32(|x| Tensor::from_v(f(x.v())))
    }

    /// Converts f16 and bf16 to f32 for the computation, so that a result is rounded once.
    fn wide(&self) -> Result<Tensor> {
        match self.dtype() {
            DType::F16 | DType::BF16 => self.astype(DType::F32),
            _ => Ok(self.clone()),
        }
    }

    /// A function's result in the tensor's own dtype.
    fn in_f32(&self, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f(&self.wide()?)?.astype(self.dtype())
    }

    /// The dtype of an operation on this tensor and the others.
    fn promoted(&self, others: &[Option<&Tensor>]) -> Result<DType> {
        let mut others = others.iter().flatten();
        others.try_fold(self.dtype(), |d, t| promote("norm", d, t.dtype()))
    }

    /// A 0-d tensor of this dtype.
    pub(crate) fn number(&self, value: f64) -> Result<Tensor> {
        Tensor::full(&[], Scalar::Float(value), self.dtype(), self.device())
    }

    /// max(x, 0).
    ///
    /// # Errors
    /// [`Error::DType`] for complex ones.
    pub fn relu(&self) -> Result<Tensor> {
        if self.dtype().is_complex() {
            return Err(Error::takes("relu", "real numbers", self.dtype()));
        }
        Tensor::from_v(self.v().max(self.v().like(0.0)))
    }

    /// 1 / (1 + exp(-x)).
    ///
    /// # Errors
    /// [`Error::DType`] for complex ones.
    pub fn sigmoid(&self) -> Result<Tensor> {
        self.map("sigmoid", |x| x.like(1.0) / ((-x).exp() + 1.0))
    }

    /// x sigmoid(x).
    ///
    /// # Errors
    /// [`Error::DType`] for complex ones.
    pub fn silu(&self) -> Result<Tensor> {
        self.map("silu", |x| x.clone() / ((-x).exp() + 1.0))
    }

    /// x times the standard normal distribution function at x; `tanh`: its approximation.
    ///
    /// # Errors
    /// [`Error::DType`] for complex ones.
    pub fn gelu(&self, tanh: bool) -> Result<Tensor> {
        self.map("gelu", |x| {
            let share = if tanh {
                let cube = x.clone() * x.clone() * x.clone() * 0.044_715;
                ((x.clone() + cube) * (2.0 / std::f64::consts::PI).sqrt()).tanh()
            } else {
                (x.clone() * std::f64::consts::FRAC_1_SQRT_2).erf()
            };
            x * 0.5 * (share + 1.0)
        })
    }

    /// exp(x) / sum(exp(x)) over an axis.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn softmax(&self, at: i64) -> Result<Tensor> {
        let x = self.floating("softmax")?;
        if x.numel() == 0 {
            return Ok(x);
        }
        x.in_f32(|x| {
            let e = x.sub(&x.max(Some(&[at]), true)?)?.exp()?;
            e.div(&e.sum(Some(&[at]), true, None)?)
        })
    }

    /// The logarithm of [`Tensor::softmax`].
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn log_softmax(&self, at: i64) -> Result<Tensor> {
        let x = self.floating("log_softmax")?;
        if x.numel() == 0 {
            return Ok(x);
        }
        x.in_f32(|x| {
            let d = x.sub(&x.max(Some(&[at]), true)?)?;
            d.sub(&d.exp()?.sum(Some(&[at]), true, None)?.log()?)
        })
    }

    /// Normalises these last axes to mean 0 and variance 1, then applies weight and bias.
    fn normed(
        &self,
        at: &[i64],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let x = self.wide()?;
        let d = x.sub(&x.mean(Some(at), true)?)?;
        let var = d.mul(&d)?.mean(Some(at), true)?;
        let y = d.div(&var.add(&var.number(eps)?)?.sqrt()?)?.scaled(weight, bias)?;
        y.astype(self.promoted(&[weight, bias])?)
    }

    fn scaled(&self, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
        let out = weight.map_or(Ok(self.clone()), |w| self.mul(w))?;
        bias.map_or(Ok(out.clone()), |b| out.add(b))
    }

    /// Layer norm over the last axes, which have sizes `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] if they have other sizes.
    pub fn layer_norm(
        &self,
        shape: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let x = self.floating("layer_norm")?;
        if !x.shape().ends_with(shape) {
            return Err(Error::shape(
                "layer_norm",
                format!("{} does not end with {}", show(x.shape()), show(shape)),
            ));
        }
        let at: Vec<i64> = (1..=shape.len() as i64).map(|a| -a).collect();
        x.normed(&at, weight, bias, eps)
    }

    /// x / sqrt(mean(x²) + eps) over the last axes, which have sizes `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] if they have other sizes.
    pub fn rms_norm(&self, shape: &[usize], weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let x = self.floating("rms_norm")?;
        if !x.shape().ends_with(shape) {
            return Err(Error::shape(
                "rms_norm",
                format!("{} does not end with {}", show(x.shape()), show(shape)),
            ));
        }
        let at: Vec<i64> = (1..=shape.len() as i64).map(|a| -a).collect();
        let w = x.wide()?;
        let mean = w.mul(&w)?.mean(Some(&at), true)?;
        let y = w.div(&mean.add(&mean.number(eps)?)?.sqrt()?)?.scaled(weight, None)?;
        y.astype(x.promoted(&[weight])?)
    }

    /// Normalises groups of channels to mean 0 and variance 1; weight and bias are per channel.
    ///
    /// # Errors
    /// [`Error::Shape`] when the groups do not divide the channels.
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let x = self.floating("group_norm")?;
        let [n, c, ..] = *x.shape() else {
            return Err(Error::shape("group_norm", "takes (n, channels, …)"));
        };
        if groups == 0 || c % groups != 0 {
            return Err(Error::shape(
                "group_norm",
                format!("{c} channels cannot be divided into {groups} groups"),
            ));
        }
        let each = c / groups;
        let rest = x.numel() / (n * c).max(1);
        // Weight and bias in the groups' shape, so that all is one group of rows.
        let wide = |t: Option<&Tensor>| t.map(|t| t.shaped(&[groups, each, 1])).transpose();
        let (weight, bias) = (wide(weight)?, wide(bias)?);
        let split = x.shaped(&[n, groups, each, rest])?;
        split.normed(&[-2, -1], weight.as_ref(), bias.as_ref(), eps)?.shaped(x.shape())
    }

    /// (x - mean) / sqrt(var + eps) per channel, with a given mean and variance.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit the channels.
    pub fn batch_norm(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let x = self.floating("batch_norm")?;
        let [_, c, ..] = *x.shape() else {
            return Err(Error::shape("batch_norm", "takes (n, channels, …)"));
        };
        let shape = channel_shape(c, x.rank());
        let wide = |t: &Tensor| t.reshape(&shape);
        let scale = wide(&var.add(&var.number(eps)?)?.sqrt()?)?;
        let weight = weight.map(&wide).transpose()?;
        let bias = bias.map(&wide).transpose()?;
        x.sub(&wide(mean)?)?.div(&scale)?.scaled(weight.as_ref(), bias.as_ref())
    }

    /// x Wᵀ + b with a weight (out, in).
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let w = if weight.rank() == 1 { weight.clone() } else { weight.matrix_transpose()? };
        self.matmul(&w)?.scaled(None, bias)
    }

    /// Rows of this table (rows, width) at an index of any shape.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Index`].
    pub fn embedding(&self, index: &Tensor) -> Result<Tensor> {
        let [_, width] = *self.shape() else {
            return Err(Error::shape(
                "embedding",
                format!("the table must have two axes, got {}", show(self.shape())),
            ));
        };
        let flat = index.shaped(&[index.numel()])?;
        self.take(&flat, 0)?.shaped(&[index.shape(), &[width]].concat())
    }

    /// softmax(q kᵀ × scale + mask) v, over (…, rows, width). A bool mask selects the entries that
    /// count. `causal`: row i sees keys 0 … i.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match.
    pub fn attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Tensor> {
        self.windowed_attention(k, v, mask, (None, causal.then_some(0)), scale)
    }

    /// [`Tensor::attention`] in which row i sees the keys i - left … i + right of the window (left,
    /// right), without an end where it is `None`. A row that sees no key has the result NaN.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match.
    pub fn windowed_attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        window: (Option<u32>, Option<u32>),
        scale: Option<f64>,
    ) -> Result<Tensor> {
        const OP: &str = "scaled_dot_product_attention";
        if self.rank() < 2 || k.rank() < 2 || v.rank() < 2 {
            return Err(Error::shape(OP, "takes (…, rows, width)"));
        }
        let width = self.shape().last().copied().unwrap_or(1);
        let scale = scale.unwrap_or(1.0 / (width as f64).sqrt());
        // Numbers of keys above this limit have no kernel.
        const MOST: u32 = 1 << 31;
        let end = |n: Option<u32>| n.filter(|n| *n < MOST);
        let (left, right) = (end(window.0), end(window.1));
        let sight = Sight { left, right, scale: (scale as f32).to_bits() };
        if let Some(out) = self.attention_of_one_launch(k, v, mask, sight)? {
            return Ok(out);
        }
        let mut scores = self.matmul(&k.matrix_transpose()?)?;
        scores = scores.mul(&scores.number(scale)?)?;
        let low = scores.number(f64::NEG_INFINITY)?;
        if let Some(mask) = mask {
            scores = match mask.is_bool() {
                true => mask.select(&scores, &low)?,
                false => scores.add(mask)?,
            };
        }
        if left.is_some() || right.is_some() {
            let [.., rows, columns] = *scores.shape() else {
                return Err(Error::Inside("scores without rows"));
            };
            let mut seen =
                Tensor::full(&[rows, columns], Scalar::Bool(true), DType::Bool, self.device())?;
            if let Some(right) = right {
                seen = seen.triangle(false, i64::from(right))?;
            }
            if let Some(left) = left {
                seen = seen.triangle(true, -i64::from(left))?;
            }
            scores = seen.select(&scores, &low)?;
        }
        scores.softmax(-1)?.matmul(v)
    }
}

impl Tensor {
    /// Attention by the kernel of a GPU, if that takes these tensors.
    fn attention_of_one_launch(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        sight: Sight,
    ) -> Result<Option<Tensor>> {
        let Device::Gpu(gpu) = self.device() else { return Ok(None) };
        let ([a @ .., rows, width], [b @ .., keys, deep], [c @ .., values, across]) =
            (self.shape(), k.shape(), v.shape())
        else {
            return Ok(None);
        };
        let alike = [k, v].iter().all(|t| t.dtype() == self.dtype() && t.device() == self.device());
        let fits = deep == width && across == width && values == keys;
        if !alike || !fits || rows * keys == 0 || !gpu.has_attention(self.dtype(), *width) {
            return Ok(None);
        }
        const OP: &str = "scaled_dot_product_attention";
        let mut batch = broadcast(OP, &broadcast(OP, a, b)?, c)?;
        if let Some(mask) = mask {
            // A mask of another dtype changes that of the result.
            let taken = mask.is_bool() || mask.dtype() == self.dtype();
            if !taken || mask.device() != self.device() {
                return Ok(None);
            }
            let whole = broadcast(OP, &[&batch[..], &[*rows, *keys]].concat(), mask.shape())?;
            let [wider @ .., r, n] = &whole[..] else { return Ok(None) };
            if (r, n) != (rows, keys) {
                return Ok(None);
            }
            batch = wider.to_vec();
        }
        if batch.contains(&0) {
            return Ok(None);
        }
        let wide = |t: &Tensor, n: &[usize]| t.broadcast_to(&[&batch[..], n].concat());
        let q = wide(self, &[*rows, *width])?;
        let mut inputs = vec![Arc::clone(&q.re)];
        for t in [k, v] {
            inputs.push(wide(t, &[*keys, *width])?.re);
        }
        if let Some(mask) = mask {
            inputs.push(wide(mask, &[*rows, *keys])?.re);
        }
        let node =
            Node::new(Op::Attention(sight), inputs, q.dtype(), q.shape().to_vec(), q.device())?;
        Ok(Some(Tensor::real(node)))
    }
}

/// The shape (1, channels, 1, …), or (channels,) for one axis.
pub(crate) fn channel_shape(channels: usize, rank: usize) -> Vec<i64> {
    let mut shape = vec![1; rank.max(1)];
    let at = usize::from(rank > 1);
    if let Some(n) = shape.get_mut(at) {
        *n = channels as i64;
    }
    shape
}
