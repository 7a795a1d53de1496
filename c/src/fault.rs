//! Status codes, and the message of the last error.

use crate::KjitTensor;
use kjit_ops::{Device, Error, Tensor};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call.
#[repr(C)]
#[allow(non_camel_case_types, reason = "C's names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KjitStatus {
    /// Done.
    KJIT_OK = 0,
    /// Shapes do not match each other or the operation.
    KJIT_SHAPE = 1,
    /// Dtypes do not match each other or the operation.
    KJIT_DTYPE = 2,
    /// An argument has a value that is not accepted, or is null.
    KJIT_VALUE = 3,
    /// An axis or an index is out of range.
    KJIT_INDEX = 4,
    /// The device does not exist, failed, or lacks a compiler; or operands are on two devices.
    KJIT_DEVICE = 5,
    /// Out of memory.
    KJIT_MEMORY = 6,
    /// The operation is not implemented on this device.
    KJIT_ABSENT = 7,
    /// An error inside kjit; please report it.
    KJIT_INSIDE = 8,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A failure: its status and its message.
pub(crate) struct Fail(pub KjitStatus, pub String);

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        let status = match &error {
            e if e.is_out_of_memory() => KjitStatus::KJIT_MEMORY,
            Error::Shape { .. } => KjitStatus::KJIT_SHAPE,
            Error::DType { .. } => KjitStatus::KJIT_DTYPE,
            Error::Value { .. } => KjitStatus::KJIT_VALUE,
            Error::Axis { .. } | Error::Index { .. } => KjitStatus::KJIT_INDEX,
            Error::Devices { .. } | Error::Engine(_) => KjitStatus::KJIT_DEVICE,
            Error::Absent { .. } => KjitStatus::KJIT_ABSENT,
            _ => KjitStatus::KJIT_INSIDE,
        };
        Fail(status, error.to_string())
    }
}

pub(crate) fn value(text: impl Into<String>) -> Fail {
    Fail(KjitStatus::KJIT_VALUE, text.into())
}

/// Runs the work of a call. A panic becomes a status.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Fail>) -> KjitStatus {
    let done = catch_unwind(AssertUnwindSafe(work));
    let fail = match done {
        Ok(Ok(())) => return KjitStatus::KJIT_OK,
        Ok(Err(fail)) => fail,
        Err(_) => Fail(KjitStatus::KJIT_INSIDE, "a panic inside kjit; please report it".into()),
    };
    LAST.with(|last| {
        *last.borrow_mut() = CString::new(fail.1.replace('\0', " ")).unwrap_or_default()
    });
    fail.0
}

/// The message of this thread's last error, one line; empty before the first error. The pointer is
/// valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn kjit_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// A C string.
///
/// # Safety
/// Null, or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Fail> {
    if at.is_null() {
        return Err(value(format!("{what} is null")));
    }
    // SAFETY: the caller passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| value(format!("{what} is not UTF-8")))
}

/// A device by its name; null is the default device.
///
/// # Safety
/// Null, or a NUL-terminated string.
pub(crate) unsafe fn device(name: *const c_char) -> Result<Device, Fail> {
    match name.is_null() {
        true => Ok(Device::default_one()),
        // SAFETY: the caller passes a NUL-terminated string.
        false => Ok(Device::open(unsafe { text(name, "the device") }?)?),
    }
}

/// A C array.
///
/// # Safety
/// `at` has `n` values, or `n` is 0.
pub(crate) unsafe fn list<T: Copy>(at: *const T, n: usize, what: &str) -> Result<Vec<T>, Fail> {
    match (n, at.is_null()) {
        (0, _) => Ok(Vec::new()),
        (_, true) => Err(value(format!("{what} is null"))),
        // SAFETY: the caller passes `n` values.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, n) }.to_vec()),
    }
}

/// A tensor passed by C.
///
/// # Safety
/// Null, or a tensor that was not freed.
pub(crate) unsafe fn tensor<'a>(at: *const KjitTensor) -> Result<&'a Tensor, Fail> {
    // SAFETY: the caller passes a tensor of this library.
    unsafe { at.as_ref() }.map(|t| &t.0).ok_or_else(|| value("a tensor is null"))
}

/// A tensor that may be null.
///
/// # Safety
/// Null, or a tensor that was not freed.
pub(crate) unsafe fn maybe<'a>(at: *const KjitTensor) -> Option<&'a Tensor> {
    // SAFETY: the caller passes a tensor of this library.
    unsafe { at.as_ref() }.map(|t| &t.0)
}

/// Hands a tensor over to C.
///
/// # Safety
/// `out` is null or writable.
pub(crate) unsafe fn give(
    out: *mut *mut KjitTensor,
    made: impl FnOnce() -> Result<Tensor, Fail>,
) -> KjitStatus {
    call(|| {
        if out.is_null() {
            return Err(value("out is null"));
        }
        let value = made()?;
        // SAFETY: the caller passes a writable address.
        unsafe { *out = Box::into_raw(Box::new(KjitTensor(value))) };
        Ok(())
    })
}
