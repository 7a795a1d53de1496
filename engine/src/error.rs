//! The engine's errors. Callers can distinguish them and react. Each is one line that names the
//! object and what to do.

use std::path::PathBuf;

/// All errors of the engine. Cheap to clone: failures are cached and returned again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// kjit cannot compile for the named target.
    #[error("target '{asked}': {why}")]
    Target {
        /// The requested name.
        asked: String,
        /// The reason, and the targets that exist.
        why: String,
    },
    /// A source, its constants or its options are inconsistent.
    #[error("kernel source '{kernel}': {why}")]
    Source {
        /// The kernel's name.
        kernel: String,
        /// The reason.
        why: String,
    },
    /// The kernel is not in the cache, and a compiler is missing.
    #[error(
        "kernel '{kernel}' for {target} is not in the cache and cannot be compiled here: {why}"
    )]
    Miss {
        /// The kernel.
        kernel: String,
        /// The compile target.
        target: String,
        /// Why a compiler is missing: the library, the searched paths, the package to install.
        why: String,
    },
    /// The bytes of a code object do not match its format.
    #[error("code object of '{kernel}' is damaged: {why}")]
    Corrupt {
        /// The kernel or file.
        kernel: String,
        /// Offset, and the reason.
        why: String,
    },
    /// The source has errors.
    #[error("{0}")]
    Compile(std::sync::Arc<CompileFailure>),
    /// The compiler process died, hung or sent an invalid answer.
    #[error("compiler process for '{kernel}' ({compiler}) {what}{}", .log.as_ref().map(|l| format!("; log: {}", l.display())).unwrap_or_default())]
    Worker {
        /// The kernel being compiled.
        kernel: String,
        /// The compiler.
        compiler: String,
        /// The kind of failure: `was killed by signal 6`, `was stopped after 120 s (time limit)`.
        what: String,
        /// The file of its output.
        log: Option<PathBuf>,
    },
    /// No compiler process can be started, for any compiler.
    #[error("a compiler cannot be started: {why}")]
    NoProcess {
        /// The reason, and what to do.
        why: String,
    },
    /// The driver refused the code object.
    #[error("loading '{kernel}' on {device}: {why}")]
    Load {
        /// The kernel.
        kernel: String,
        /// The device.
        device: String,
        /// The driver's message, with versions if they matter.
        why: String,
    },
    /// A launch does not match the code object or the device. If possible this is found before the
    /// driver call.
    #[error("launch of '{kernel}': {why}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// The mismatch.
        why: String,
    },
    /// The device does not exist.
    #[error("device {asked}: {why}")]
    NoDevice {
        /// The request: `cuda:7`, `rocm:0`, `auto`.
        asked: String,
        /// The existing devices, and settings that hide devices.
        why: String,
    },
    /// A required library is missing.
    #[error("{library} not found: {why}; {}{package}", searched_paths(.tried))]
    NoLibrary {
        /// `libcuda.so.1`, `libnvrtc`.
        library: String,
        /// Why it is needed, or the loader's message.
        why: String,
        /// All paths that were searched.
        tried: Vec<String>,
        /// The package to install.
        package: String,
    },
    /// The device has not enough free memory.
    #[error(
        "out of device memory on {device}: asked {} for {what}, free {} of {}",
        bytes(*.asked), bytes(*.free), bytes(*.total)
    )]
    OutOfMemory {
        /// The device.
        device: String,
        /// The purpose of the allocation.
        what: String,
        /// Requested bytes.
        asked: u64,
        /// Free bytes.
        free: u64,
        /// Total bytes of the device.
        total: u64,
    },
    /// The system or the driver refused page-locked memory.
    #[error(
        "{device}: page-locked memory was refused ({} requested; {call}: {says}): too little system memory is free, or a container limits it (start it with --ulimit memlock=-1 and more --memory)",
        bytes(*.asked)
    )]
    Pinned {
        /// The device.
        device: String,
        /// Requested bytes.
        asked: u64,
        /// The call that failed.
        call: &'static str,
        /// The driver's message.
        says: String,
    },
    /// A driver call failed for a reason that is not listed above.
    #[error("{call} on {device}: {says} (code {code})")]
    Driver {
        /// The call.
        call: &'static str,
        /// The device.
        device: String,
        /// The driver's code.
        code: u32,
        /// The driver's message.
        says: String,
    },
    /// A kernel fault ended all work on a device; no object on the device can be used. When all
    /// these objects are dropped, `Engine::device` reopens the device if the driver supports that.
    /// If this error is returned again, a new process is needed.
    #[error(
        "{device} is lost: {says} ({call}, code {code}): after a kernel fault this process cannot use the device"
    )]
    DeviceLost {
        /// The call that reported the fault.
        call: &'static str,
        /// The device.
        device: String,
        /// The driver's code.
        code: u32,
        /// The driver's message.
        says: String,
    },
    /// An invalid range, size or alignment of a buffer.
    #[error("buffer: {0}")]
    Buffer(String),
    /// A file operation outside the cache failed.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        why: String,
    },
}

impl Error {
    /// The message without the searched paths, for short lines.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Error::NoLibrary { library, .. } => format!("{library} not found"),
            Error::NoDevice { why, .. } => why.clone(),
            other => other.to_string(),
        }
    }
}

/// The searched paths, if there are any.
fn searched_paths(places: &[String]) -> String {
    if places.is_empty() { String::new() } else { format!("tried {}; ", places.join(", ")) }
}

/// A compile error with everything needed to reproduce it.
#[derive(Clone, Debug)]
pub struct CompileFailure {
    /// The kernel's name.
    pub kernel: String,
    /// The compile target (`sm_90a`).
    pub target: String,
    /// The compiler and its version.
    pub compiler: String,
    /// The constants, as `NAME=value`, sorted.
    pub constants: String,
    /// All arguments.
    pub arguments: Vec<String>,
    /// The compiler's output.
    pub log: String,
    /// The folder with log, options, constants and rendered source; `None` if it could not be
    /// written.
    pub kept: Option<PathBuf>,
}

impl std::fmt::Display for CompileFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first = self
            .log
            .lines()
            .find(|l| l.contains("error"))
            .or_else(|| self.log.lines().find(|l| !l.trim().is_empty()));
        write!(
            f,
            "kernel '{}' for {} does not compile ({})",
            self.kernel, self.target, self.compiler
        )?;
        if !self.constants.is_empty() {
            write!(f, " with {}", self.constants)?;
        }
        write!(f, ": {}", first.unwrap_or("the compiler printed no message").trim())?;
        if let Some(kept) = &self.kept {
            write!(
                f,
                "; source, options and log are in {0}, sh {0}/again.sh repeats it",
                kept.display()
            )?;
        }
        Ok(())
    }
}

/// A number of bytes in a readable form: `512 B`, `1.5 MiB`.
#[must_use]
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
