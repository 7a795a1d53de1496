//! The interface of a compiler.

use super::compiled::{Compiled, Probe};
use super::{discover, protocol};
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
