//! Memory of a GPU that is shared with other libraries, without copies: DLPack and
//! `__cuda_array_interface__`.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::eval;
use crate::gpu::Gpu;
use crate::memory::{Buffer, Keep, Store};
use crate::node::Node;
use crate::shape::{count, numel};
use crate::tensor::Tensor;
use std::sync::Arc;

/// Elements in memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuView {
    /// Address of the first element.
    pub address: u64,
    /// Strides in elements.
    pub strides: Vec<i64>,
    /// The driver's handle of the stream of kjit's kernels.
    pub stream: usize,
}

/// Memory of another library. It is released after the kernels that read it have finished.
struct BorrowedMemory {
    gpu: Arc<Gpu>,
    keep: Option<Keep>,
}

impl Drop for BorrowedMemory {
    fn drop(&mut self) {
        // An error means that the device is lost; the next call reports it.
        let _ = self.gpu.wait_for_all();
        drop(self.keep.take());
    }
}

impl Tensor {
    /// The memory of a real tensor on a GPU, after it has been computed and its kernels have ended.
    /// The memory lives as long as a clone of this tensor.
    ///
    /// # Errors
    /// Errors of the computation; [`Error::Value`] for a complex tensor or one on the CPU.
    pub fn gpu_view(&self) -> Result<GpuView> {
        if self.im.is_some() {
            return Err(Error::value("gpu_view", "a complex tensor is stored as two tensors"));
        }
        let buffer = eval::value(&self.re)?;
        let Store::Gpu(gpu, memory) = &buffer.store else {
            return Err(Error::value("gpu_view", "the tensor is on the CPU"));
        };
        gpu.synchronize()?;
        let from = buffer.offset * self.re.dtype.size() as i64;
        Ok(GpuView {
            address: memory.address().wrapping_add_signed(from),
            strides: buffer.strides.clone(),
            stream: gpu.stream_handle(),
        })
    }

    /// A complex GPU tensor whose parts are alternate floats of one memory: this one if they are
    /// already, otherwise a copy. And the place of its elements, after its kernels have ended.
    pub(crate) fn pairs_on_gpu(&self) -> Result<(Tensor, GpuView)> {
        const WRONG: Error = Error::Inside("pairs of a tensor that is not complex on a GPU");
        let (im, rank) = (self.im.as_ref().ok_or(WRONG)?, self.rank());
        let (a, b) = (eval::value(&self.re)?, eval::value(im)?);
        let alternate = match (&a.store, &b.store) {
            (Store::Gpu(_, x), Store::Gpu(_, y)) => {
                let even = a.strides.iter().all(|s| s % 2 == 0) && a.offset % 2 == 0;
                even && x.address() == y.address()
                    && a.strides == b.strides
                    && a.offset + 1 == b.offset
            }
            _ => false,
        };
        let whole = match alternate {
            true => self.clone(),
            false => {
                let shape = [self.shape(), &[1]].concat();
                let part = |node: &Arc<Node>| Tensor::real(Arc::clone(node)).shaped(&shape);
                let both = Tensor::concat(&[part(&self.re)?, part(im)?], rank as i64)?;
                let both = eval::value(&eval::packed(&both.re)?)?;
                let strides = both.strides.get(..rank).unwrap_or_default();
                let part = |i: i64| {
                    let (store, strides) = (both.store.clone(), strides.to_vec());
                    let buffer = Buffer { store, offset: both.offset + i, strides };
                    Node::leaf(self.re.dtype, self.shape().to_vec(), buffer)
                };
                Tensor { re: part(0), im: Some(part(1)) }
            }
        };
        let buffer = eval::value(&whole.re)?;
        let Store::Gpu(gpu, memory) = &buffer.store else { return Err(WRONG) };
        gpu.synchronize()?;
        let from = buffer.offset * self.re.dtype.size() as i64;
        let view = GpuView {
            address: memory.address().wrapping_add_signed(from),
            strides: buffer.strides.iter().map(|s| s / 2).collect(),
            stream: gpu.stream_handle(),
        };
        Ok((whole, view))
    }

    /// A tensor over memory of another library on a GPU, without a copy; complex elements are
    /// adjacent pairs. `offset` is the position of the first element after `address`, in elements,
    /// as are the strides.
    ///
    /// # Errors
    /// [`Error::Shape`] if an element is outside the memory; [`Error::Value`] if the device is the
    /// CPU.
    ///
    /// # Safety
    /// `address` has `bytes` readable bytes on the device, aligned to the dtype, until `keep` is
    /// dropped, and nothing writes to them during that time. Work that writes them has ended, or
    /// the stream of [`Device::stream_handle`] waits for it.
    #[allow(unsafe_code, reason = "memory of another library")]
    #[allow(clippy::too_many_arguments, reason = "the fields of DLPack's struct")]
    pub unsafe fn borrowed_on_gpu(
        address: u64,
        bytes: usize,
        keep: Keep,
        dtype: DType,
        shape: &[usize],
        strides: &[i64],
        offset: i64,
        device: &Device,
    ) -> Result<Tensor> {
        let Device::Gpu(gpu) = device else {
            return Err(Error::value(
                "from_dlpack",
                "GPU memory cannot become a tensor on the device cpu",
            ));
        };
        count("from_dlpack", shape)?;
        if !crate::tensor::inside(shape, strides, offset, (bytes / dtype.size()) as i64) {
            return Err(Error::shape("from_dlpack", "the strides exceed the memory"));
        }
        if numel(shape) == 0 {
            let empty = || -> Result<Arc<Node>> {
                let buffer = Buffer::packed(gpu.store(0)?, shape);
                Ok(Node::leaf(dtype.part(), shape.to_vec(), buffer))
            };
            let im = if dtype.is_complex() { Some(empty()?) } else { None };
            return Ok(Tensor { re: empty()?, im });
        }
        gpu.order_others()?;
        let lent = Box::new(BorrowedMemory { gpu: Arc::clone(gpu), keep: Some(keep) });
        // SAFETY: this function's caller guarantees the memory until `keep` is dropped, which
        // happens after the work of the device's streams has ended.
        let memory = unsafe { gpu.foreign(address, bytes, lent) };
        let store = Store::Gpu(Arc::clone(gpu), memory);
        let step = if dtype.is_complex() { 2 } else { 1 };
        let part = |i: i64| {
            let strides = strides.iter().map(|s| s * step).collect();
            let buffer = Buffer { store: store.clone(), offset: offset * step + i, strides };
            Node::leaf(dtype.part(), shape.to_vec(), buffer)
        };
        Ok(Tensor { re: part(0), im: dtype.is_complex().then(|| part(1)) })
    }

    /// Its elements in new memory of its device, row-major.
    ///
    /// # Errors
    /// Errors of the computation; out of memory.
    pub fn duplicate(&self) -> Result<Tensor> {
        self.parts(|node| match &node.device {
            Device::Gpu(gpu) => gpu.duplicate(node),
            Device::Cpu => {
                let bytes = Tensor::real(Arc::clone(node)).to_bytes()?;
                Ok(Tensor::from_bytes(&bytes, node.dtype, &node.shape, &Device::Cpu)?.re)
            }
        })
    }
}

impl Device {
    /// The driver's handle of the stream in which this thread's kernels run; 0 for the CPU.
    #[must_use]
    pub fn stream_handle(&self) -> usize {
        match self {
            Device::Cpu => 0,
            Device::Gpu(gpu) => gpu.stream_handle(),
        }
    }
}

impl Gpu {
    fn stream_handle(&self) -> usize {
        self.lane().stream.handle()
    }

    /// # Safety
    /// As [`kjit_engine::Device::foreign_buffer`].
    #[allow(unsafe_code, reason = "memory of another library")]
    unsafe fn foreign(
        &self,
        address: u64,
        bytes: usize,
        keep: Keep,
    ) -> kjit_engine::DeviceBuffer<u8> {
        // SAFETY: this function's caller guarantees it.
        unsafe { self.stream().device().foreign_buffer(address, bytes, keep) }
    }
}
