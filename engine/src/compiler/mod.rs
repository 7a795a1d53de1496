//! Compilers: their interface, the list of kinds, and the processes that run them.

mod amdgpu;
mod candidates;
pub(crate) mod child;
mod clang;
pub(crate) mod compiled;
mod descendants;
pub(crate) mod discover;
mod hiprtc;
pub(crate) mod info;
mod interface;
mod nvrtc;
pub(crate) mod protocol;
mod scratch;
pub(crate) mod toolchain;
pub(crate) mod wait;
pub(crate) mod worker;

use interface::{Backend, Compiler};
use std::path::Path;

/// All compilers. The compilers of a vendor are in order of preference.
pub(crate) const COMPILERS: &[&dyn Compiler] = &[&nvrtc::Nvrtc, &hiprtc::Kind, &clang::Kind];

/// Opens a compiler by its kind. It is used by child processes and to compile in this process.
pub(crate) fn open(kind: &str, file: &Path) -> Result<Box<dyn Backend>, String> {
    match kind {
        "nvrtc" => Ok(Box::new(nvrtc::NvrtcLibrary::open(file)?)),
        "hiprtc" => Ok(Box::new(hiprtc::HiprtcLibrary::open(file)?)),
        "clang" => Ok(Box::new(clang::ClangCompiler::open(file)?)),
        other => Err(format!("this build has no compiler '{other}'")),
    }
}
