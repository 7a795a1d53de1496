//! Tensors: immutable handles on nodes. A complex tensor is a pair of real nodes.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::eval;
use crate::expr::{self, V};
use crate::memory::{Buffer, HostMemory, Keep, Store};
use crate::node::Node;
use crate::scalar::Scalar;
use crate::shape::{count, numel};
use std::sync::Arc;

/// An array on a device: dtype, shape and definition. It is computed, with everything that it
/// depends on, when its elements are first read.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(crate) re: Arc<Node>,
    pub(crate) im: Option<Arc<Node>>,
}

/// Elements in host memory: bytes, position of the first element, strides.
pub struct HostView<'a> {
    /// The memory.
    pub bytes: &'a [u8],
    /// Position of the first element, in elements.
    pub offset: i64,
    /// Strides in elements.
    pub strides: Vec<i64>,
}

impl Tensor {
    pub(crate) fn real(node: Arc<Node>) -> Tensor {
        Tensor { re: node, im: None }
    }

    pub(crate) fn from_v(v: V) -> Result<Tensor> {
        v.0.map(Tensor::real)
    }

    /// A tensor of a real and an imaginary part.
    pub(crate) fn pair(re: V, im: V) -> Result<Tensor> {
        let (re, im) = (re.0?, im.0?);
        let shape = crate::shape::broadcast("complex", &re.shape, &im.shape)?;
        Ok(Tensor { re: expr::expand(&re, &shape)?, im: Some(expr::expand(&im, &shape)?) })
    }

    /// A complex tensor of two real tensors of one dtype, which broadcast.
    ///
    /// # Errors
    /// [`Error::DType`] unless both are f32 or both f64; [`Error::Shape`].
    pub fn pair_of(re: &Tensor, im: &Tensor) -> Result<Tensor> {
        let dtype = re.dtype();
        if dtype != im.dtype() || !matches!(dtype, DType::F32 | DType::F64) {
            let why = format!(
                "the parts have the dtypes {dtype} and {}; both must be float32 or both float64",
                im.dtype()
            );
            return Err(Error::dtype("complex", why));
        }
        Tensor::pair(re.v(), im.v())
    }

    pub(crate) fn v(&self) -> V {
        V::of(&self.re)
    }

    /// The imaginary part; zeros for a real tensor.
    pub(crate) fn vi(&self) -> V {
        self.im.as_ref().map_or_else(|| self.v().like(0.0), V::of)
    }

    /// Applies a function to each part.
    pub(crate) fn parts(&self, f: impl Fn(&Arc<Node>) -> Result<Arc<Node>>) -> Result<Tensor> {
        Ok(Tensor { re: f(&self.re)?, im: self.im.as_ref().map(f).transpose()? })
    }

    /// The dtype of its elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        if self.im.is_some() { self.re.dtype.complex() } else { self.re.dtype }
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.re.shape
    }

    /// Number of axes.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.re.shape.len()
    }

    /// Number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.re.numel()
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.re.device
    }

    /// A tensor with one value in every element.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has too many elements to address.
    pub fn full(shape: &[usize], value: Scalar, dtype: DType, device: &Device) -> Result<Tensor> {
        count("full", shape)?;
        let (re, im) = value.parts();
        let part = |v| expr::constant(v, dtype.part(), shape, device);
        let im = if dtype.is_complex() { Some(part(im)?) } else { None };
        Ok(Tensor { re: part(re)?, im })
    }

    /// A scalar as an operand of this tensor, with its dtype if possible.
    ///
    /// # Errors
    /// As [`Scalar::beside`].
    pub fn beside(&self, op: &'static str, value: Scalar) -> Result<Tensor> {
        Tensor::full(&[], value, value.beside(op, self.dtype())?, self.device())
    }

    /// A tensor from row-major host bytes, which are copied; complex elements are adjacent pairs.
    ///
    /// # Errors
    /// [`Error::Shape`] if the number of bytes does not match the shape.
    pub fn from_bytes(
        bytes: &[u8],
        dtype: DType,
        shape: &[usize],
        device: &Device,
    ) -> Result<Tensor> {
        let n = count("from_bytes", shape)?;
        if bytes.len() != n * dtype.size() {
            return Err(Error::shape(
                "from_bytes",
                format!(
                    "got {} bytes, but {} of {dtype} needs {}",
                    bytes.len(),
                    crate::shape::show(shape),
                    n * dtype.size()
                ),
            ));
        }
        let mut words = HostMemory::words(bytes.len())?;
        let to = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
        if let Some(to) = to.get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        let memory = HostMemory::own(words, bytes.len());
        let host = Buffer::packed(Store::Host(memory), shape);
        Tensor::over(host, dtype, shape).to_device(device)
    }

    /// A tensor over borrowed memory, without a copy.
    ///
    /// # Errors
    /// [`Error::Shape`] if an element is outside the memory.
    ///
    /// # Safety
    /// `address` has `bytes` readable bytes, aligned to the dtype (complex: to its real part),
    /// until `keep` is dropped, and nothing writes to them during that time.
    #[allow(unsafe_code, reason = "memory of another library")]
    pub unsafe fn borrowed(
        address: usize,
        bytes: usize,
        keep: Keep,
        dtype: DType,
        shape: &[usize],
        strides: &[i64],
        offset: i64,
    ) -> Result<Tensor> {
        count("from_dlpack", shape)?;
        let places = (bytes / dtype.size()) as i64;
        if !inside(shape, strides, offset, places) {
            return Err(Error::shape("from_dlpack", "the strides exceed the memory"));
        }
        // SAFETY: this function's caller guarantees it.
        let memory = unsafe { HostMemory::borrowed(address, bytes, keep) };
        let buffer = Buffer { store: Store::Host(memory), offset, strides: strides.to_vec() };
        Ok(Tensor::over(buffer, dtype, shape))
    }

    /// A tensor over host memory. Real and imaginary parts of complex elements alternate.
    fn over(buffer: Buffer, dtype: DType, shape: &[usize]) -> Tensor {
        if !dtype.is_complex() {
            return Tensor::real(Node::leaf(dtype, shape.to_vec(), buffer));
        }
        let part = |i: i64| {
            let strides = buffer.strides.iter().map(|s| s * 2).collect();
            let part =
                Buffer { store: buffer.store.clone(), offset: buffer.offset * 2 + i, strides };
            Node::leaf(dtype.part(), shape.to_vec(), part)
        };
        Tensor { re: part(0), im: Some(part(1)) }
    }

    /// Computes the tensor and everything that it depends on. A second call does nothing.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn eval(&self) -> Result<()> {
        eval::force(&self.re)?;
        self.im.as_ref().map_or(Ok(()), eval::force)
    }

    /// Calls `f` with the elements of a real tensor on the CPU, without a copy.
    ///
    /// # Errors
    /// Errors of the computation; [`Error::Value`] for a complex tensor or one on a GPU.
    pub fn host<T>(&self, f: impl FnOnce(HostView<'_>) -> T) -> Result<T> {
        if self.im.is_some() {
            return Err(Error::value(
                "host",
                "a complex tensor is stored as two tensors: to_bytes()",
            ));
        }
        let buffer = eval::value(&self.re)?;
        let Store::Host(memory) = &buffer.store else {
            return Err(Error::value("host", format!("the tensor is on {}", self.device())));
        };
        let (bytes, offset) = (memory.bytes(), buffer.offset);
        Ok(f(HostView { bytes, offset, strides: buffer.strides.clone() }))
    }

    /// A complex CPU tensor that stores its pairs contiguously, and `f`'s result for that memory.
    ///
    /// # Errors
    /// Errors of the computation; [`Error::Value`] for a real tensor.
    pub fn interleaved<T>(&self, f: impl FnOnce(HostView<'_>) -> T) -> Result<(Tensor, T)> {
        let Some(im) = &self.im else {
            return Err(Error::value("interleaved", "needs a complex tensor"));
        };
        let (a, b) = (eval::value(&self.re)?, eval::value(im)?);
        let one = match (&a.store, &b.store) {
            (Store::Host(x), Store::Host(y)) => {
                let halved = a.strides.iter().all(|s| s % 2 == 0) && a.offset % 2 == 0;
                Arc::ptr_eq(x, y) && a.strides == b.strides && a.offset + 1 == b.offset && halved
            }
            _ => false,
        };
        let t = match one {
            true => self.clone(),
            false => {
                Tensor::from_bytes(&self.to_bytes()?, self.dtype(), self.shape(), &Device::Cpu)?
            }
        };
        let buffer = eval::value(&t.re)?;
        let strides = buffer.strides.iter().map(|s| s / 2).collect();
        let view = HostView { bytes: buffer.host()?, offset: buffer.offset / 2, strides };
        let found = f(view);
        Ok((t, found))
    }

    /// Its elements in row-major order, as host bytes; complex elements as pairs.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let part = |node: &Arc<Node>| -> Result<Vec<u8>> {
            if node.numel() == 0 {
                return eval::force(node).map(|()| Vec::new());
            }
            let packed = eval::packed(node)?;
            let buffer = eval::value(&packed)?;
            let size = node.dtype.size();
            let (from, len) = (buffer.offset as usize * size, node.numel() * size);
            match &buffer.store {
                Store::Host(memory) => {
                    let bytes = memory.bytes().get(from..from + len);
                    Ok(bytes.ok_or(Error::Inside("a tensor exceeds its memory"))?.to_vec())
                }
                Store::Gpu(gpu, memory) => gpu.read(memory, from, len),
            }
        };
        let re = part(&self.re)?;
        let Some(im) = &self.im else { return Ok(re) };
        let (im, size) = (part(im)?, self.re.dtype.size());
        Ok(re.chunks(size).zip(im.chunks(size)).flat_map(|(a, b)| [a, b].concat()).collect())
    }

    /// Its elements in row-major order.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn to_scalars(&self) -> Result<Vec<Scalar>> {
        let (bytes, dtype) = (self.to_bytes()?, self.dtype());
        Ok(bytes.chunks_exact(dtype.size()).map(|b| scalar(b, dtype)).collect())
    }

    /// The element of a tensor with one element.
    ///
    /// # Errors
    /// [`Error::Shape`] if it has none or several.
    pub fn item(&self) -> Result<Scalar> {
        match self.to_scalars()?.as_slice() {
            [one] => Ok(*one),
            _ => Err(Error::shape(
                "item",
                format!(
                    "needs exactly one element, got shape {}",
                    crate::shape::show(self.shape())
                ),
            )),
        }
    }

    /// Copies the elements to a device.
    ///
    /// # Errors
    /// [`Error::Engine`]: out of memory, a fault.
    pub fn to_device(&self, device: &Device) -> Result<Tensor> {
        if self.device() == device {
            return Ok(self.clone());
        }
        self.parts(|node| {
            let bytes = Tensor::real(Arc::clone(node)).to_bytes()?;
            let store = match device {
                Device::Cpu => {
                    let mut words = HostMemory::words(bytes.len())?;
                    let to = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
                    to.iter_mut().zip(&bytes).for_each(|(t, b)| *t = *b);
                    Store::Host(HostMemory::own(words, bytes.len()))
                }
                Device::Gpu(gpu) => gpu.write(&bytes)?,
            };
            let buffer = Buffer::packed(store, &node.shape);
            Ok(Node::leaf(node.dtype, node.shape.clone(), buffer))
        })
    }

    /// A computed copy in memory of its own.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn copy(&self) -> Result<Tensor> {
        // Tensors do not change, so a second handle is a copy. A view would keep all of its base
        // alive.
        let copy = self.parts(eval::packed)?;
        Ok(copy)
    }

    pub(crate) fn is_bool(&self) -> bool {
        self.dtype() == DType::Bool
    }
}

/// Whether every element is within memory of `places` elements.
pub(crate) fn inside(shape: &[usize], strides: &[i64], offset: i64, places: i64) -> bool {
    let reach = |f: fn(i64, i64) -> i64| -> Option<i64> {
        shape.iter().zip(strides).try_fold(offset, |at, (&n, &s)| {
            at.checked_add(f(s, 0).checked_mul(n.max(1) as i64 - 1)?)
        })
    };
    let held = reach(Ord::min).is_some_and(|low| low >= 0)
        && reach(Ord::max).is_some_and(|high| high < places);
    strides.len() == shape.len() && (held || numel(shape) == 0)
}

fn scalar(b: &[u8], dtype: DType) -> Scalar {
    macro_rules! read {
        ($t:ty) => {
            <$t>::from_le_bytes(b.try_into().unwrap_or_default())
        };
    }
    match dtype {
        DType::Bool => Scalar::Bool(b.first().is_some_and(|v| *v != 0)),
        DType::I8 => Scalar::Int(read!(i8).into()),
        DType::I16 => Scalar::Int(read!(i16).into()),
        DType::I32 => Scalar::Int(read!(i32).into()),
        DType::I64 => Scalar::Int(read!(i64).into()),
        DType::U8 => Scalar::Int(read!(u8).into()),
        DType::U16 => Scalar::Int(read!(u16).into()),
        DType::U32 => Scalar::Int(read!(u32).into()),
        DType::U64 => Scalar::Int(read!(u64).into()),
        DType::F16 => Scalar::Float(half::f16::from_bits(read!(u16)).to_f64()),
        DType::BF16 => Scalar::Float(half::bf16::from_bits(read!(u16)).to_f64()),
        DType::F32 => Scalar::Float(read!(f32).into()),
        DType::F64 => Scalar::Float(read!(f64)),
        DType::C64 | DType::C128 => {
            let (re, im) = b.split_at(b.len() / 2);
            let part = dtype.part();
            Scalar::Complex(scalar(re, part).float(), scalar(im, part).float())
        }
    }
}
