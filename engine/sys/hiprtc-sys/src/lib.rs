//! hiprtc, AMD's run-time compiler, and comgr, which lists the architectures. Both are opened at
//! run time, and every call returns a `Result`. [`Hiprtc`] and [`Comgr`] declare the calls. The
//! names are the vendor's names.
//!
//! ```
//! use hiprtc_sys::Hiprtc;
//! match Hiprtc::open(Vec::new) {
//!     Ok(hiprtc) => {
//!         let (mut major, mut minor) = (0, 0);
//!         // SAFETY: writes two ints.
//!         unsafe { hiprtc.hiprtcVersion(&mut major, &mut minor) }.expect("it says its version without a GPU");
//!         println!("hiprtc's interface {major}.{minor}");
//!     }
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

use hip_sys::{CodeName, Error, LoadedLibrary, Search, calls, code, name_in};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// A program to compile.
pub type hiprtcProgram = *mut c_void;

/// The source has errors, which are in the log.
pub const HIPRTC_ERROR_COMPILATION: u32 = 6;

/// hiprtc's codes.
pub const CODES: &[CodeName] = &[
    code(1, "HIPRTC_ERROR_OUT_OF_MEMORY", "not enough memory"),
    code(2, "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE", "the program could not be made"),
    code(3, "HIPRTC_ERROR_INVALID_INPUT", "an argument that it does not take"),
    code(4, "HIPRTC_ERROR_INVALID_PROGRAM", "no such program"),
    code(5, "HIPRTC_ERROR_INVALID_OPTION", "an option that it does not know"),
    code(HIPRTC_ERROR_COMPILATION, "HIPRTC_ERROR_COMPILATION", "the source does not compile"),
    code(
        7,
        "HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        "its own headers or device libraries could not be used",
    ),
    code(
        8,
        "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        "a name was added after the compile",
    ),
    code(
        9,
        "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
        "a name was asked for before the compile",
    ),
    code(10, "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID", "no such name in the program"),
    code(11, "HIPRTC_ERROR_INTERNAL_ERROR", "the compiler failed by itself"),
];

calls! {
    /// The opened compiler.
    pub struct Hiprtc, described by describe_hiprtc;

    /// Version of hiprtc's interface (9.0 in ROCm 5 to 7). It is independent of the compiler.
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int);
    /// Creates a program from a source and its headers.
    fn hiprtcCreateProgram(
        program: *mut hiprtcProgram, source: *const c_char, name: *const c_char, header_count: c_int,
        headers: *mut *const c_char, include_names: *mut *const c_char,
    );
    /// Compiles a program. **Aborts the process** for an architecture that comgr does not know;
    /// check [`Comgr::isas`] first.
    fn hiprtcCompileProgram(program: hiprtcProgram, count: c_int, options: *mut *const c_char);
    /// Bytes of the log, including the terminator.
    fn hiprtcGetProgramLogSize(program: hiprtcProgram, size: *mut usize);
    /// The log.
    fn hiprtcGetProgramLog(program: hiprtcProgram, log: *mut c_char);
    /// Bytes of the code object.
    fn hiprtcGetCodeSize(program: hiprtcProgram, size: *mut usize);
    /// The code object.
    fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char);
    /// Destroys a program.
    fn hiprtcDestroyProgram(program: *mut hiprtcProgram);
}

/// The search for the compiler. In Debian 12's ROCm 5 it is part of the runtime library.
pub const SEARCH: Search = Search {
    library: "AMD's run-time compiler (libhiprtc.so)",
    names: &[
        "libhiprtc.so.10",
        "libhiprtc.so.9",
        "libhiprtc.so.8",
        "libhiprtc.so.7",
        "libhiprtc.so.6",
        "libhiprtc.so.5",
        "libhiprtc.so",
        "libamdhip64.so.5",
    ],
    variable: "KJIT_HIPRTC_LIBRARY",
    package: "it comes with AMD's ROCm (Debian: libamdhip64-5 libhiprtc-builtins5 rocm-device-libs); KJIT_HIPRTC_LIBRARY names the file",
};

impl Hiprtc {
    /// Opens the compiler. `more` lists further folders; it is called only if no other library
    /// opens.
    ///
    /// # Errors
    /// [`Error::NotFound`] with all searched paths; [`Error::Missing`] if the library lacks a call.
    pub fn open(more: impl FnOnce() -> Vec<PathBuf>) -> Result<Hiprtc, Error> {
        Hiprtc::complete(SEARCH.open(more)?)
    }

    /// Opens a compiler file.
    ///
    /// # Errors
    /// See [`Hiprtc::open`].
    pub fn open_file(file: &Path) -> Result<Hiprtc, Error> {
        Hiprtc::complete(LoadedLibrary::file(&SEARCH, file)?)
    }

    fn complete(opened: LoadedLibrary) -> Result<Hiprtc, Error> {
        let hiprtc = Hiprtc::over(opened);
        match hiprtc.missing().first() {
            Some(symbol) => Err(Error::Missing { symbol, library: hiprtc.opened().place.clone() }),
            None => Ok(hiprtc),
        }
    }
}

fn describe_hiprtc(_: &Hiprtc, code: u32) -> (String, String) {
    match name_in(CODES, code) {
        Some(row) => (row.name.to_owned(), row.says.to_owned()),
        None => ("no name".to_owned(), "a failure newer than kjit".to_owned()),
    }
}

calls! {
    /// The opened code-object manager, which hiprtc uses.
    pub struct Comgr, described by describe_comgr;

    /// Number of known architectures.
    fn amd_comgr_get_isa_count(count: *mut usize);
    /// An architecture by index: `amdgcn-amd-amdhsa--gfx90a`, a static string.
    fn amd_comgr_get_isa_name(index: usize, name: *mut *const c_char);
}

/// The search for comgr.
pub const COMGR_SEARCH: Search = Search {
    library: "AMD's code-object manager (libamd_comgr.so)",
    names: &["libamd_comgr.so.4", "libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so"],
    variable: "KJIT_COMGR_LIBRARY",
    package: "it comes with AMD's ROCm (Debian: libamd-comgr2)",
};

fn describe_comgr(_: &Comgr, code: u32) -> (String, String) {
    match code {
        1 => ("AMD_COMGR_STATUS_ERROR".to_owned(), "it failed".to_owned()),
        2 => (
            "AMD_COMGR_STATUS_ERROR_INVALID_ARGUMENT".to_owned(),
            "an argument that it does not take".to_owned(),
        ),
        3 => ("AMD_COMGR_STATUS_ERROR_OUT_OF_RESOURCES".to_owned(), "not enough memory".to_owned()),
        _ => ("no name".to_owned(), "a failure newer than kjit".to_owned()),
    }
}

impl Comgr {
    /// The comgr that `compiler` uses. It is the one already loaded as a dependency; otherwise the
    /// one in the same folder (from ROCm 6 on, comgr is opened at first use); otherwise the one
    /// that the loader finds.
    ///
    /// # Errors
    /// [`Error::NotFound`] with all searched paths.
    pub fn beside(compiler: &LoadedLibrary) -> Result<Comgr, Error> {
        // SAFETY: the signature is the one in the vendor's header. A lookup in a library also finds
        // symbols of its dependencies.
        let loaded = unsafe {
            compiler
                .symbol::<unsafe extern "C" fn(*mut usize) -> u32>("amd_comgr_get_isa_count")
                .is_some()
        };
        if loaded {
            return Ok(Comgr::over(compiler.clone()));
        }
        let folder =
            compiler.place.canonicalize().ok().and_then(|p| p.parent().map(Path::to_owned));
        let near = folder
            .iter()
            .flat_map(|f| COMGR_SEARCH.names.iter().map(|n| f.join(n)))
            .find(|p| p.is_file());
        let opened = match near {
            Some(file) => LoadedLibrary::file(&COMGR_SEARCH, &file)?,
            None => COMGR_SEARCH.open(Vec::new)?,
        };
        Ok(Comgr::over(opened))
    }

    /// The known architectures in short form: `gfx90a`.
    ///
    /// # Errors
    /// An error of comgr.
    pub fn isas(&self) -> Result<Vec<String>, Error> {
        let mut count = 0;
        // SAFETY: writes one number.
        unsafe { self.amd_comgr_get_isa_count(&mut count) }?;
        let mut names = Vec::new();
        for index in 0..count {
            let mut name = std::ptr::null();
            // SAFETY: writes one pointer; the index is below the count.
            unsafe { self.amd_comgr_get_isa_name(index, &mut name) }?;
            if !name.is_null() {
                // SAFETY: not null, so it is comgr's static, terminated string.
                let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
                names.push(name.rsplit('-').next().unwrap_or_default().to_owned());
            }
        }
        Ok(names)
    }
}

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
