//! A tensor's properties and elements.

use crate::KjitTensor;
use crate::fault::{KjitStatus, call, tensor, value};
use kjit_ops::dlpack::DLManagedTensorVersioned;

/// Number of axes; 0 for null.
///
/// # Safety
/// `x` is null or a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_rank(x: *const KjitTensor) -> usize {
    // SAFETY: this function's caller guarantees the pointer.
    unsafe { crate::fault::maybe(x) }.map_or(0, |t| t.rank())
}

/// The size of an axis; 0 for an axis that does not exist, and for null.
///
/// # Safety
/// `x` is null or a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_size(x: *const KjitTensor, axis: usize) -> usize {
    // SAFETY: this function's caller guarantees the pointer.
    unsafe { crate::fault::maybe(x) }.and_then(|t| t.shape().get(axis).copied()).unwrap_or(0)
}

/// Bytes of all elements; 0 for null.
///
/// # Safety
/// `x` is null or a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_bytes(x: *const KjitTensor) -> usize {
    // SAFETY: this function's caller guarantees the pointer.
    unsafe { crate::fault::maybe(x) }.map_or(0, |t| t.numel() * t.dtype().size())
}

/// Computes a tensor and everything that it depends on. A second call does nothing.
///
/// # Safety
/// `x` is a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_eval(x: *const KjitTensor) -> KjitStatus {
    // SAFETY: this function's caller guarantees the pointer.
    call(|| Ok(unsafe { tensor(x) }?.eval()?))
}

/// Copies all elements in row-major order to `to`, which has exactly `kjit_bytes(x)` bytes.
///
/// # Safety
/// `x` is a tensor, `to` has `bytes` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_read(
    x: *const KjitTensor,
    to: *mut std::ffi::c_void,
    bytes: usize,
) -> KjitStatus {
    call(|| {
        // SAFETY: this function's caller guarantees the pointer.
        let t = unsafe { tensor(x) }?;
        let own = t.numel() * t.dtype().size();
        if bytes != own || (to.is_null() && own > 0) {
            return Err(value(format!(
                "kjit_read: the buffer has {bytes} bytes, but the tensor has {own}"
            )));
        }
        let from = t.to_bytes()?;
        // SAFETY: the caller passes `bytes` writable bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len()) };
        Ok(())
    })
}

/// The memory of a tensor as DLPack, without a copy and read-only. The tensor is computed, and its
/// kernels have finished. The caller must call the struct's deleter.
///
/// # Safety
/// `x` is a tensor, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kjit_to_dlpack(
    x: *const KjitTensor,
    out: *mut *mut DLManagedTensorVersioned,
) -> KjitStatus {
    call(|| {
        if out.is_null() {
            return Err(value("out is null"));
        }
        // SAFETY: this function's caller guarantees the pointers.
        unsafe { *out = Box::into_raw(tensor(x)?.to_dlpack(false)?.versioned()) };
        Ok(())
    })
}
