//! DLPack 1.0: the structs of its header `dlpack.h`, exporting and importing. Memory of GPUs is
//! shared without copies, too.

#![allow(unsafe_code, reason = "DLPack is structs behind pointers")]

use crate::class::Tensor;
use crate::convert::{raise, run, type_name};
use kjit_ops::{DTYPES, DType, Device};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::{CStr, c_void};

const CPU: i32 = 1;
const CUDA: i32 = 2;
const ROCM: i32 = 10;
/// Flag: the memory must not be written.
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;

const OLD: &CStr = c"dltensor";
const OLD_USED: &CStr = c"used_dltensor";
const NEW: &CStr = c"dltensor_versioned";
const NEW_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Array {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: Type,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    array: Array,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    array: Array,
}

/// The owner of an exported array's memory.
struct Held {
    _tensor: kjit_ops::Tensor,
    _copy: Vec<u64>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

fn code(dtype: DType) -> Type {
    let code = match dtype {
        DType::Bool => 6,
        DType::BF16 => 4,
        d if d.is_complex() => 5,
        d if d.is_float() => 2,
        d if d.kind() == kjit_ops::Kind::Signed => 0,
        _ => 1,
    };
    Type { code, bits: (dtype.size() * 8) as u8, lanes: 1 }
}

/// The type and number of a device in DLPack.
pub(crate) fn device(device: &Device) -> PyResult<(i32, i32)> {
    let label = device.label();
    let (word, number) = label.split_once(':').unwrap_or((label, "0"));
    let word = match word {
        "cuda" => CUDA,
        "rocm" => ROCM,
        _ => CPU,
    };
    Ok((word, number.parse().unwrap_or(0)))
}

/// Row-major strides in elements.
fn packed(shape: &[usize]) -> Vec<i64> {
    let mut step = 1i64;
    let mut out = vec![0; shape.len()];
    for (s, n) in out.iter_mut().zip(shape).rev() {
        *s = step;
        step *= (*n).max(1) as i64;
    }
    out
}

/// A capsule with the tensor's memory or with a copy of it.
pub(crate) fn export(
    py: Python<'_>,
    handle: Option<&Bound<'_, Tensor>>,
    tensor: kjit_ops::Tensor,
    version: Option<(u32, u32)>,
    to: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let own = device(tensor.device())?;
    let mut tensor = match to {
        Some((CPU, _)) if own.0 != CPU && copy != Some(false) => {
            run(py, || tensor.to_device(&Device::Cpu))?
        }
        Some(to) if to != own => {
            return Err(PyBufferError::new_err(format!(
                "__dlpack__ copies to the CPU alone, not from {own:?} to {to:?}"
            )));
        }
        _ => tensor,
    };
    run(py, || tensor.eval())?;
    let place = device(tensor.device())?;
    let (dtype, size) = (tensor.dtype(), tensor.dtype().size());
    let (at, strides, kept) = if place.0 != CPU {
        if dtype.is_complex() {
            return Err(PyBufferError::new_err(format!(
                "DLPack of {dtype} on a GPU: its parts lie apart; to_device(\"cpu\") first"
            )));
        }
        if copy == Some(true) {
            tensor = run(py, || tensor.duplicate())?;
        }
        let view = run(py, || tensor.gpu_view())?;
        (view.address as usize, view.strides, Vec::new())
    } else if copy == Some(true) {
        let bytes = run(py, || tensor.to_bytes())?;
        // Words, so that elements of every dtype are aligned.
        let word = |part: &[u8]| {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(w, b)| *w = *b);
            u64::from_ne_bytes(word)
        };
        let words: Vec<u64> = bytes.chunks(8).map(word).collect();
        (words.as_ptr() as usize, packed(tensor.shape()), words)
    } else {
        let place = |h: kjit_ops::HostView<'_>| {
            (h.bytes.as_ptr() as usize + h.offset.max(0) as usize * size, h.strides)
        };
        let (at, strides) = if dtype.is_complex() {
            // The parts were separate until here; from now on the tensor itself stores pairs.
            let (whole, found) = run(py, || tensor.interleaved(place))?;
            if let Some(handle) = handle {
                handle.get().set(whole.clone());
            }
            tensor = whole;
            found
        } else {
            run(py, || tensor.host(place))?
        };
        (at, strides, Vec::new())
    };
    let copied = copy == Some(true);
    let shape = tensor.shape().iter().map(|n| *n as i64).collect();
    let mut held = Box::new(Held { _tensor: tensor, _copy: kept, shape, strides });
    let array = Array {
        data: at as *mut c_void,
        device_type: place.0,
        device_id: place.1,
        ndim: held.shape.len() as i32,
        dtype: code(dtype),
        shape: held.shape.as_mut_ptr(),
        strides: held.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(held).cast::<c_void>();
    let capsule = if version.is_some_and(|v| v.0 >= 1) {
        let flags = if copied { COPIED } else { READ_ONLY };
        let made = Box::new(Versioned {
            major: 1,
            minor: 0,
            context,
            deleter: Some(delete_new),
            flags,
            array,
        });
        // SAFETY: the capsule owns the box until a consumer renames it.
        unsafe { ffi::PyCapsule_New(Box::into_raw(made).cast(), NEW.as_ptr(), Some(drop_capsule)) }
    } else {
        let made = Box::new(Managed { array, context, deleter: Some(delete_old) });
        // SAFETY: the capsule owns the box until a consumer renames it.
        unsafe { ffi::PyCapsule_New(Box::into_raw(made).cast(), OLD.as_ptr(), Some(drop_capsule)) }
    };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Bound::unbind)
}

unsafe extern "C" fn delete_old(managed: *mut Managed) {
    // SAFETY: both boxes were made in `export`, and a consumer calls this once.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<Held>()));
        drop(Box::from_raw(managed));
    }
}

unsafe extern "C" fn delete_new(managed: *mut Versioned) {
    // SAFETY: both boxes were made in `export`, and a consumer calls this once.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<Held>()));
        drop(Box::from_raw(managed));
    }
}

/// The destructor of a capsule that was not consumed.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls it with the capsule. A consumed one has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, OLD.as_ptr()) == 1 {
            delete_old(ffi::PyCapsule_GetPointer(capsule, OLD.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, NEW.as_ptr()) == 1 {
            delete_new(ffi::PyCapsule_GetPointer(capsule, NEW.as_ptr()).cast());
        }
    }
}

/// An imported array, returned to its producer after the last use.
enum Lent {
    Old(*mut Managed),
    New(*mut Versioned),
}

// SAFETY: the pointer is only passed to its deleter, once, with the interpreter attached.
unsafe impl Send for Lent {}
// SAFETY: no method reads through a shared reference.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        let (old, new) = match self {
            Lent::Old(m) => (*m as usize, 0),
            Lent::New(m) => (0, *m as usize),
        };
        // NumPy's deleter counts references.
        let give_back = move || {
            // SAFETY: the consumer calls the deleter once.
            unsafe {
                if old != 0 {
                    let managed = old as *mut Managed;
                    if let Some(delete) = (*managed).deleter {
                        delete(managed);
                    }
                } else {
                    let managed = new as *mut Versioned;
                    if let Some(delete) = (*managed).deleter {
                        delete(managed);
                    }
                }
            }
        };
        Python::try_attach(|_| give_back());
    }
}

#[pyfunction]
#[pyo3(signature = (given, device_=None, copy=None))]
fn from_dlpack(
    py: Python<'_>,
    given: &Bound<'_, PyAny>,
    device_: Option<&str>,
    copy: Option<bool>,
) -> PyResult<Tensor> {
    if !given.hasattr("__dlpack__")? {
        return Err(PyTypeError::new_err(format!("{} has no __dlpack__", type_name(given))));
    }
    let place: (i32, i32) = given.call_method0("__dlpack_device__")?.extract()?;
    let word = match place.0 {
        CUDA => Some("cuda"),
        ROCM => Some("rocm"),
        _ => None,
    };
    // Memory of a GPU stays there, unless it is wanted elsewhere.
    let label = match (device_, word) {
        (Some(name), _) => name.to_owned(),
        (None, Some(word)) => format!("{word}:{}", place.1),
        (None, None) => "cpu".to_owned(),
    };
    let device = crate::convert::device(py, Some(&label))?;
    let shared = word.is_some_and(|w| device.label() == format!("{w}:{}", place.1));
    let kwargs = PyDict::new(py);
    kwargs.set_item("max_version", (1, 0))?;
    if shared {
        // The producer makes this stream wait for its own.
        kwargs.set_item("stream", device.stream_handle())?;
    } else if place.0 != CPU {
        kwargs.set_item("dl_device", (CPU, 0))?;
    }
    // Producers before DLPack 1 do not take all arguments.
    let capsule = match given.call_method("__dlpack__", (), Some(&kwargs)) {
        Ok(capsule) => capsule,
        Err(e) if e.is_instance_of::<PyTypeError>(py) && (place.0 == CPU || shared) => {
            kwargs.del_item("max_version")?;
            given.call_method("__dlpack__", (), Some(&kwargs))?
        }
        Err(e) if place.0 != CPU && !shared => {
            return Err(PyBufferError::new_err(format!(
                "from_dlpack: the other library does not copy its memory to the CPU: {e}"
            )));
        }
        Err(e) => return Err(e),
    };
    let pointer = |name: &CStr| {
        // SAFETY: the capsule is alive. A wrong name gives null and an exception, which is cleared
        // below.
        unsafe {
            match ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) {
                1 => ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()),
                _ => std::ptr::null_mut(),
            }
        }
    };
    let (new, old) = (pointer(NEW).cast::<Versioned>(), pointer(OLD).cast::<Managed>());
    let taken = |name: &CStr| {
        // SAFETY: renames the capsule, which belongs to this consumer from here on.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) == 0 }
    };
    // SAFETY: the producer filled the struct in, and it stays valid until its deleter is called.
    let (array, keep) = unsafe {
        if !new.is_null() && taken(NEW_USED) {
            if (*new).major > 1 {
                return Err(PyBufferError::new_err("a DLPack of version 2 and later"));
            }
            (&(*new).array, Lent::New(new))
        } else if !old.is_null() && taken(OLD_USED) {
            (&(*old).array, Lent::Old(old))
        } else {
            return Err(PyValueError::new_err("__dlpack__ gave no unused capsule of DLPack"));
        }
    };
    let t = lend(py, array, keep)?;
    // The producer may write to its memory, but a tensor's values do not change.
    if copy == Some(false) {
        if t.device() != &device {
            return Err(PyValueError::new_err(format!(
                "from_dlpack: it lies on {}, so {device} needs a copy",
                t.device()
            )));
        }
        return Ok(Tensor::of(t));
    }
    run(py, || t.duplicate()?.to_device(&device)).map(Tensor::of)
}

fn lend(py: Python<'_>, array: &Array, keep: Lent) -> PyResult<kjit_ops::Tensor> {
    let home = match array.device_type {
        CPU => Device::Cpu,
        CUDA => crate::convert::device(py, Some(&format!("cuda:{}", array.device_id)))?,
        ROCM => crate::convert::device(py, Some(&format!("rocm:{}", array.device_id)))?,
        other => {
            return Err(PyBufferError::new_err(format!(
                "from_dlpack: memory of DLPack's device type {other} is not the CPU's, CUDA's or \
                 ROCm's"
            )));
        }
    };
    let found = DTYPES.into_iter().find(|d| {
        let c = code(*d);
        (c.code, c.bits) == (array.dtype.code, array.dtype.bits) && array.dtype.lanes == 1
    });
    let Some(dtype) = found else {
        return Err(PyTypeError::new_err(format!(
            "a DLPack dtype that kjit has not: code {}, {} bits, {} lanes",
            array.dtype.code, array.dtype.bits, array.dtype.lanes
        )));
    };
    let rank = usize::try_from(array.ndim).unwrap_or(0);
    // SAFETY: the producer's lists have `ndim` entries; strides may be null.
    let list = |at: *const i64| unsafe { std::slice::from_raw_parts(at, rank).to_vec() };
    let shape: Vec<usize> = match rank {
        0 => Vec::new(),
        _ => list(array.shape).into_iter().map(|n| n.max(0) as usize).collect(),
    };
    let mut strides = packed(&shape);
    if rank > 0 && !array.strides.is_null() {
        strides = list(array.strides);
    }
    // The memory from the lowest to the highest address.
    let size = dtype.size() as i64;
    let empty = shape.contains(&0);
    let reach = |s: &i64, n: &usize| s * (n.max(&1) - 1).cast_signed() as i64;
    let low: i64 = strides.iter().zip(&shape).map(|(s, n)| reach(s, n).min(0)).sum();
    let high: i64 = strides.iter().zip(&shape).map(|(s, n)| reach(s, n).max(0)).sum();
    let start = (array.data as i64).wrapping_add(array.byte_offset as i64) + low * size;
    let bytes = if empty { 0 } else { (high - low + 1) * size };
    let part = dtype.part().size();
    if !(start as usize).is_multiple_of(part) && !empty {
        return Err(PyBufferError::new_err("memory that is not aligned to its elements"));
    }
    let keep = Box::new(keep);
    if home != Device::Cpu {
        // SAFETY: the producer guarantees the memory until the deleter is called, and makes the
        // device's stream wait for the work that fills it.
        let lent = unsafe {
            kjit_ops::Tensor::lent_on_gpu(
                start as u64,
                bytes as usize,
                keep,
                dtype,
                &shape,
                &strides,
                -low,
                &home,
            )
        };
        return lent.map_err(raise);
    }
    // SAFETY: the producer guarantees the memory until the deleter is called.
    unsafe {
        kjit_ops::Tensor::lent(
            start as usize,
            bytes as usize,
            keep,
            dtype,
            &shape,
            &strides,
            -low,
        )
    }
    .map_err(raise)
}

/// `__cuda_array_interface__` of version 3: numba, CuPy. Kernels of kjit have ended.
pub(crate) fn cuda_array<'py>(
    py: Python<'py>,
    tensor: &kjit_ops::Tensor,
) -> PyResult<Bound<'py, PyDict>> {
    let dtype = tensor.dtype();
    let word = match code(dtype).code {
        0 => 'i',
        1 => 'u',
        2 => 'f',
        6 => 'b',
        _ => return Err(PyAttributeError::new_err(format!("no CUDA array of {dtype}"))),
    };
    if device(tensor.device())?.0 != CUDA {
        return Err(PyAttributeError::new_err(format!(
            "no CUDA array: it lies on {}",
            tensor.device()
        )));
    }
    let view = run(py, || tensor.gpu_view())?;
    let size = dtype.size();
    let dict = PyDict::new(py);
    dict.set_item("shape", PyTuple::new(py, tensor.shape())?)?;
    dict.set_item("typestr", format!("{}{word}{size}", if size == 1 { '|' } else { '<' }))?;
    dict.set_item("data", (view.address, true))?;
    let bytes = view.strides.iter().map(|s| s * size as i64);
    dict.set_item("strides", PyTuple::new(py, bytes.collect::<Vec<_>>())?)?;
    dict.set_item("stream", py.None())?;
    dict.set_item("version", 3)?;
    Ok(dict)
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(from_dlpack, m)?)
}
