//! Proof bundles: the kernels' cases for an architecture as files, for users who have the GPU or an
//! emulator but do not have kjit.
//!
//! A bundle is a folder:
//!
//! - `manifest.json`: the cases; `data.bin`: the buffers' bytes,
//! - `code/*.co`: code objects, each once,
//! - `README.txt`: how to run it by hand,
//! - `check_bundle.py`: checks the bundle and the results of a run without kjit,
//! - `run_bundle.py`: runs its launches in an emulator of the machine code,
//! - `SHA256SUMS` over all of these, written last.
//!
//! [`export`] writes a bundle without a device; [`Bundle::open`] checks every byte, and
//! [`Bundle::run`] runs it.

mod read;
mod write;

pub use read::Bundle;
pub use write::{ExportOptions, Exported, LIMIT, export};

use kjit_engine::Error;
use kjit_kernels::SpecError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The value of [`Manifest::format`].
const FORMAT: &str = "kjit proof bundle";
/// The version of the format that this build writes and reads.
const VERSION: u32 = 2;
const MANIFEST: &str = "manifest.json";
const DATA: &str = "data.bin";
const README: &str = "README.txt";
const CHECK: &str = "check_bundle.py";
const RUN: &str = "run_bundle.py";
const SUMS: &str = "SHA256SUMS";

/// The reason why a bundle cannot be written, read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The target folder is not empty.
    #[error("{}: the folder is not empty: use a new or empty folder", .0.display())]
    NotEmpty(PathBuf),
    /// The folder is not a bundle.
    #[error("{}: not a proof bundle ({SUMS} is missing): \
        create one with kjit doctor --export DIR --arch A", .0.display())]
    NoBundle(PathBuf),
    /// The content was changed after writing. None of its kernels is run.
    #[error("{}: {why}: download the bundle again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The location and the difference.
        why: String,
    },
    /// The bundle is intact, but this build does not support its format.
    #[error("{}: {why}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The version of the bundle, and the supported one.
        why: String,
    },
    /// The bundle is for another architecture.
    #[error(
        "the bundle is for {bundle}, but {label} is a {device}: \
         export a bundle with --arch {device}"
    )]
    Arch {
        /// Architecture of the bundle.
        bundle: String,
        /// Label of the device.
        label: String,
        /// Architecture of the device.
        device: String,
    },
    /// A case does not fit the code object that was compiled for it.
    #[error("case {case}: {why}")]
    Case {
        /// Name of the case.
        case: String,
        /// The mismatch.
        why: String,
    },
    /// No case matches the filter.
    #[error("no case's name contains '{0}'")]
    NoCase(String),
    /// Cases cannot be created for the target.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A kernel does not compile or load.
    #[error(transparent)]
    Engine(#[from] Error),
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> BundleError + '_ {
    move |source| BundleError::Io { path: path.to_path_buf(), source }
}

/// The manifest.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u32,
    /// The version of kjit that wrote it.
    pub kjit: String,
    pub kernel_abi: u32,
    /// The target of all code, such as `gfx942`.
    pub arch: String,
    /// The seed of the random inputs.
    pub seed: u64,
    pub code: Vec<Code>,
    pub cases: Vec<Entry>,
    pub left_out: Vec<SkippedCase>,
}

/// A code object.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Code {
    pub file: String,
    pub sha256: String,
    /// Name of the kernel family.
    pub name: String,
    /// The compiler's arguments.
    pub compiled_for: String,
    /// AMD's code-object version.
    pub code_object_version: Option<u32>,
    pub compiler: String,
    pub wave: u32,
}

/// One launch and its expected results.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub name: String,
    /// Index into [`Manifest::code`].
    pub code: usize,
    pub symbol: String,
    pub wave: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_lds: u32,
    /// Bytes of shared memory that the code object declares.
    pub static_lds: u32,
    /// Bytes of the argument block including hidden arguments; `None` if the code object does not
    /// give it.
    pub kernarg_bytes: Option<u32>,
    pub cooperative: bool,
    pub arguments: Arguments,
    pub buffers: Vec<Buffer>,
}

/// The argument block: its bytes, with 0 for addresses, and the offsets of the arguments.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Arguments {
    pub hex: String,
    pub slots: Vec<BufferSlot>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BufferSlot {
    pub offset: u32,
    pub size: u32,
    pub kind: SlotKind,
    /// Index of the buffer in the case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SlotKind {
    Buffer,
    Null,
    U32,
    U64,
    F32,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Buffer {
    pub name: String,
    pub bytes: u64,
    pub before: Content,
    pub after: ExpectedContent,
}

/// A buffer's bytes: one repeated byte, or an offset in `data.bin`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Fill(u8),
    At(u64),
}

/// The expected content of a buffer after the launch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "must_be", rename_all = "snake_case")]
pub(super) enum ExpectedContent {
    Unchanged,
    Anything,
    Exactly {
        content: Content,
    },
    /// `values` little-endian f64 from offset `at` of `data.bin`.
    Near {
        storage: Storage,
        at: u64,
        values: u64,
        norm: f64,
        each: f64,
        reason: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Storage {
    F32,
    F16,
}

/// A case that is not in the bundle.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SkippedCase {
    pub name: String,
    pub bytes: u64,
    pub why: String,
}
