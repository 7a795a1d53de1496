//! Convolutions and pools: their windows are views, followed by a product or a fold.

use crate::contract::Axes;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::nn::channel_shape;
use crate::node::{Node, Op};
use crate::scalar::Scalar;
use crate::shape::show;
use crate::tensor::Tensor;
use crate::view::View;

/// From this number of multiplications on, copies with adjacent channels are faster: all reads then
/// have 16 bytes.
const WORTH_COPIES: usize = 1 << 26;

/// Windows along each spatial axis.
#[derive(Clone, Debug)]
pub struct Windows<'a> {
    /// Distance of two windows, in elements.
    pub stride: &'a [usize],
    /// Number of elements added on both sides.
    pub padding: &'a [usize],
    /// Distance of two elements in a window.
    pub dilation: &'a [usize],
}

impl Tensor {
    /// The windows of the last axes: (…, outs…, kernel…). A view without padding.
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
                format!("{} has too few axes for {spatial} window axes", show(self.shape())),
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
                return Err(Error::value(op, "window, stride and dilation must not be 0"));
            };
            if reach > n {
                return Err(Error::shape(
                    op,
                    format!(
                        "the window of {reach} elements is larger than the axis of {n} (padding included)"
                    ),
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
    /// [`Error::Shape`], [`Error::DType`], [`Error::Devices`] if they do not match.
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
            return Err(Error::shape(OP, "needs (n, channels, …) and a weight (out, channels, …)"));
        };
        let fits = groups > 0 && each * groups == *c && out % groups == 0;
        if !fits || self.rank() != weight.rank() {
            return Err(Error::shape(
                OP,
                format!(
                    "{} does not match a weight of {} with {groups} groups",
                    show(self.shape()),
                    show(weight.shape())
                ),
            ));
        }
        let spatial = kernel.len();
        if let (Device::Gpu(_), DType::F16 | DType::BF16 | DType::F32) =
            (self.device(), self.dtype())
            && self.dtype() == weight.dtype()
            && weight.numel() > 0
        {
            let y = self.contracted(weight, windows, groups)?;
            return match bias {
                Some(b) => y.add(&b.reshape(&channel_shape(*out, y.rank()))?),
                None => Ok(y),
            };
        }
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

    /// A zero-padded copy of (lead…, channels, spatial…), with `lead` axes before the spatial ones.
    /// The channels of a position are adjacent.
    fn channels_last(&self, lead: usize, padding: &[usize]) -> Result<Tensor> {
        let channels = lead.saturating_sub(1);
        let rank = self.rank();
        let outer = (0..channels).map(|a| a as i64);
        let places = (lead..rank).map(|a| a as i64);
        let order: Vec<i64> = outer.chain(places).chain([channels as i64]).collect();
        let turned = self.permute(&order)?;
        let mut shape = turned.shape().to_vec();
        let mut start = vec![0; rank];
        for (i, p) in padding.iter().enumerate() {
            let (Some(n), Some(s)) = (shape.get_mut(channels + i), start.get_mut(channels + i))
            else {
                continue;
            };
            *s = *p as i64;
            *n = p.checked_mul(2).and_then(|p| n.checked_add(p)).unwrap_or(usize::MAX);
        }
        crate::shape::count("conv", &shape)?;
        let zeros = Tensor::full(&shape, Scalar::Int(0), self.dtype(), self.device())?;
        let region = crate::node::Region { start, step: vec![1; rank] };
        let copy = zeros.assembled(&[region], std::slice::from_ref(&turned))?;
        let back: Vec<i64> =
            (0..channels).chain([rank - 1]).chain(channels..rank - 1).map(|a| a as i64).collect();
        copy.permute(&back)
    }

    /// A convolution as one product over channels and taps. The right side is a view of the
    /// windows, so they are not copied. The caller has checked the shapes.
    fn contracted(&self, weight: &Tensor, windows: &Windows<'_>, groups: usize) -> Result<Tensor> {
        let ([n, c, sizes @ ..], [out, each, kernel @ ..]) = (self.shape(), weight.shape()) else {
            return Err(Error::Inside("a convolution without channels"));
        };
        let (n, c, out, each, spatial) = (*n, *c, *out, *each, kernel.len());
        let split = [&[n, groups, c / groups.max(1)], sizes].concat();
        let spread = self.shaped(&split)?;
        let products = weight.numel().saturating_mul(n).saturating_mul(sizes.iter().product());
        let wide = 16 / self.dtype().size();
        // A kernel with one tap reads adjacent elements of the image.
        let taps = kernel.iter().product::<usize>() > 1;
        let last = taps && each % wide == 0 && products >= WORTH_COPIES;
        let (x, windows) = match last {
            false => (spread, windows.clone()),
            true => (
                spread.channels_last(3, windows.padding)?,
                Windows { padding: &vec![0; spatial], ..windows.clone() },
            ),
        };
        let x = x.windows("conv", kernel, &windows, Scalar::Int(0))?;
        let outs = x.shape().get(3..3 + spatial).unwrap_or_default().to_vec();
        // (n, groups, channels, outs…, taps…) → (n, groups, outs…, channels, taps…), or with the
        // channels after the taps.
        let order = |lead: usize| -> Vec<i64> {
            let taps = (lead + 1..lead + 1 + spatial).map(|a| a as i64);
            match last {
                true => taps.chain([lead as i64]).collect(),
                false => [lead as i64].into_iter().chain(taps).collect(),
            }
        };
        let outer = [0, 1].into_iter().chain((3..3 + spatial).map(|a| a as i64));
        let deep =
            order(2 + spatial).into_iter().map(|a| if a == 2 + spatial as i64 { 2 } else { a });
        let x = x.permute(&outer.chain(deep).collect::<Vec<_>>())?;
        let w = weight.shaped(&[&[1, groups, out / groups.max(1), each], kernel].concat())?;
        let w = match last {
            true => w.channels_last(4, &vec![0; spatial])?,
            false => w,
        };
        let w = w.permute(&[0, 1, 2].into_iter().chain(order(3)).collect::<Vec<_>>())?;
        let w = w.broadcast_to(&[&[n], w.shape().get(1..).unwrap_or_default()].concat())?;
        let axes = Axes { batch: 2, rows: 1, cols: spatial, depth: 1 + spatial };
        let shape = [&[n, groups, out / groups.max(1)], &outs[..]].concat();
        let inputs = vec![w.re.clone(), x.re.clone()];
        let y = Node::new(Op::Contract(axes), inputs, self.dtype(), shape, self.device())?;
        Tensor::real(y).shaped(&[&[n, out], &outs[..]].concat())
    }

    /// The transposed convolution of (n, channels, spatial…) with a weight (channels, out / groups,
    /// …): the gradient of [`Tensor::conv`] with respect to its input.
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
            return Err(Error::shape(OP, "needs (n, channels, …) and a weight (channels, out, …)"));
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
            return Err(Error::value(OP, "window, stride and dilation must not be 0"));
        }
        // Spreads the elements by the stride and pads them by the window's reach; then an ordinary
        // convolution with the flipped window.
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
            let left = n
                .checked_sub(2 * p)
                .ok_or_else(|| Error::shape(OP, format!("padding {p} removes all {n} elements")))?;
            y = y.slice_axis(2 + i, p as i64, 1, left)?;
        }
        Ok(y)
    }

    /// The greatest element in each window over the last axes.
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

    /// The mean in each window over the last axes. Padded zeros count, as is torch's default.
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

    /// Averages the last axes to these sizes.
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
}
