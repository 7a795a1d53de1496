//! What can go wrong, told apart so that a caller can act on it: each one line that names the thing
//! and what to do.

use std::path::PathBuf;

/// Every failure of the engine. Cheap to clone: failed keys are remembered and answered again.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target's text names nothing that kjit can compile for.
    #[error("target '{asked}': {why}")]
    Target {
        /// What was asked.
        asked: String,
        /// Why not, and what there is.
        why: String,
    },
    /// A source, its constants or its options contradict themselves.
    #[error("kernel source '{kernel}': {why}")]
    Source {
        /// The kernel's name.
        kernel: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nothing in the cache fits and no compiler can be had.
    #[error(
        "kernel '{kernel}' for {target} is not in the cache and cannot be compiled here: {why}"
    )]
    Miss {
        /// The kernel.
        kernel: String,
        /// The compile target.
        target: String,
        /// Why no compiler: the library, the paths tried, the package that has it.
        why: String,
    },
    /// A code object whose bytes are not what its format says.
    #[error("code object of '{kernel}' is damaged: {why}")]
    Corrupt {
        /// The kernel or file.
        kernel: String,
        /// Where and what.
        why: String,
    },
    /// The compiler refused the source.
    #[error("{0}")]
    Compile(std::sync::Arc<CompileFailure>),
    /// The compiler process died, hung or answered nonsense.
    #[error("compiler process for '{kernel}' ({compiler}) {what}{}", .log.as_ref().map(|l| format!("; log: {}", l.display())).unwrap_or_default())]
    Worker {
        /// The kernel it was at.
        kernel: String,
        /// Which compiler.
        compiler: String,
        /// What happened: `was killed by signal 6`, `ran past 120 s`.
        what: String,
        /// Where its output was kept.
        log: Option<PathBuf>,
    },
    /// No compiler process can be started: whatever compilers there are, none of them can be asked.
    #[error("a compiler cannot be started: {why}")]
    NoProcess {
        /// What stands against it, and what to do.
        why: String,
    },
    /// The driver does not take the code object.
    #[error("loading '{kernel}' on {device}: {why}")]
    Load {
        /// The kernel.
        kernel: String,
        /// The device.
        device: String,
        /// The driver's words, versions where they matter.
        why: String,
    },
    /// A launch that the code object or the device cannot take; found before the driver sees it
    /// where possible.
    #[error("launch of '{kernel}': {why}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// What does not fit.
        why: String,
    },
    /// No such device.
    #[error("device {asked}: {why}")]
    NoDevice {
        /// `cuda:7`, `rocm:0`, `auto`.
        asked: String,
        /// What there is instead, what hides devices.
        why: String,
    },
    /// A library that had to be opened is not there.
    #[error("{library} not found: {why}; {}{package}", looked(.tried))]
    NoLibrary {
        /// `libcuda.so.1`, `libnvrtc`.
        library: String,
        /// Why it is needed or what the loader said.
        why: String,
        /// Every place looked at.
        tried: Vec<String>,
        /// What to install.
        package: String,
    },
    /// The device has not that much memory left.
    #[error(
        "out of device memory on {device}: asked {} for {what}, free {} of {}",
        bytes(*.asked), bytes(*.free), bytes(*.total)
    )]
    OutOfMemory {
        /// The device.
        device: String,
        /// For what.
        what: String,
        /// Bytes asked for.
        asked: u64,
        /// Bytes free: what would fit.
        free: u64,
        /// Bytes the device has.
        total: u64,
    },
    /// The system or the driver gives no page-locked memory.
    #[error(
        "{device} is given no page-locked memory of the system ({} asked; {call}: {says}): too \
         little of it is free, \
         or a container bounds it (start it with --ulimit memlock=-1 and more --memory)",
        bytes(*.asked)
    )]
    Pinned {
        /// The device.
        device: String,
        /// Bytes asked for.
        asked: u64,
        /// The call that was refused.
        call: &'static str,
        /// The driver's words.
        says: String,
    },
    /// A driver call failed in a way that nothing above names better.
    #[error("{call} on {device}: {says} (code {code})")]
    Driver {
        /// The call.
        call: &'static str,
        /// The device.
        device: String,
        /// The driver's number.
        code: u32,
        /// The driver's sentence.
        says: String,
    },
    /// What a kernel did wrong has ended all work on a device: nothing that was made on it can be
    /// used any more. once all that is dropped, `Engine::device` opens it anew where the driver
    /// allows that; where it answers with this error again, only a new process has the device.
    #[error(
        "{device} is lost: {says} ({call}, code {code}): what a kernel did ends all that this \
         process has there"
    )]
    DeviceLost {
        /// The call that told.
        call: &'static str,
        /// The device.
        device: String,
        /// The driver's number.
        code: u32,
        /// The driver's sentence.
        says: String,
    },
    /// A range, size or alignment that a buffer does not have.
    #[error("buffer: {0}")]
    Buffer(String),
    /// The disk said no to something that is not the cache.
    #[error("{path}: {why}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
}

impl Error {
    /// The same without the places that were looked into: for a line that has room for one clause.
    #[must_use]
    pub fn brief(&self) -> String {
        match self {
            Error::NoLibrary { library, .. } => format!("{library} not found"),
            Error::NoDevice { why, .. } => why.clone(),
            other => other.to_string(),
        }
    }
}

/// The places, if any were looked into.
fn looked(places: &[String]) -> String {
    if places.is_empty() { String::new() } else { format!("tried {}; ", places.join(", ")) }
}

/// A compile error with all that is needed to see it again.
#[derive(Clone, Debug)]
pub struct CompileFailure {
    /// The kernel's name.
    pub kernel: String,
    /// The compile target (`sm_90a`).
    pub target: String,
    /// Which compiler and version.
    pub compiler: String,
    /// The constants, as `NAME=value`, sorted.
    pub constants: String,
    /// The whole command line.
    pub arguments: Vec<String>,
    /// The compiler's own output.
    pub log: String,
    /// The directory with log, options, constants and rendered source; none when no directory could
    /// be written.
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
        write!(f, ": {}", first.unwrap_or("the compiler said nothing").trim())?;
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

/// Bytes as people read them: `512 B`, `1.5 MiB`.
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
