//! DLPack's capsules, and `__cuda_array_interface__`. `kjit_ops::dlpack` has the structs.

#![allow(unsafe_code, reason = "DLPack is structs behind pointers")]

use crate::class::Tensor;
use crate::convert::{raise, run, type_name};
use kjit_ops::Device;
use kjit_ops::dlpack::{
    CPU, CUDA, DLManagedTensor, DLManagedTensorVersioned, Foreign, ROCM, device_of, type_of,
};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::CStr;

const OLD: &CStr = c"dltensor";
const OLD_USED: &CStr = c"used_dltensor";
const NEW: &CStr = c"dltensor_versioned";
const NEW_USED: &CStr = c"used_dltensor_versioned";

/// A capsule with the tensor's memory or with a copy of it.
pub(crate) fn export(
    py: Python<'_>,
    handle: Option<&Bound<'_, Tensor>>,
    tensor: kjit_ops::Tensor,
    version: Option<(u32, u32)>,
    to: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<Py<PyAny>> {
    let own = device_of(tensor.device());
    let tensor = match to {
        Some((CPU, _)) if own.0 != CPU && copy != Some(false) => {
            run(py, || tensor.to_device(&Device::Cpu))?
        }
        Some(to) if to != own => {
            return Err(PyBufferError::new_err(format!(
                "__dlpack__ can copy only to the CPU, not from {own:?} to {to:?}"
            )));
        }
        _ => tensor,
    };
    let exported = run(py, || {
        let shown = tensor.to_dlpack(copy == Some(true))?;
        // torch aborts the process for a negative stride.
        let copied = copy.is_none() && shown.has_negative_strides();
        if copied { tensor.to_dlpack(true) } else { Ok(shown) }
    })?;
    if let Some(handle) = handle.filter(|_| tensor.dtype().is_complex() && copy != Some(true)) {
        // The parts were separate until here; from now on the tensor itself stores pairs.
        handle.get().set(exported.whole.clone());
    }
    let capsule = if version.is_some_and(|v| v.0 >= 1) {
        let at = Box::into_raw(exported.versioned());
        // SAFETY: the capsule owns the box until a consumer renames it.
        unsafe { ffi::PyCapsule_New(at.cast(), NEW.as_ptr(), Some(drop_capsule)) }
    } else {
        let at = Box::into_raw(exported.old());
        // SAFETY: the capsule owns the box until a consumer renames it.
        unsafe { ffi::PyCapsule_New(at.cast(), OLD.as_ptr(), Some(drop_capsule)) }
    };
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }.map(Bound::unbind)
}

/// The destructor of a capsule that was not consumed.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls it with the capsule. A consumed one has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, OLD.as_ptr()) == 1 {
            let at = ffi::PyCapsule_GetPointer(capsule, OLD.as_ptr());
            drop(Foreign::Old(at.cast()));
        } else if ffi::PyCapsule_IsValid(capsule, NEW.as_ptr()) == 1 {
            let at = ffi::PyCapsule_GetPointer(capsule, NEW.as_ptr());
            drop(Foreign::Versioned(at.cast()));
        }
    }
}

/// An imported tensor. Its deleter is called with the interpreter attached: NumPy's counts
/// references.
struct ImportedTensor(Option<Foreign>);

impl Drop for ImportedTensor {
    fn drop(&mut self) {
        let foreign = self.0.take().map(std::mem::ManuallyDrop::new);
        // After the interpreter's end nothing is called: its memory is gone.
        Python::try_attach(|_| foreign.map(std::mem::ManuallyDrop::into_inner));
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
    // Memory of a GPU stays there, unless another device was requested.
    let label = match (device_, word) {
        (Some(name), _) => name.to_owned(),
        (None, Some(word)) => format!("{word}:{}", place.1),
        (None, None) => "cpu".to_owned(),
    };
    let device = crate::convert::device(py, Some(&label))?;
    let shared = word.is_some() && device_of(&device) == place;
    if copy == Some(false) && device_of(&device) != place {
        return Err(PyBufferError::new_err(format!(
            "from_dlpack: the array is on DLPack device {place:?}; {device} needs a copy"
        )));
    }
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
    let new = pointer(NEW).cast::<DLManagedTensorVersioned>();
    let old = pointer(OLD).cast::<DLManagedTensor>();
    let taken = |name: &CStr| {
        // SAFETY: renames the capsule, which belongs to this consumer from here on.
        unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) == 0 }
    };
    // SAFETY: the producer filled the struct in, and it stays valid until its deleter is called.
    let (array, keep) = unsafe {
        if !new.is_null() && taken(NEW_USED) {
            if (*new).major > 1 {
                drop(Foreign::Versioned(new));
                return Err(PyBufferError::new_err("DLPack version 2 and later is not supported"));
            }
            (&(*new).dl_tensor, Foreign::Versioned(new))
        } else if !old.is_null() && taken(OLD_USED) {
            (&(*old).dl_tensor, Foreign::Old(old))
        } else {
            return Err(PyValueError::new_err(
                "__dlpack__ did not return an unused DLPack capsule",
            ));
        }
    };
    // SAFETY: the producer guarantees the memory until the deleter is called, and made the
    // device's stream wait for the work that fills it.
    let t = unsafe { kjit_ops::Tensor::from_dltensor(array, Box::new(ImportedTensor(Some(keep)))) };
    let t = t.map_err(raise)?;
    // The producer may write to its memory, but a tensor's values do not change.
    if copy == Some(false) {
        return Ok(Tensor::of(t));
    }
    run(py, || t.duplicate()?.to_device(&device)).map(Tensor::of)
}

/// `__cuda_array_interface__` of version 3: numba, CuPy. Kernels of kjit have ended.
pub(crate) fn cuda_array<'py>(
    py: Python<'py>,
    tensor: &kjit_ops::Tensor,
) -> PyResult<Bound<'py, PyDict>> {
    let dtype = tensor.dtype();
    let word = match type_of(dtype).code {
        0 => 'i',
        1 => 'u',
        2 => 'f',
        6 => 'b',
        _ => {
            return Err(PyAttributeError::new_err(format!(
                "__cuda_array_interface__ does not support {dtype}"
            )));
        }
    };
    if device_of(tensor.device()).0 != CUDA {
        return Err(PyAttributeError::new_err(format!(
            "__cuda_array_interface__ needs a CUDA tensor, but this tensor is on {}",
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
