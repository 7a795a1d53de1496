//! A specialised kernel for the engine: source, constants and the shape of a launch.

use crate::vocabulary::files;
use crate::vocabulary::shape::Shape;
use kjit_engine::{Constants, Job, Options, Source, Target};
use kjit_formats::layout::LayoutError;

/// A specialised kernel: everything that compiling and launching needs, for one target. It does not
/// depend on a live device.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The source, with the headers that it includes.
    pub source: Source,
    /// Constants of the compilation.
    pub constants: Constants,
    /// Wave width and other options that change the meaning of the code.
    pub options: Options,
    /// The kernel's name in the code object.
    pub entry: &'static str,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic LDS of a block, in bytes.
    pub shared: u32,
}

impl Kernel {
    /// The engine's job for a target. It must be the target of the kernel's specialisation.
    #[must_use]
    pub fn job(&self, target: &Target) -> Job {
        let constants = self.constants.clone();
        let constants =
            if target.arch().has("f32-alone") { constants.set("KJ_F32", 1) } else { constants };
        Job::new(self.source.clone(), constants, self.options.clone(), target.clone())
    }
}

/// A kernel of one step with one entry point, which has the name of its file. Its shape becomes
/// `shape.h`; `macros` are for the compilation (`gpu/kjit.h`). Block and LDS as in [`Kernel`].
pub(crate) fn of_shape(
    name: &'static str,
    shape: &Shape,
    macros: Constants,
    wave: u32,
    block: u32,
) -> Kernel {
    Kernel {
        source: files::source(name, files::main_of(name))
            .file("shape.h", shape.header())
            .entry(name),
        constants: shape.tell(macros.set("KJ_BLOCK", block)),
        options: Options::wave(wave),
        entry: name,
        block,
        shared: 0,
    }
}

/// The reasons why a kernel cannot be specialised for a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The weights do not have a layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A size or a combination that the family does not support.
    #[error("{kernel}: {why}")]
    Unsupported {
        /// Name of the family.
        kernel: &'static str,
        /// The unsupported property.
        why: String,
    },
    /// The kernel needs more LDS than a block has.
    #[error("{kernel}: a block needs {need} bytes of LDS, but {target} has {have}: {hint}")]
    Shared {
        /// Name of the family.
        kernel: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes available.
        have: u32,
        /// The target.
        target: String,
        /// Advice for the user.
        hint: &'static str,
    },
}

/// `Unsupported`, unless `fine` is true.
pub fn require(
    fine: bool,
    kernel: &'static str,
    why: impl FnOnce() -> String,
) -> Result<(), SpecError> {
    if fine { Ok(()) } else { Err(SpecError::Unsupported { kernel, why: why() }) }
}

/// Checks the dynamic LDS of a block; the kernel declares `fixed` more bytes.
pub fn shared_bytes(
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
