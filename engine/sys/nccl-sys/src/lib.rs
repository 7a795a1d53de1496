//! NCCL, and RCCL with the same names: the calls needed for collectives between processes. The
//! library is optional and opened at run time, and every call returns a `Result`. [`Nccl`] declares
//! the calls. The names are the vendors' names.
//!
//! ```
//! match nccl_sys::Nccl::open(&nccl_sys::NCCL, Vec::new) {
//!     Ok(nccl) => println!("{}", nccl.opened().place.display()),
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
#![allow(non_camel_case_types, non_upper_case_globals, reason = "the vendors' names")]

pub use hip_sys::{Error, LoadedLibrary, Search, Signature};

use hip_sys::{CodeName, calls, code, name_in};
use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;

/// A communicator: a rank's handle.
pub type ncclComm_t = *mut c_void;
/// The vendor's stream: `cudaStream_t`, `hipStream_t`.
pub type stream_t = *mut c_void;
/// A result code: one of [`CODES`], or 0.
pub type ncclResult_t = u32;
/// Element type.
pub type ncclDataType_t = u32;

/// f32.
pub const ncclFloat32: ncclDataType_t = 7;
/// Threads of the library are still working. This is not an error.
pub const ncclInProgress: ncclResult_t = 7;

/// The unique id of a group. One rank creates it, and the caller sends it to the others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ncclUniqueId {
    /// Contents defined by the library.
    pub internal: [c_char; 128],
}

/// The libraries' codes. Old versions lack the last two.
pub const CODES: &[CodeName] = &[
    code(1, "ncclUnhandledCudaError", "a call to the GPU's driver failed"),
    code(2, "ncclSystemError", "a call to the operating system failed"),
    code(3, "ncclInternalError", "the library failed by itself"),
    code(4, "ncclInvalidArgument", "an argument that it does not take"),
    code(5, "ncclInvalidUsage", "a call that it does not allow (two ranks on one device?)"),
    code(6, "ncclRemoteError", "another rank or the network has failed"),
    code(7, "ncclInProgress", "still under way"),
];

calls! {
    /// The opened library.
    pub struct Nccl, described by describe;

    /// Version as major × 10 000 + minor × 100 + patch (before 2.9: major × 1000).
    fn ncclGetVersion(version: *mut c_int);
    /// Creates the unique id of a group.
    fn ncclGetUniqueId(id: *mut ncclUniqueId);
    /// Joins the other ranks with the current device; waits for all of them.
    fn ncclCommInitRank(comm: *mut ncclComm_t, ranks: c_int, id: ncclUniqueId, rank: c_int);
    /// Destroys a communicator after its work has ended.
    fn ncclCommDestroy(comm: ncclComm_t);
    /// Aborts a communicator's work and destroys it.
    fn ncclCommAbort(comm: ncclComm_t);
    /// The asynchronous error of a communicator, if there is one.
    fn ncclCommGetAsyncError(comm: ncclComm_t, error: *mut ncclResult_t);
    /// Gathers `count` elements of each rank, in rank order, on all ranks.
    fn ncclAllGather(
        from: *const c_void, to: *mut c_void, count: usize, kind: ncclDataType_t, comm: ncclComm_t, stream: stream_t,
    );
}

/// The search for NVIDIA's library.
pub const NCCL: Search = Search {
    library: "NCCL (libnccl.so.2)",
    names: &["libnccl.so.2", "libnccl.so"],
    variable: "KJIT_NCCL_LIBRARY",
    package: "install NVIDIA's package libnccl2, or the Python package nvidia-nccl-cu12",
};

/// The search for AMD's library.
pub const RCCL: Search = Search {
    library: "RCCL (librccl.so.1)",
    names: &["librccl.so.1", "librccl.so"],
    variable: "KJIT_RCCL_LIBRARY",
    package: "install ROCm's package rccl (Debian: librccl1)",
};

/// The folder of NVIDIA's Python package, below Python's package folder.
pub const WHEEL_FOLDER: &str = "nvidia/nccl/lib";

impl Nccl {
    /// Opens a library. `more` lists further folders; it is called only if no other library opens.
    ///
    /// # Errors
    /// [`Error::NotFound`] with all searched paths; [`Error::Missing`] if the library lacks a call.
    pub fn open(search: &Search, more: impl FnOnce() -> Vec<PathBuf>) -> Result<Nccl, Error> {
        let nccl = Nccl::over(search.open(more)?);
        match nccl.missing().first() {
            Some(symbol) => Err(Error::Missing { symbol, library: nccl.opened().place.clone() }),
            None => Ok(nccl),
        }
    }
}

/// The name and meaning of a code.
#[must_use]
pub fn name_and_meaning(code: ncclResult_t) -> (&'static str, &'static str) {
    name_in(CODES, code)
        .map_or(("no name", "a failure newer than kjit"), |row| (row.name, row.says))
}

fn describe(_: &Nccl, code: u32) -> (String, String) {
    let (name, says) = name_and_meaning(code);
    (name.to_owned(), says.to_owned())
}

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
