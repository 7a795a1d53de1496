//! The buffer protocol: `memoryview(x)`, `np.asarray(x)`. Real tensors on the CPU are exported in
//! place, read-only; complex tensors, whose parts are separate, as a copy.

use crate::class::Tensor;
use crate::convert::run;
use kjit_ops::DType;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_int, c_void};

/// The data that a view points to while it is open.
struct Shown {
    /// Keeps the exported memory alive.
    _tensor: kjit_ops::Tensor,
    _copy: Vec<u8>,
    shape: Vec<isize>,
    strides: Vec<isize>,
}

/// The format character of the module `struct` for a dtype.
fn format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        DType::BF16 => return None,
    })
}

/// # Safety
/// The interpreter passes `view` to be filled in.
#[allow(unsafe_code, reason = "the interpreter's buffer protocol is pointers")]
pub(crate) unsafe fn fill(
    slf: Bound<'_, Tensor>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("the view is null"));
    }
    if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
        return Err(PyBufferError::new_err(
            "a tensor is immutable: a writable buffer is not supported (x[...] = v rebinds x)",
        ));
    }
    let t = slf.get().now();
    let dtype = t.dtype();
    let Some(word) = format(dtype) else {
        return Err(PyBufferError::new_err(
            "bfloat16 has no buffer format: use astype(kjit.float32)",
        ));
    };
    let size = dtype.size();
    if t.device().label() != "cpu" {
        return Err(PyBufferError::new_err(format!(
            "the tensor is on {}: use to_device(\"cpu\") first",
            t.device()
        )));
    }
    run(slf.py(), || t.eval())?;
    let strided = flags & ffi::PyBUF_STRIDES == ffi::PyBUF_STRIDES;
    let packed: Vec<isize> = {
        let mut step = size as isize;
        let mut out = vec![0; t.rank()];
        for (s, n) in out.iter_mut().zip(t.shape()).rev() {
            *s = step;
            step *= (*n).max(1) as isize;
        }
        out
    };
    let place = match dtype.is_complex() {
        true => None,
        false => run(slf.py(), || {
            t.host(|h| {
                let at = h.bytes.as_ptr() as usize + h.offset.max(0) as usize * size;
                (at, h.strides.iter().map(|s| *s as isize * size as isize).collect::<Vec<_>>())
            })
        })
        .map(Some)?,
    };
    let (at, strides, copy) = match place {
        Some((at, strides)) if strided || strides == packed => (at, strides, Vec::new()),
        _ => {
            let copy = run(slf.py(), || t.to_bytes())?;
            (copy.as_ptr() as usize, packed, copy)
        }
    };
    let (len, rank) = (t.numel() * size, t.rank());
    let shape = t.shape().iter().map(|n| *n as isize).collect();
    let mut shown = Box::new(Shown { _tensor: t, _copy: copy, shape, strides });
    // SAFETY: the caller lets this function fill in the view. `shown` owns everything that it
    // points to, until `release` drops it; the reference in `obj` holds the object.
    unsafe {
        (*view).buf = at as *mut c_void;
        (*view).len = len as isize;
        (*view).readonly = 1;
        (*view).itemsize = size as isize;
        (*view).format = match flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
            true => word.as_ptr().cast_mut(),
            false => std::ptr::null_mut(),
        };
        (*view).ndim = rank as c_int;
        (*view).shape = match flags & ffi::PyBUF_ND == ffi::PyBUF_ND {
            true => shown.shape.as_mut_ptr(),
            false => std::ptr::null_mut(),
        };
        (*view).strides = match strided {
            true => shown.strides.as_mut_ptr(),
            false => std::ptr::null_mut(),
        };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = Box::into_raw(shown).cast();
        (*view).obj = slf.into_any().into_ptr();
    }
    Ok(())
}

/// # Safety
/// [`fill`] has filled in `view`, and it is released once.
#[allow(unsafe_code, reason = "the interpreter's buffer protocol is pointers")]
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill` made the pointer from a box.
    unsafe {
        if !view.is_null() && !(*view).internal.is_null() {
            drop(Box::from_raw((*view).internal.cast::<Shown>()));
            (*view).internal = std::ptr::null_mut();
        }
    }
}
