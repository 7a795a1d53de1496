//! Compilers: what they must offer, which there are, and the processes that run them.

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

/// A kind of compiler, as the engine's own process sees it: where it may be and how it is called.
/// Pure: it opens nothing. (The part that opens the library is a [`Backend`], which runs in a child
/// process.)
pub(crate) trait Compiler: Send + Sync {
    /// `nvrtc`, `hiprtc`, `clang`.
    fn kind(&self) -> &'static str;
    /// Whose targets it compiles for.
    fn vendor(&self) -> Vendor;
    /// Flag or variable, variables of the SDK, loader path, folders, Python: where files of it may
    /// be, in order.
    fn places(&self, explicit: Option<&Path>) -> discover::Places;
    /// The major version that a file's name states (`libnvrtc.so.13.0.88` → 13).
    fn major_of(&self, file: &Path) -> Option<u32>;
    /// Whether a library of that major may be used with this driver; always without a driver.
    fn suits_driver(&self, major: u32, driver: Option<(u32, u32)>) -> bool;
    /// Files beside it whose bytes decide what it makes too, once its version is known.
    fn companions(&self, file: &Path, version: (u32, u32)) -> Vec<PathBuf>;
    /// The whole command line, without source and headers.
    fn arguments(&self, compile_id: &str, options: &Options) -> Vec<String>;
    /// What a machine must have to run what it makes.
    fn needs(&self, version: (u32, u32)) -> BTreeMap<String, String>;
    /// What to install when there is none.
    fn package(&self) -> &'static str;
    /// Vector-register spills by kernel, as the log tells; none where it does not.
    fn spills(&self, log: &str) -> BTreeMap<String, u32>;
}

/// An opened compiler, in the process that runs it.
pub(crate) trait Backend: Send {
    /// Version and the compile ids it knows.
    fn probe(&self) -> Result<Probe, String>;
    /// Compiles one source to machine code.
    fn compile(&self, request: &protocol::Request) -> Compiled;
}

/// What an opened compiler says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Probe {
    pub version: (u32, u32),
    /// Compile ids without feature flags; empty: it cannot be asked.
    pub ids: Vec<String>,
}

/// What came of a compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Compiled {
    /// Machine code and the compiler's log.
    Code { code: Vec<u8>, log: String },
    /// The source was refused; the log says why.
    Refused { log: String },
    /// The compiler itself failed.
    Broken { why: String },
}

/// Every compiler, in the order of preference within its vendor.
pub(crate) const COMPILERS: &[&dyn Compiler] = &[&nvrtc::Nvrtc, &hiprtc::Kind, &clang::Kind];

/// Opens a compiler by its kind: what child processes and in-process compiling do.
pub(crate) fn open(kind: &str, file: &Path) -> Result<Box<dyn Backend>, String> {
    match kind {
        "nvrtc" => Ok(Box::new(nvrtc::Opened::open(file)?)),
        "hiprtc" => Ok(Box::new(hiprtc::Opened::open(file)?)),
        "clang" => Ok(Box::new(clang::Opened::open(file)?)),
        other => Err(format!("no compiler of the kind '{other}' in this build")),
    }
}
