//! What networks are made of, composed from the other operations: activations, norms, losses,
//! convolutions and pools (windows are views), attention.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::V;
use crate::scalar::Scalar;
use crate::shape::show;
use crate::tensor::Tensor;
use crate::view::View;

/// How elements of a loss become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// None: the loss of each.
    None,
    /// Their mean.
    Mean,
    /// Their sum.
    Sum,
}

/// Windows along each spatial axis.
#[derive(Clone, Debug)]
pub struct Windows<'a> {
    /// Elements from one window to the next.
    pub stride: &'a [usize],
    /// Elements added on both sides.
    pub padding: &'a [usize],
    /// Elements from one of a window to the next.
    pub dilation: &'a [usize],
}

impl Tensor {
    /// A real float tensor; integers become f32.
    fn floating(&self, op: &'static str) -> Result<Tensor> {
        match self.dtype() {
            d if d.is_complex() => Err(Error::takes(op, "real numbers", d)),
            d if d.is_float() => Ok(self.clone()),
            _ => self.astype(DType::F32),
        }
    }

    fn map(&self, op: &'static str, f: impl FnOnce(V) -> V) -> Result<Tensor> {
        Tensor::from_v(f(self.floating(op)?.v()))
    }

    /// A number of this one's dtype, without axes.
    fn number(&self, value: f64) -> Result<Tensor> {
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

    /// x times the normal distribution's share below x; `tanh`: by its approximation.
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
        let e = x.sub(&x.max(Some(&[at]), true)?)?.exp()?;
        e.div(&e.sum(Some(&[at]), true, None)?)
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
        let d = x.sub(&x.max(Some(&[at]), true)?)?;
        d.sub(&d.exp()?.sum(Some(&[at]), true, None)?.log()?)
    }

    /// Mean 0 and variance 1 over these axes (the last ones), then weight and bias.
    fn normed(
        &self,
        at: &[i64],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let d = self.sub(&self.mean(Some(at), true)?)?;
        let var = d.mul(&d)?.mean(Some(at), true)?;
        d.div(&var.add(&var.number(eps)?)?.sqrt()?)?.scaled(weight, bias)
    }

    fn scaled(&self, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
        let out = weight.map_or(Ok(self.clone()), |w| self.mul(w))?;
        bias.map_or(Ok(out.clone()), |b| out.add(b))
    }

    /// Norm over the last axes, of sizes `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] when they are others.
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

    /// x / sqrt(mean(x²) + eps) over the last axes, of sizes `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`] when they are others.
    pub fn rms_norm(&self, shape: &[usize], weight: Option<&Tensor>, eps: f64) -> Result<Tensor> {
        let x = self.floating("rms_norm")?;
        if !x.shape().ends_with(shape) {
            return Err(Error::shape(
                "rms_norm",
                format!("{} does not end with {}", show(x.shape()), show(shape)),
            ));
        }
        let at: Vec<i64> = (1..=shape.len() as i64).map(|a| -a).collect();
        let mean = x.mul(&x)?.mean(Some(&at), true)?;
        x.div(&mean.add(&mean.number(eps)?)?.sqrt()?)?.scaled(weight, None)
    }

    /// Channels in groups, each with mean 0 and variance 1; weight and bias by channel.
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
            return Err(Error::shape("group_norm", format!("{c} channels in {groups} groups")));
        }
        let rest = x.numel() / (n * groups).max(1);
        let flat = x.shaped(&[n, groups, rest])?.normed(&[-1], None, None, eps)?;
        let channels = channel_shape(c, x.rank());
        let wide = |t: Option<&Tensor>| t.map(|t| t.reshape(&channels)).transpose();
        flat.shaped(x.shape())?.scaled(wide(weight)?.as_ref(), wide(bias)?.as_ref())
    }

    /// (x - mean) / sqrt(var + eps) by channel, of a mean and variance that are given.
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

    /// x Wᵀ + b, of a weight (out, in).
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let w = if weight.rank() == 1 { weight.clone() } else { weight.matrix_transpose()? };
        self.matmul(&w)?.scaled(None, bias)
    }

    /// Rows of this table (rows, width) by an index of any shape.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Index`].
    pub fn embedding(&self, index: &Tensor) -> Result<Tensor> {
        let [_, width] = *self.shape() else {
            return Err(Error::shape("embedding", format!("a table of {}", show(self.shape()))));
        };
        let flat = index.shaped(&[index.numel()])?;
        self.take(&flat, 0)?.shaped(&[index.shape(), &[width]].concat())
    }

    /// The windows of the last axes: (…, outs…, kernel…). A view where nothing is padded.
    fn windows(
        &self,
        op: &'static str,
        kernel: &[usize],
        w: &Windows<'_>,
        fill: Scalar,
    ) -> Result<Tensor> {
        let (spatial, rank) = (kernel.len(), self.rank());
        let lists = [w.stride, w.padding, w.dilation];
        if rank < spatial || lists.iter().any(|l| l.len() != spatial) {
            return Err(Error::shape(
                op,
                format!("{} with {spatial} axes of windows", show(self.shape())),
            ));
        }
        let lead = rank - spatial;
        let pairs: Vec<(usize, usize)> = (0..rank)
            .map(|a| {
                a.checked_sub(lead).and_then(|a| w.padding.get(a)).map_or((0, 0), |p| (*p, *p))
            })
            .collect();
        let x = self.pad(&pairs, fill)?;
        let mut outs = Vec::new();
        for (i, &k) in kernel.iter().enumerate() {
            let at = |l: &[usize]| l.get(i).copied().unwrap_or(1);
            let (n, s, d) =
                (x.shape().get(lead + i).copied().unwrap_or(0), at(w.stride), at(w.dilation));
            let reach = k.checked_sub(1).map(|k| k * d + 1);
            let (Some(reach), true) = (reach, s > 0 && d > 0) else {
                return Err(Error::value(op, "a window, stride or dilation is 0"));
            };
            if reach > n {
                return Err(Error::shape(
                    op,
                    format!("a window of {reach} in {n} elements (padding included)"),
                ));
            }
            outs.push((n - reach) / s + 1);
        }
        let whole = rank + spatial;
        let mut view = View { offset: vec![0; rank], coef: vec![vec![0; whole]; rank] };
        for (a, row) in view.coef.iter_mut().enumerate() {
            if let Some(c) = row.get_mut(a) {
                let i = a.checked_sub(lead);
                *c = i.and_then(|i| w.stride.get(i)).map_or(1, |s| *s as i64);
            }
            if let Some(i) = a.checked_sub(lead)
                && let Some(c) = row.get_mut(rank + i)
            {
                *c = w.dilation.get(i).map_or(1, |d| *d as i64);
            }
        }
        let head = x.shape().get(..lead).unwrap_or_default();
        x.viewed(&view, &[head, &outs, kernel].concat())
    }

    /// Cross-correlation of (n, channels, spatial…) with a weight (out, channels / groups, …).
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] where they do not fit.
    pub fn conv(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        windows: &Windows<'_>,
        groups: usize,
    ) -> Result<Tensor> {
        const OP: &str = "conv";
        Device::same(OP, self.device(), weight.device())?;
        let ([n, c, ..], [out, each, kernel @ ..]) = (self.shape(), weight.shape()) else {
            return Err(Error::shape(OP, "takes (n, channels, …) and (out, channels, …)"));
        };
        let fits = groups > 0 && each * groups == *c && out % groups == 0;
        if !fits || self.rank() != weight.rank() {
            return Err(Error::shape(
                OP,
                format!(
                    "{} with a weight of {} in {groups} groups",
                    show(self.shape()),
                    show(weight.shape())
                ),
            ));
        }
        let spatial = kernel.len();
        let x = self.windows(OP, kernel, windows, Scalar::Int(0))?;
        let outs = x.shape().get(2..2 + spatial).unwrap_or_default().to_vec();
        let (places, taps) = (outs.iter().product::<usize>(), kernel.iter().product::<usize>());
        // (n, groups, channels, outs…, taps…) → (n, groups, channels taps, outs)
        let split = [&[*n, groups, *each], &outs[..], kernel].concat();
        let order: Vec<i64> = [0, 1, 2]
            .into_iter()
            .chain((3 + spatial..3 + 2 * spatial).map(|a| a as i64))
            .chain((3..3 + spatial).map(|a| a as i64))
            .collect();
        let columns =
            x.shaped(&split)?.permute(&order)?.shaped(&[*n, groups, each * taps, places])?;
        let w = weight.shaped(&[groups, out / groups, each * taps])?;
        let y = w.matmul(&columns)?.shaped(&[&[*n, *out], &outs[..]].concat())?;
        match bias {
            Some(b) => y.add(&b.reshape(&channel_shape(*out, y.rank()))?),
            None => Ok(y),
        }
    }

    /// The transposed convolution of (n, channels, spatial…) with a weight (channels, out / groups,
    /// …): what the gradient of [`Tensor::conv`] is to its input.
    ///
    /// # Errors
    /// As [`Tensor::conv`].
    pub fn conv_transpose(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        windows: &Windows<'_>,
        output_padding: &[usize],
        groups: usize,
    ) -> Result<Tensor> {
        const OP: &str = "conv_transpose";
        let ([n, c, sizes @ ..], [c2, each, kernel @ ..]) = (self.shape(), weight.shape()) else {
            return Err(Error::shape(OP, "takes (n, channels, …) and (channels, out, …)"));
        };
        let spatial = kernel.len();
        let lists = [windows.stride, windows.padding, windows.dilation, output_padding];
        let fits = groups > 0 && c == c2 && c % groups == 0 && sizes.len() == spatial;
        if !fits || lists.iter().any(|l| l.len() != spatial) {
            return Err(Error::shape(
                OP,
                format!("{} with a weight of {}", show(self.shape()), show(weight.shape())),
            ));
        }
        if windows.stride.contains(&0) || windows.dilation.contains(&0) || kernel.contains(&0) {
            return Err(Error::value(OP, "a window, stride or dilation is 0"));
        }
        // Elements a stride apart, the window's reach around them; then an ordinary convolution
        // with the window turned.
        let mut wide = vec![*n, *c];
        let (mut start, mut step) = (vec![0i64; 2], vec![1i64; 2]);
        let mut crop = Vec::new();
        for (i, (&m, &k)) in sizes.iter().zip(kernel).enumerate() {
            let at = |l: &[usize]| l.get(i).copied().unwrap_or(0);
            let (s, p, d) = (at(windows.stride), at(windows.padding), at(windows.dilation));
            let reach = d * (k - 1);
            wide.push((m.max(1) - 1) * s + 1 + 2 * reach + at(output_padding));
            start.push(reach as i64);
            step.push(s as i64);
            crop.push(p);
        }
        let zero = Tensor::full(&wide, Scalar::Int(0), self.dtype(), self.device())?;
        let spread = match self.numel() {
            0 => zero,
            _ => {
                zero.assembled(&[crate::node::Region { start, step }], std::slice::from_ref(self))?
            }
        };
        let turned: Vec<i64> = (2..weight.rank() as i64).collect();
        // (groups, c / groups, out, …) → (groups out, c / groups, …)
        let w = weight
            .flip(Some(&turned))?
            .shaped(&[&[groups, c / groups, *each], kernel].concat())?
            .swap(1, 2)?
            .shaped(&[&[groups * each, c / groups], kernel].concat())?;
        let (ones, zeros) = (vec![1; spatial], vec![0; spatial]);
        let inner = Windows { stride: &ones, padding: &zeros, dilation: windows.dilation };
        let mut y = spread.conv(&w, bias, &inner, groups)?;
        for (i, p) in crop.into_iter().enumerate() {
            let n = y.shape().get(2 + i).copied().unwrap_or(0);
            let left = n.checked_sub(2 * p).ok_or_else(|| {
                Error::shape(OP, format!("padding {p} takes all of {n} elements"))
            })?;
            y = y.slice_axis(2 + i, p as i64, 1, left)?;
        }
        Ok(y)
    }

    /// The greatest element of each window of the last axes.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn max_pool(&self, kernel: &[usize], windows: &Windows<'_>) -> Result<Tensor> {
        let least = match self.dtype() {
            d if d.is_float() => Scalar::Float(f64::NEG_INFINITY),
            d => Scalar::Int(d.range().0),
        };
        let at: Vec<i64> = (1..=kernel.len() as i64).map(|a| -a).collect();
        self.windows("max_pool", kernel, windows, least)?.max(Some(&at), false)
    }

    /// The mean of each window of the last axes, padded zeros counted as torch does by default.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn avg_pool(
        &self,
        kernel: &[usize],
        windows: &Windows<'_>,
        count_padding: bool,
    ) -> Result<Tensor> {
        let x = self.floating("avg_pool")?;
        let at: Vec<i64> = (1..=kernel.len() as i64).map(|a| -a).collect();
        let all = x.windows("avg_pool", kernel, windows, Scalar::Int(0))?;
        if count_padding || windows.padding.iter().all(|p| *p == 0) {
            return all.mean(Some(&at), false);
        }
        let one = x.number(1.0)?.broadcast_to(x.shape())?;
        let n = one.windows("avg_pool", kernel, windows, Scalar::Int(0))?;
        all.sum(Some(&at), false, None)?.div(&n.sum(Some(&at), false, None)?)
    }

    /// The last axes averaged to these sizes.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn adaptive_avg_pool(&self, sizes: &[usize]) -> Result<Tensor> {
        const OP: &str = "adaptive_avg_pool";
        let mut x = self.floating(OP)?;
        let lead = x.rank().checked_sub(sizes.len()).ok_or_else(|| {
            Error::shape(OP, format!("{} to {}", show(self.shape()), show(sizes)))
        })?;
        for (i, &out) in sizes.iter().enumerate() {
            let (at, n) = (lead + i, x.shape().get(lead + i).copied().unwrap_or(0));
            let parts: Vec<Tensor> = (0..out)
                .map(|o| {
                    let (a, b) = (o * n / out, ((o + 1) * n).div_ceil(out));
                    x.slice_axis(at, a as i64, 1, b - a)?.mean(Some(&[at as i64]), true)
                })
                .collect::<Result<_>>()?;
            x = match parts.len() {
                0 => x.slice_axis(at, 0, 1, 0)?,
                _ => Tensor::concat(&parts, at as i64)?,
            };
        }
        Ok(x)
    }

    /// softmax(q kᵀ × scale + mask) v, over (…, rows, width). A bool mask says what counts.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] where they do not fit.
    pub fn attention(
        &self,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Tensor> {
        const OP: &str = "scaled_dot_product_attention";
        if self.rank() < 2 || k.rank() < 2 || v.rank() < 2 {
            return Err(Error::shape(OP, "takes (…, rows, width)"));
        }
        let width = self.shape().last().copied().unwrap_or(1);
        let scale = scale.unwrap_or(1.0 / (width as f64).sqrt());
        let mut scores = self.matmul(&k.matrix_transpose()?)?;
        scores = scores.mul(&scores.number(scale)?)?;
        let low = scores.number(f64::NEG_INFINITY)?;
        if let Some(mask) = mask {
            scores = match mask.is_bool() {
                true => mask.select(&scores, &low)?,
                false => scores.add(mask)?,
            };
        }
        if causal {
            let [.., rows, columns] = *scores.shape() else {
                return Err(Error::Inside("scores without rows"));
            };
            let seen =
                Tensor::full(&[rows, columns], Scalar::Bool(true), DType::Bool, self.device())?;
            scores = seen.triangle(false, 0)?.select(&scores, &low)?;
        }
        scores.softmax(-1)?.matmul(v)
    }

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

    /// -(t log p + (1 - t) log(1 - p)) of probabilities, logarithms at least -100.
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

    /// -x at the target class of log-probabilities (n, classes, …); `ignore` counts for nothing.
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
            return Err(Error::takes(OP, "classes as integers", target.dtype()));
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

    /// Elements of a list by an index of any shape.
    fn embedding_row(&self, index: &Tensor) -> Result<Tensor> {
        let flat = index.shaped(&[index.numel()])?;
        self.take(&flat, 0)?.shaped(index.shape())
    }

    /// The loss of scores (n, classes, …): classes as integers, or probabilities of each.
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

/// (1, channels, 1, …), or (channels,) of one axis.
fn channel_shape(channels: usize, rank: usize) -> Vec<i64> {
    let mut shape = vec![1; rank.max(1)];
    let at = usize::from(rank > 1);
    if let Some(n) = shape.get_mut(at) {
        *n = channels as i64;
    }
    shape
}
