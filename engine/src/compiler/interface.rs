//! The interface of a compiler.

use super::compiled::{Compiled, Probe};
use super::{discover, protocol};
use crate::arch::Vendor;
use crate::source::Options;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A kind of compiler as seen by the engine's process: where to search it, and its arguments. It
/// opens no file; a [`Backend`] opens the library in a child process.
pub(crate) trait Compiler: Send + Sync {
    /// `nvrtc`, `hiprtc`, `clang`.
    fn kind(&self) -> &'static str;
    /// Vendor of the compiler's targets.
    fn vendor(&self) -> Vendor;
    /// The paths to search, in order: flag or variable, SDK variables, loader path, folders,
    /// Python.
    fn places(&self, explicit: Option<&Path>) -> discover::CandidateList;
    /// The major version in a file name (`libnvrtc.so.13.0.88` → 13).
    fn major_of(&self, file: &Path) -> Option<u32>;
    /// Whether a library of this major version works with this driver. Always true without a
    /// driver.
    fn suits_driver(&self, major: u32, driver: Option<(u32, u32)>) -> bool;
    /// Further files whose bytes influence the output. They depend on the version.
    fn companions(&self, file: &Path, version: (u32, u32)) -> Vec<PathBuf>;
    /// The complete arguments, without source and headers.
    fn arguments(&self, compile_id: &str, options: &Options) -> Vec<String>;
    /// The requirements of a machine that runs the output.
    fn needs(&self, version: (u32, u32)) -> BTreeMap<String, String>;
    /// The package to install if the compiler is missing.
    fn package(&self) -> &'static str;
    /// Vector-register spills per kernel from the log; empty if the log does not state them.
    fn spills(&self, log: &str) -> BTreeMap<String, u32>;
}

/// An opened compiler, in the process that runs it.
pub(crate) trait Backend: Send {
    /// The version, and the supported compile ids.
    fn probe(&self) -> Result<Probe, String>;
    /// Compiles one source to machine code.
    fn compile(&self, request: &protocol::Request) -> Compiled;
}
