//! What every kernel family gives the engine: text, constants and the shape of a launch.

use crate::layout::LayoutError;
use kjit_engine::{Constants, Geometry, Job, Options, Source, Target};

/// A specialised kernel: everything that compiling and launching needs, for one target. Nothing in it depends on a live device.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The text, with the headers that it includes.
    pub source: Source,
    /// What is baked in.
    pub constants: Constants,
    /// Wave width and what else changes the meaning of the code.
    pub options: Options,
    /// The kernel's name in the code object.
    pub entry: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic LDS of a block, in bytes.
    pub shared: u32,
}

impl Kernel {
    /// What the engine compiles, for a target (the one that the kernel was specialised for).
    #[must_use]
    pub fn job(&self, target: &Target) -> Job {
        Job::new(self.source.clone(), self.constants.clone(), self.options.clone(), target.clone())
    }

    /// A launch of `blocks` blocks that may start before the kernel before it has ended (all kernels here wait by themselves).
    #[must_use]
    pub fn launch(&self, blocks: u32) -> Geometry {
        Geometry::new(blocks.max(1), self.block).shared(self.shared).dependent(true)
    }
}

/// Why a kernel cannot be specialised as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The weights cannot be laid out.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A size or a combination that the family does not cover.
    #[error("{kernel}: {why}")]
    Unsupported {
        /// The family.
        kernel: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The block's memory does not suffice.
    #[error("{kernel}: {need} bytes of LDS are needed in a block, {target} has {have}: {hint}")]
    Shared {
        /// The family.
        kernel: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there are.
        have: u32,
        /// The target.
        target: String,
        /// What to do instead.
        hint: &'static str,
    },
}

/// `Unsupported`, unless `fine`.
pub(crate) fn require(fine: bool, kernel: &'static str, why: impl FnOnce() -> String) -> Result<(), SpecError> {
    if fine { Ok(()) } else { Err(SpecError::Unsupported { kernel, why: why() }) }
}

/// Checks the dynamic LDS of a block; `fixed` bytes more are declared by the kernel itself.
pub(crate) fn shared_bytes(
    kernel: &'static str,
    target: &Target,
    bytes: usize,
    fixed: usize,
    hint: &'static str,
) -> Result<u32, SpecError> {
    let have = target.arch().shared_per_block;
    match u32::try_from(bytes) {
        Ok(b) if bytes + fixed <= have as usize => Ok(b),
        _ => Err(SpecError::Shared { kernel, need: bytes + fixed, have, target: target.to_string(), hint }),
    }
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../gpu/", $name)))),*]
    };
}

/// The kernels' files by name. A `.hip` file is a main file, a `.h` file a header.
const FILES: &[(&str, &str)] = files! {
    "activations.h"
    "argmax.hip"
    "attend.hip"
    "attend_mma.hip"
    "combine.hip"
    "dequant.h"
    "draw.hip"
    "embed.hip"
    "expert_sum.hip"
    "experts.hip"
    "flash.hip"
    "flash_wgmma.hip"
    "gate.h"
    "gemm.h"
    "gemm.hip"
    "gemm_wgmma.hip"
    "halves.h"
    "hopper.h"
    "kjit.h"
    "kv.h"
    "kv_tiles.h"
    "matvec.h"
    "matvec.hip"
    "mma.h"
    "moe.hip"
    "norm_rows.hip"
    "prepare.hip"
    "read.hip"
    "repack.hip"
    "rope.h"
    "rope_kv.hip"
    "route.hip"
    "rows.hip"
    "sample.h"
    "softmax.hip"
    "strips.hip"
    "tiles.hip"
    "weights.h"
};

/// The source whose main file is `file`, with all headers at hand (only those it includes count).
pub(crate) fn source(name: &'static str, file: &'static str) -> Source {
    let text = FILES.iter().find(|(f, _)| *f == file).map_or("", |(_, text)| *text);
    debug_assert!(!text.is_empty(), "{file} is not among the files");
    let headers = FILES.iter().filter(|(f, _)| f.ends_with(".h"));
    headers.fold(Source::new(name, file, text), |s, (f, text)| s.file(*f, *text))
}
