//! DLPack 1.0: the structs of its header `dlpack.h`, and tensors from and to them without copies.

#![allow(unsafe_code, reason = "DLPack is structs behind pointers")]

use crate::device::Device;
use crate::dtype::{DTYPES, DType, Kind};
use crate::error::{Error, Result};
use crate::memory::Keep;
use crate::tensor::{HostView, Tensor};
use std::ffi::c_void;

/// Device type of host memory.
pub const CPU: i32 = 1;
/// Device type of NVIDIA's memory.
pub const CUDA: i32 = 2;
/// Device type of AMD's memory.
pub const ROCM: i32 = 10;
/// Flag: the memory must not be written.
pub const READ_ONLY: u64 = 1;
/// Flag: the memory is a copy with a single owner.
pub const COPIED: u64 = 2;

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// Bits of an element.
    pub bits: u8,
    /// Always 1.
    pub lanes: u16,
}

/// `DLTensor`, with its `DLDevice` as two fields.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// Address of the memory.
    pub data: *mut c_void,
    /// [`CPU`], [`CUDA`], [`ROCM`].
    pub device_type: i32,
    /// Number of the device.
    pub device_id: i32,
    /// Number of axes.
    pub ndim: i32,
    /// Type of the elements.
    pub dtype: DLDataType,
    /// Sizes, `ndim` of them.
    pub shape: *mut i64,
    /// Strides in elements; null: row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`: before version 1.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Data of the producer.
    pub manager_ctx: *mut c_void,
    /// Frees this struct.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// The version's first number.
    pub major: u32,
    /// Its second number.
    pub minor: u32,
    /// Data of the producer.
    pub manager_ctx: *mut c_void,
    /// Frees this struct.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// [`READ_ONLY`], [`COPIED`].
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

/// The type of a dtype's elements.
#[must_use]
pub fn type_of(dtype: DType) -> DLDataType {
    let code = match dtype {
        DType::Bool => 6,
        DType::BF16 => 4,
        d if d.is_complex() => 5,
        d if d.is_float() => 2,
        d if d.kind() == Kind::Signed => 0,
        _ => 1,
    };
    DLDataType { code, bits: (dtype.size() * 8) as u8, lanes: 1 }
}

/// Type and number of a device.
#[must_use]
pub fn device_of(device: &Device) -> (i32, i32) {
    let label = device.label();
    let (word, number) = label.split_once(':').unwrap_or((label, "0"));
    let word = match word {
        "cuda" => CUDA,
        "rocm" => ROCM,
        _ => CPU,
    };
    (word, number.parse().unwrap_or(0))
}

/// The device of a type and number.
///
/// # Errors
/// [`Error::Value`] for a device type other than CPU, CUDA or ROCm; errors of opening the device.
pub fn device(device_type: i32, device_id: i32) -> Result<Device> {
    match device_type {
        CPU => Ok(Device::Cpu),
        CUDA => Device::open(&format!("cuda:{device_id}")),
        ROCM => Device::open(&format!("rocm:{device_id}")),
        other => Err(Error::value(
            "from_dlpack",
            format!("device type {other} is not supported: use CPU, CUDA or ROCm"),
        )),
    }
}

/// Row-major strides in elements.
fn packed(shape: &[usize]) -> Vec<i64> {
    let mut step = 1i64;
    let mut out = vec![0; shape.len()];
    for (s, n) in out.iter_mut().zip(shape).rev() {
        *s = step;
        step = step.saturating_mul((*n).max(1) as i64);
    }
    out
}

/// The owner of an exported tensor's memory.
struct ExportedOwner {
    _tensor: Tensor,
    _copy: Vec<u64>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// A tensor's memory for DLPack. [`Exported::versioned`] and [`Exported::old`] convert it to the
/// structs.
pub struct Exported {
    tensor: DLTensor,
    held: Box<ExportedOwner>,
    copied: bool,
    /// The tensor that owns the memory: a complex one stores pairs from now on.
    pub whole: Tensor,
}

// SAFETY: the pointers lead into `held` and into its tensor's memory, which any thread may read.
unsafe impl Send for Exported {}

impl Tensor {
    /// Computes the tensor and exports its memory, or the memory of a copy if `copy` is set.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn to_dlpack(&self, copy: bool) -> Result<Exported> {
        self.eval()?;
        let mut whole = self.clone();
        let (dtype, size) = (self.dtype(), self.dtype().size());
        let place = |h: HostView<'_>| {
            (h.bytes.as_ptr() as usize + h.offset.max(0) as usize * size, h.strides)
        };
        let (at, strides, kept) = if !matches!(self.device(), Device::Cpu) {
            if copy {
                whole = self.duplicate()?;
            }
            let view = match dtype.is_complex() {
                false => whole.gpu_view()?,
                true => {
                    let (pairs, view) = whole.pairs_on_gpu()?;
                    whole = pairs;
                    view
                }
            };
            (view.address as usize, view.strides, Vec::new())
        } else if copy {
            let bytes = self.to_bytes()?;
            // Words, so that elements of every dtype are aligned.
            let mut words = vec![0u64; bytes.len().div_ceil(8).max(1)];
            let to = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
            to.iter_mut().zip(&bytes).for_each(|(t, b)| *t = *b);
            (words.as_ptr() as usize, packed(self.shape()), words)
        } else if dtype.is_complex() {
            let (pairs, (at, strides)) = self.interleaved(place)?;
            whole = pairs;
            (at, strides, Vec::new())
        } else {
            let (at, strides) = self.host(place)?;
            (at, strides, Vec::new())
        };
        let shape = self.shape().iter().map(|n| *n as i64).collect();
        let mut held =
            Box::new(ExportedOwner { _tensor: whole.clone(), _copy: kept, shape, strides });
        let (device_type, device_id) = device_of(self.device());
        let tensor = DLTensor {
            data: at as *mut c_void,
            device_type,
            device_id,
            ndim: held.shape.len() as i32,
            dtype: type_of(dtype),
            shape: held.shape.as_mut_ptr(),
            strides: held.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Ok(Exported { tensor, held, copied: copy, whole })
    }

    /// A tensor over a DLPack tensor's memory, without a copy. `keep` is dropped after its last
    /// use.
    ///
    /// # Errors
    /// [`Error::DType`] for a type that kjit lacks; [`Error::Value`] for a device that it lacks,
    /// null or unaligned memory; [`Error::Shape`] for sizes below 0 or too large.
    ///
    /// # Safety
    /// The struct is filled in as DLPack demands, its memory stays valid until `keep` is dropped,
    /// and nothing writes to the memory during that time. On a GPU the work that filled it has
    /// ended, or the stream of [`Device::stream_handle`] waits for it.
    pub unsafe fn from_dltensor(given: &DLTensor, keep: Keep) -> Result<Tensor> {
        let op = "from_dlpack";
        let found = DTYPES.into_iter().find(|d| type_of(*d) == given.dtype);
        let Some(dtype) = found else {
            let DLDataType { code, bits, lanes } = given.dtype;
            let why =
                format!("type code {code} with {bits} bits and {lanes} lanes is not supported");
            return Err(Error::dtype(op, why));
        };
        let rank = usize::try_from(given.ndim).unwrap_or(usize::MAX);
        if rank > 64 || (rank > 0 && given.shape.is_null()) {
            return Err(Error::shape(
                op,
                format!("the number of axes ({}) is invalid, or the sizes are null", given.ndim),
            ));
        }
        let list = |at: *const i64| match rank {
            0 => Vec::new(),
            // SAFETY: the producer's lists have `ndim` entries.
            _ => unsafe { std::slice::from_raw_parts(at, rank).to_vec() },
        };
        let sizes = list(given.shape);
        let shape =
            sizes.iter().map(|n| usize::try_from(*n)).collect::<std::result::Result<_, _>>();
        let shape: Vec<usize> = shape.map_err(|_| Error::shape(op, "a size is negative"))?;
        let strides = if given.strides.is_null() { packed(&shape) } else { list(given.strides) };
        // The memory from the lowest to the highest address.
        let size = dtype.size() as i64;
        let reach = |f: fn(i64, i64) -> i64| {
            strides.iter().zip(&shape).try_fold(0i64, |sum, (s, n)| {
                sum.checked_add(f(s.checked_mul((*n).max(1) as i64 - 1)?, 0))
            })
        };
        let far = || Error::shape(op, "the strides exceed the address space");
        let low = reach(Ord::min).ok_or_else(far)?;
        let high = reach(Ord::max).ok_or_else(far)?;
        let empty = shape.contains(&0);
        let span = high.checked_sub(low).and_then(|n| n.checked_add(1)?.checked_mul(size));
        let bytes = if empty { 0 } else { span.ok_or_else(far)? };
        let start = (given.data as i64).wrapping_add(given.byte_offset as i64);
        let start = start.wrapping_add(low.checked_mul(size).ok_or_else(far)?);
        if !empty && (given.data.is_null() || !(start as usize).is_multiple_of(dtype.part().size()))
        {
            return Err(Error::value(op, "the memory is null or not aligned to its elements"));
        }
        let home = device(given.device_type, given.device_id)?;
        let (start, bytes) = (start as u64, bytes as usize);
        // SAFETY: this function's caller guarantees the memory.
        unsafe {
            match home {
                Device::Cpu => {
                    Tensor::borrowed(start as usize, bytes, keep, dtype, &shape, &strides, -low)
                }
                gpu => {
                    Tensor::borrowed_on_gpu(start, bytes, keep, dtype, &shape, &strides, -low, &gpu)
                }
            }
        }
    }
}

impl Exported {
    /// Whether a stride is negative, which some libraries do not support.
    #[must_use]
    pub fn has_negative_strides(&self) -> bool {
        self.held.strides.iter().any(|s| *s < 0)
    }

    /// The struct of version 1.0; its deleter frees it.
    #[must_use]
    pub fn versioned(self) -> Box<DLManagedTensorVersioned> {
        Box::new(DLManagedTensorVersioned {
            major: 1,
            minor: 0,
            manager_ctx: Box::into_raw(self.held).cast(),
            deleter: Some(delete_versioned),
            flags: if self.copied { COPIED } else { READ_ONLY },
            dl_tensor: self.tensor,
        })
    }

    /// The struct before version 1; its deleter frees it.
    #[must_use]
    pub fn old(self) -> Box<DLManagedTensor> {
        Box::new(DLManagedTensor {
            dl_tensor: self.tensor,
            manager_ctx: Box::into_raw(self.held).cast(),
            deleter: Some(delete_unversioned),
        })
    }
}

unsafe extern "C" fn delete_unversioned(managed: *mut DLManagedTensor) {
    // SAFETY: both boxes were created in `old`, and a consumer calls this once.
    unsafe {
        drop(Box::from_raw((*managed).manager_ctx.cast::<ExportedOwner>()));
        drop(Box::from_raw(managed));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: both boxes were created in `versioned`, and a consumer calls this once.
    unsafe {
        drop(Box::from_raw((*managed).manager_ctx.cast::<ExportedOwner>()));
        drop(Box::from_raw(managed));
    }
}

/// A managed tensor of another library; dropping it calls its deleter.
pub enum Foreign {
    /// Before version 1.
    Old(*mut DLManagedTensor),
    /// Version 1.
    Versioned(*mut DLManagedTensorVersioned),
}

// SAFETY: the pointer is only passed to its deleter, once.
unsafe impl Send for Foreign {}
// SAFETY: no method reads through a shared reference.
unsafe impl Sync for Foreign {}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the consumer calls the deleter once.
        unsafe {
            match self {
                Foreign::Old(managed) => {
                    if let Some(delete) = (**managed).deleter {
                        delete(*managed);
                    }
                }
                Foreign::Versioned(managed) => {
                    if let Some(delete) = (**managed).deleter {
                        delete(*managed);
                    }
                }
            }
        }
    }
}
