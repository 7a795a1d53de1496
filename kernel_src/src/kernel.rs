//! What every kernel family gives the engine: text, constants and the shape of a launch.

use crate::layout::LayoutError;
use crate::render::Shape;
use kjit_engine::{Constants, Job, Options, Source, Target};

/// A specialised kernel: everything that compiling and launching needs, for one target. Nothing in
/// it depends on a live device.
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
        let constants = self.constants.clone();
        let constants =
            if target.arch().has("f32-alone") { constants.set("KJ_F32", 1) } else { constants };
        Job::new(self.source.clone(), constants, self.options.clone(), target.clone())
    }
}

/// A kernel of one step, of one entry point whose file has its name: its shape becomes `shape.h`,
/// `macros` are those of the compilation (`gpu/kjit.h`). Block and LDS as [`Kernel`] has them.
pub(crate) fn of_shape(
    name: &'static str,
    shape: &Shape,
    macros: Constants,
    wave: u32,
    block: u32,
) -> Kernel {
    let file = FILES
        .iter()
        .map(|(f, _)| *f)
        .find(|f| f.strip_suffix(".hip") == Some(name))
        .unwrap_or_default();
    Kernel {
        source: source(name, file).file("shape.h", shape.header()).entry(name),
        constants: shape.tell(macros.set("KJ_BLOCK", block)),
        options: Options::wave(wave),
        entry: name,
        block,
        shared: 0,
    }
}

/// Why a kernel cannot be specialised as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
pub(crate) fn require(
    fine: bool,
    kernel: &'static str,
    why: impl FnOnce() -> String,
) -> Result<(), SpecError> {
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
        _ => Err(SpecError::Shared {
            kernel,
            need: bytes + fixed,
            have,
            target: target.to_string(),
            hint,
        }),
    }
}

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../gpu/", $name)))),*]
    };
}

/// The kernels' files by name. A `.hip` file is a main file, a `.h` file a header; `enums.h`,
/// `row_enums.h` and `shape.h` are rendered.
const FILES: &[(&str, &str)] = files! {
    "activations.h"
    "adjust.h"
    "adjust.hip"
    "argmax.h"
    "argmax.hip"
    "attend.h"
    "attend.hip"
    "attend_args.h"
    "attend_mma.h"
    "attend_mma.hip"
    "attend_wide.h"
    "attend_wide.hip"
    "chosen.h"
    "combine.h"
    "combine.hip"
    "conv.h"
    "conv.hip"
    "decay.h"
    "decay.hip"
    "dequant.h"
    "dots.h"
    "draw.h"
    "draw.hip"
    "draw_few.h"
    "embed.h"
    "embed.hip"
    "expert_sum.h"
    "expert_sum.hip"
    "experts.h"
    "experts.hip"
    "flash.h"
    "flash.hip"
    "flash_args.h"
    "flash_wgmma.h"
    "flash_wgmma.hip"
    "gate.h"
    "gemm.h"
    "gemm.hip"
    "gemm_common.h"
    "gemm_wgmma.h"
    "gemm_wgmma.hip"
    "halves.h"
    "hopper.h"
    "kept.h"
    "keep.h"
    "keep.hip"
    "key_scores.h"
    "key_scores.hip"
    "kjit.h"
    "kv.h"
    "kv_tiles.h"
    "latent.h"
    "latent.hip"
    "latent_flash.h"
    "latent_flash.hip"
    "linear.h"
    "linear.hip"
    "map.h"
    "map.hip"
    "matvec.h"
    "matvec.hip"
    "mma.h"
    "moe.h"
    "moe.hip"
    "noise.h"
    "norm_rows.h"
    "norm_rows.hip"
    "packets.h"
    "paged.h"
    "peer.h"
    "persist.h"
    "quantize.h"
    "quantize.hip"
    "read.h"
    "read.hip"
    "reduce.h"
    "reduce.hip"
    "repack.h"
    "repack.hip"
    "rope.h"
    "rope_kv.h"
    "rope_kv.hip"
    "route.h"
    "route.hip"
    "rows.h"
    "rows.hip"
    "sample.h"
    "scan.h"
    "scan.hip"
    "scores.h"
    "slices.h"
    "small_gemm.h"
    "small_gemm.hip"
    "softmax.h"
    "softmax.hip"
    "stream.h"
    "stream_experts.h"
    "sums.h"
    "tiles.h"
    "tiles.hip"
    "top_keys.h"
    "top_keys.hip"
    "weights.h"
};

/// The source with all headers at hand: only those it includes count.
pub(crate) fn with_headers(source: Source) -> Source {
    let headers = FILES.iter().filter(|(f, _)| f.ends_with(".h"));
    let rendered =
        source.file("enums.h", crate::render::ENUMS).file("row_enums.h", crate::render::ROW_ENUMS);
    headers.fold(rendered, |s, (f, text)| s.file(*f, *text))
}

/// The source whose main file is `file`, with all headers at hand (only those it includes count).
pub(crate) fn source(name: &'static str, file: &'static str) -> Source {
    let text = FILES.iter().find(|(f, _)| *f == file).map_or("", |(_, text)| *text);
    debug_assert!(!text.is_empty(), "{file} is not among the files");
    with_headers(Source::new(name, file, text))
}
