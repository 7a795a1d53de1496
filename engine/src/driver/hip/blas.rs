//! rocBLAS: one matrix product, used for comparison with kjit's kernels, and on request.

use super::super::api::{Product, Raw, RawBlas, Try};
use super::runtime::{HipRuntime, fault};
use crate::compiler::discover::python_sites;
use crate::error::{Error, Result};
use rocblas_sys::{Rocblas, datatype, operation, rocblas_gemm_algo_standard, rocblas_handle};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// rocBLAS on a device.
pub(super) struct RocblasHandle {
    rocblas: Rocblas,
    library: String,
    runtime: Arc<HipRuntime>,
    ordinal: c_int,
    /// Two threads must not use a handle concurrently.
    handle: Mutex<Handle>,
}

struct Handle(rocblas_handle);

// SAFETY: a handle may be used from any thread, one at a time, which the mutex ensures.
unsafe impl Send for Handle {}

impl Drop for RocblasHandle {
    fn drop(&mut self) {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: takes a number. An error here has no remedy.
        let _ = unsafe { self.runtime.hip.hipSetDevice(self.ordinal) };
        // SAFETY: created in `open` and destroyed once; the call waits for its work.
        let _ = unsafe { self.rocblas.rocblas_destroy_handle(handle.0) };
    }
}

/// Opens the library.
///
/// # Errors
/// [`Error::NoLibrary`] with the searched paths.
fn open_library() -> Result<Rocblas> {
    let wheels = || {
        python_sites()
            .iter()
            .flat_map(|site| hip_sys::WHEEL_FOLDERS.iter().map(move |f| site.join(f)))
            .collect()
    };
    Rocblas::open(wheels).map_err(|error| {
        let (why, tried) = match error {
            hip_sys::Error::NotFound { tried, .. } => (
                "the loader finds none".to_owned(),
                tried.iter().map(ToString::to_string).collect(),
            ),
            other => (other.to_string(), Vec::new()),
        };
        let (library, package) =
            (rocblas_sys::SEARCH.library.to_owned(), rocblas_sys::SEARCH.package.to_owned());
        Error::NoLibrary { library, why, tried, package }
    })
}

impl RocblasHandle {
    /// Opens rocBLAS on device `ordinal`, which is the calling thread's current device.
    pub fn open(runtime: Arc<HipRuntime>, ordinal: c_int) -> Result<RocblasHandle> {
        let rocblas = open_library()?;
        let mut handle = null_mut();
        // SAFETY: writes one handle, which Drop destroys.
        unsafe { rocblas.rocblas_create_handle(&mut handle) }
            .map_err(|e| fault(e).on(&format!("rocm:{ordinal}")))?;
        let library = rocblas.opened().place.display().to_string();
        Ok(RocblasHandle { rocblas, library, runtime, ordinal, handle: Mutex::new(Handle(handle)) })
    }
}

impl RawBlas for RocblasHandle {
    fn library(&self) -> &str {
        &self.library
    }

    unsafe fn product(&self, p: Product, stream: Raw) -> Try<()> {
        let int = |n: u32| c_int::try_from(n).unwrap_or(-1); // rocBLAS refuses -1
        let (m, n, k) = (int(p.m), int(p.n), int(p.k));
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero): (*const c_void, *const c_void) =
            ((&raw const one).cast(), (&raw const zero).cast());
        let (half, single) = (datatype::rocblas_datatype_f16_r, datatype::rocblas_datatype_f32_r);
        let (by_k, as_is) =
            (operation::rocblas_operation_transpose, operation::rocblas_operation_none);
        let (w, x, out) = (p.w as *const c_void, p.x as *const c_void, p.out as *mut c_void);
        let standard = rocblas_gemm_algo_standard;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the device is current in this thread; the lock makes us the only user of the
        // handle; matrices and stream are valid by the contract of `RawBlas`. rocBLAS is
        // column-major: w is k × m (used transposed), x is k × n, out is m × n.
        unsafe {
            self.runtime.hip.hipSetDevice(self.ordinal).map_err(fault)?;
            self.rocblas.rocblas_set_stream(handle.0, stream.0 as *mut c_void).map_err(fault)?;
            let answer = self.rocblas.rocblas_gemm_ex(
                handle.0, by_k, as_is, m, n, k, one, w, half, k, x, half, k, zero, out, single, m,
                out, single, m, single, standard, 0, 0,
            );
            answer.map_err(fault)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rocblas_error_says_it_is_optional() {
        match open_library() {
            Ok(rocblas) => {
                eprintln!("SKIPPED: rocBLAS is here ({})", rocblas.opened().place.display())
            }
            Err(error @ Error::NoLibrary { .. }) => {
                let text = error.to_string();
                for part in ["rocBLAS (librocblas.so)", "/opt/rocm/lib", "optional"] {
                    assert!(text.contains(part), "{text}");
                }
            }
            Err(other) => panic!("{other}"),
        }
    }
}
