//! Devices, and new tensors.

use crate::KjitTensor;
use crate::fault::{KjitStatus, call, device, give, list, text, value};
use kjit_ops::dlpack::{DLManagedTensorVersioned, DLTensor, Foreign};
use kjit_ops::{DType, Device, Scalar, Tensor};
use std::ffi::c_char;

/// Sets the default device of new tensors: `cpu`, `cuda:0`, `rocm:1`, `auto`.
///
/// # Safety
/// `name` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_set_device(name: *const c_char) -> KjitStatus {
    call(|| {
        // SAFETY: this function's caller passes a NUL-terminated string.
        Device::open(unsafe { text(name, "the device") }?)?.set_default();
        Ok(())
    })
}

/// Number of devices of a kind that this process sees: `cuda`, `rocm`, `cpu`. 0 for other kinds.
///
/// # Safety
/// `kind` is a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_device_count(kind: *const c_char) -> usize {
    let mut count = 0;
    call(|| {
        // SAFETY: this function's caller passes a NUL-terminated string.
        count = kjit_ops::device::device_count(unsafe { text(kind, "the kind") }?);
        Ok(())
    });
    count
}

/// Waits for all work on a device (null: the default one).
///
/// # Safety
/// `name` is null or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_synchronize(name: *const c_char) -> KjitStatus {
    // SAFETY: this function's caller passes null or a NUL-terminated string.
    call(|| Ok(unsafe { device(name) }?.synchronize()?))
}

/// A tensor with one value in every element, on a device (null: the default one). `dtype`:
/// `float32`, `int64`, ….
///
/// # Safety
/// `shape` has `rank` sizes, `dtype` is a NUL-terminated string, the device is null or
/// such a string, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_full(
    shape: *const usize,
    rank: usize,
    fill: f64,
    dtype: *const c_char,
    device_name: *const c_char,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let (shape, dtype) = (list(shape, rank, "the shape")?, text(dtype, "the dtype")?);
            let dtype = DType::parse(dtype)?;
            let fill = match dtype {
                DType::Bool => Scalar::Bool(fill != 0.0),
                d if d.is_int() => Scalar::Int(fill as i128),
                _ => Scalar::Float(fill),
            };
            Ok(Tensor::full(&shape, fill, dtype, &device(device_name)?)?)
        })
    }
}

/// A copy of a DLPack tensor of the CPU, CUDA or ROCm, on its own device.
///
/// # Safety
/// `given` is filled in as DLPack demands, and the work that fills its memory has ended. `out` is
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_from_dltensor(
    given: *const DLTensor,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers; the copy ends before it returns.
    unsafe {
        give(out, || {
            let given = given.as_ref().ok_or_else(|| value("the DLTensor is null"))?;
            let copy = Tensor::from_dltensor(given, Box::new(()))?.duplicate()?;
            copy.device().synchronize()?;
            Ok(copy)
        })
    }
}

/// A tensor over a managed DLPack tensor's memory, without a copy. Unless `out` is null it belongs
/// to kjit afterwards, also after an error: its deleter is called after the last use.
///
/// # Safety
/// `given` is filled in as DLPack demands, the work that fills its memory has ended, and
/// nothing writes to it until its deleter is called. Any thread may call the deleter. `out` is
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_from_dlpack(
    given: *mut DLManagedTensorVersioned,
    out: *mut *mut KjitTensor,
) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe {
        give(out, || {
            let managed = given.as_ref().ok_or_else(|| value("the managed tensor is null"))?;
            let keep = Box::new(Foreign::Versioned(given));
            if managed.major > 1 {
                return Err(value("DLPack version 2 and later is not supported"));
            }
            Ok(Tensor::from_dltensor(&managed.dl_tensor, keep)?)
        })
    }
}

/// A second handle of a tensor. Nothing is copied.
///
/// # Safety
/// `x` is a tensor, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_clone(x: *const KjitTensor, out: *mut *mut KjitTensor) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointers.
    unsafe { give(out, || Ok(crate::fault::tensor(x)?.clone())) }
}

/// Frees a tensor. Null does nothing.
///
/// # Safety
/// `x` is null or a tensor that was not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_free(x: *mut KjitTensor) {
    if !x.is_null() {
        call(|| {
            // SAFETY: `give` created it from a box.
            drop(unsafe { Box::from_raw(x) });
            Ok(())
        });
    }
}
