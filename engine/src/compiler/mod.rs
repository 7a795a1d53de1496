//! Compilers: their interface, the list of kinds, and the processes that run them.

mod amdgpu;
pub(crate) mod child;
mod clang;
mod descendants;
pub(crate) mod discover;
mod hiprtc;
mod nvrtc;
pub(crate) mod protocol;
pub(crate) mod toolchain;
pub(crate) mod worker;

use crate::arch::Vendor;
use crate::source::Options;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A kind of compiler as the engine's own process uses it: its places and its arguments. It opens
/// no file; a [`Backend`] opens the library in a child process.
pub(crate) trait Compiler: Send + Sync {
    /// `nvrtc`, `hiprtc`, `clang`.
    fn kind(&self) -> &'static str;
    /// The vendor of its targets.
    fn vendor(&self) -> Vendor;
    /// Its possible places in order: flag or variable, SDK variables, loader path, folders, Python.
    fn places(&self, explicit: Option<&Path>) -> discover::Places;
    /// The major version in a file name (`libnvrtc.so.13.0.88` → 13).
    fn major_of(&self, file: &Path) -> Option<u32>;
    /// Whether a library of this major version works with this driver. Always true without a
    /// driver.
    fn suits_driver(&self, major: u32, driver: Option<(u32, u32)>) -> bool;
    /// Further files whose bytes influence its output, once its version is known.
    fn companions(&self, file: &Path, version: (u32, u32)) -> Vec<PathBuf>;
    /// The complete arguments, without source and headers.
    fn arguments(&self, compile_id: &str, options: &Options) -> Vec<String>;
    /// The requirements of a machine that runs its output.
    fn needs(&self, version: (u32, u32)) -> BTreeMap<String, String>;
    /// The package to install if it is missing.
    fn package(&self) -> &'static str;
    /// Vector-register spills per kernel from the log; empty if the log does not state them.
    fn spills(&self, log: &str) -> BTreeMap<String, u32>;
}

/// An opened compiler, in the process that runs it.
pub(crate) trait Backend: Send {
    /// Its version and the compile ids that it knows.
    fn probe(&self) -> Result<Probe, String>;
    /// Compiles one source to machine code.
    fn compile(&self, request: &protocol::Request) -> Compiled;
}

/// The properties of an opened compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    pub version: (u32, u32),
    /// Compile ids without feature flags. Empty if the compiler cannot list them.
    pub ids: Vec<String>,
}

/// The result of a compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compiled {
    /// Machine code and the compiler's log.
    Code { code: Vec<u8>, log: String },
    /// The source has errors, which are in the log.
    Refused { log: String },
    /// The compiler itself failed.
    Broken { why: String },
}

/// All compilers, in order of preference within their vendor.
pub(crate) const COMPILERS: &[&dyn Compiler] = &[&nvrtc::Nvrtc, &hiprtc::Kind, &clang::Kind];

/// Opens a compiler by its kind. Used by child processes and for in-process compiling.
pub(crate) fn open(kind: &str, file: &Path) -> Result<Box<dyn Backend>, String> {
    match kind {
        "nvrtc" => Ok(Box::new(nvrtc::Opened::open(file)?)),
        "hiprtc" => Ok(Box::new(hiprtc::Opened::open(file)?)),
        "clang" => Ok(Box::new(clang::Opened::open(file)?)),
        other => Err(format!("no compiler of the kind '{other}' in this build")),
    }
}
