//! Proof bundles: the kernels' cases for an architecture as files, for whoever has the card, or an
//! emulator of it, and not kjit.
//!
//! A bundle is a folder: `manifest.json`, `data.bin` (the buffers' bytes), `code/*.co` (code
//! objects, each once), a `README.txt` that says all that one needs to run it by hand,
//! `check_bundle.py` that checks it and what a run gave without kjit, `run_bundle.py` that hands
//! its launches to anybody's emulator of the machine code, and `SHA256SUMS`, written last, over all
//! of these. [`export`] makes one without any device; [`Bundle::open`] checks every byte of one,
//! and [`Bundle::run`] runs it.

mod read;
mod write;

pub use read::Bundle;
pub use write::{Exported, LIMIT, Wish, export};

use kjit_engine::Error;
use kjit_kernels::SpecError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What [`Manifest::format`] says.
const FORMAT: &str = "kjit proof bundle";
/// The version of the format that this build writes and reads.
const VERSION: u32 = 2;
const MANIFEST: &str = "manifest.json";
const DATA: &str = "data.bin";
const README: &str = "README.txt";
const CHECK: &str = "check_bundle.py";
const RUN: &str = "run_bundle.py";
const SUMS: &str = "SHA256SUMS";

/// Why a bundle cannot be written, read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The disk said no.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's words.
        source: std::io::Error,
    },
    /// The folder that is to become a bundle has something in it.
    #[error("{}: there is something in it already; give a new or empty folder", .0.display())]
    NotEmpty(PathBuf),
    /// There is no bundle there.
    #[error("{}: no proof bundle: it has no {SUMS}; kjit doctor --export DIR --arch A makes one", .0.display())]
    NoBundle(PathBuf),
    /// What is there is not what its maker wrote. Nothing of it is run.
    #[error("{}: {why}; get the bundle anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where and what.
        why: String,
    },
    /// A whole bundle that this build does not understand.
    #[error("{}: {why}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is, and what was expected.
        why: String,
    },
    /// The bundle is for other devices.
    #[error("the bundle is for {bundle}, {label} is a {device}: export one with --arch {device}")]
    Arch {
        /// What the bundle was made for.
        bundle: String,
        /// The device at hand.
        label: String,
        /// Its architecture.
        device: String,
    },
    /// A case does not fit the code object that was compiled for it.
    #[error("case {case}: {why}")]
    Case {
        /// The case.
        case: String,
        /// What does not fit.
        why: String,
    },
    /// No case is left to export.
    #[error("no case's name contains '{0}'")]
    NoCase(String),
    /// Cases cannot be made for the target.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A kernel does not compile or load.
    #[error(transparent)]
    Engine(#[from] Error),
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> BundleError + '_ {
    move |source| BundleError::Io { path: path.to_path_buf(), source }
}

/// All that a bundle says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u32,
    /// kjit's version that wrote it.
    pub kjit: String,
    pub kernel_abi: u32,
    /// `gfx942`: what all of it was compiled for.
    pub arch: String,
    /// Of the random inputs.
    pub seed: u64,
    pub code: Vec<Code>,
    pub cases: Vec<Entry>,
    pub left_out: Vec<LeftOut>,
}

/// A code object.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Code {
    pub file: String,
    pub sha256: String,
    /// The kernels' family.
    pub name: String,
    /// What the compiler was given.
    pub compiled_for: String,
    /// AMD's code-object version.
    pub code_object_version: Option<u32>,
    pub compiler: String,
    pub wave: u32,
}

/// One launch, and what must come of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    pub name: String,
    /// Which of the code objects.
    pub code: usize,
    pub symbol: String,
    pub wave: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_lds: u32,
    /// What the code object declares itself.
    pub static_lds: u32,
    /// Bytes of the whole argument block, hidden arguments included, where the code object tells.
    pub kernarg_bytes: Option<u32>,
    pub cooperative: bool,
    pub arguments: Arguments,
    pub buffers: Vec<Buffer>,
}

/// The argument block: its bytes with 0 where addresses belong, and what lies where.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Arguments {
    pub hex: String,
    pub slots: Vec<Slot>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slot {
    pub offset: u32,
    pub size: u32,
    pub kind: SlotKind,
    /// For a buffer: which, of the case's.
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
    pub after: After,
}

/// Bytes: all alike, or a part of `data.bin`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Fill(u8),
    At(u64),
}

/// What must be in a buffer after the launch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "must_be", rename_all = "snake_case")]
pub(super) enum After {
    Unchanged,
    Anything,
    Exactly {
        content: Content,
    },
    /// `values` little-endian f64 from `at` in `data.bin` on.
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
pub(super) struct LeftOut {
    pub name: String,
    pub bytes: u64,
    pub why: String,
}
