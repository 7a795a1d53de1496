//! rocBLAS: the calls needed for one matrix product. The library is optional and opened at run
//! time, and every call returns a `Result`. [`Rocblas`] declares the calls. The names are the
//! vendor's names.
//!
//! ```
//! match rocblas_sys::Rocblas::open(Vec::new) {
//!     Ok(rocblas) => println!("{}", rocblas.opened().place.display()),
//!     Err(error) => println!("{error}"), // names the library, the places tried and the package
//! }
//! ```

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]
#![allow(non_camel_case_types, non_upper_case_globals, reason = "the vendor's names")]

use hip_sys::{CodeName, Error, Search, calls, code, hipStream_t, name_in};
use std::ffi::{c_int, c_void};
use std::path::PathBuf;

/// rocBLAS's state on a device.
pub type rocblas_handle = *mut c_void;
/// A dimension of a matrix.
pub type rocblas_int = c_int;
/// Whether a matrix is used as stored, transposed, or conjugate transposed: one of [`operation`].
pub type rocblas_operation = u32;
/// Element type: one of [`datatype`].
pub type rocblas_datatype = u32;
/// The algorithm: 0 is the standard one.
pub type rocblas_gemm_algo = u32;

/// `rocblas_operation`.
pub mod operation {
    /// The matrix is used as stored.
    pub const rocblas_operation_none: u32 = 111;
    /// The matrix is transposed.
    pub const rocblas_operation_transpose: u32 = 112;
}

/// `rocblas_datatype`.
pub mod datatype {
    /// f16.
    pub const rocblas_datatype_f16_r: u32 = 150;
    /// f32.
    pub const rocblas_datatype_f32_r: u32 = 151;
}

/// The standard algorithm.
pub const rocblas_gemm_algo_standard: u32 = 0;

/// rocBLAS's codes.
pub const CODES: &[CodeName] = &[
    code(1, "rocblas_status_invalid_handle", "no such handle"),
    code(2, "rocblas_status_not_implemented", "not implemented for these types or this device"),
    code(3, "rocblas_status_invalid_pointer", "a null or wrong address"),
    code(4, "rocblas_status_invalid_size", "a size or leading dimension that does not fit"),
    code(5, "rocblas_status_memory_error", "not enough memory for its workspace"),
    code(
        6,
        "rocblas_status_internal_error",
        "rocBLAS failed by itself (does it have kernels for this device?)",
    ),
    code(11, "rocblas_status_invalid_value", "an argument that it does not take"),
    code(12, "rocblas_status_continue", "nothing to do"),
    code(13, "rocblas_status_check_numerics_fail", "a NaN or infinity was found"),
];

calls! {
    /// The opened library.
    pub struct Rocblas, described by describe;

    /// Creates a handle on the current device.
    fn rocblas_create_handle(handle: *mut rocblas_handle);
    /// Destroys a handle.
    fn rocblas_destroy_handle(handle: rocblas_handle);
    /// Sets the stream for the handle's work.
    fn rocblas_set_stream(handle: rocblas_handle, stream: hipStream_t);
    /// D = alpha·op(A)·op(B) + beta·C with column-major matrices, each with its own element type
    /// and leading dimension.
    fn rocblas_gemm_ex(
        handle: rocblas_handle, op_a: rocblas_operation, op_b: rocblas_operation, m: rocblas_int, n: rocblas_int,
        k: rocblas_int, alpha: *const c_void, a: *const c_void, a_type: rocblas_datatype, lda: rocblas_int,
        b: *const c_void, b_type: rocblas_datatype, ldb: rocblas_int, beta: *const c_void, c: *const c_void,
        c_type: rocblas_datatype, ldc: rocblas_int, d: *mut c_void, d_type: rocblas_datatype, ldd: rocblas_int,
        compute_type: rocblas_datatype, algo: rocblas_gemm_algo, solution_index: i32, flags: u32,
    );
}

/// The search for the library.
pub const SEARCH: Search = Search {
    library: "rocBLAS (librocblas.so)",
    names: &[
        "librocblas.so.6",
        "librocblas.so.5",
        "librocblas.so.4",
        "librocblas.so.3",
        "librocblas.so.0",
        "librocblas.so",
    ],
    variable: "KJIT_ROCBLAS_LIBRARY",
    package: "it comes with AMD's ROCm and is optional: kjit's own kernels do without it",
};

impl Rocblas {
    /// Opens the library. `more` lists further folders; it is called only if no other library
    /// opens.
    ///
    /// # Errors
    /// [`Error::NotFound`] with all searched paths; [`Error::Missing`] if the library lacks a call.
    pub fn open(more: impl FnOnce() -> Vec<PathBuf>) -> Result<Rocblas, Error> {
        let rocblas = Rocblas::over(SEARCH.open(more)?);
        match rocblas.missing().first() {
            Some(symbol) => Err(Error::Missing { symbol, library: rocblas.opened().place.clone() }),
            None => Ok(rocblas),
        }
    }
}

fn describe(_: &Rocblas, code: u32) -> (String, String) {
    match name_in(CODES, code) {
        Some(row) => (row.name.to_owned(), row.says.to_owned()),
        None => ("no name".to_owned(), "a failure newer than kjit".to_owned()),
    }
}

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
