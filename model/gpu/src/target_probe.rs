//! Determines a target whose kernels depend on the compiler.

use kjit_engine::{Engine, Target};
use kjit_kernels::agpr_copy_check;

/// The target, with the known properties of the compiler of its kernels. They come from a small
/// kernel, which is compiled once and cached like any other kernel. If a compiler is present, its
/// own result is used instead of a pack's result, because it would compile the kernels that the
/// pack does not have. Without a compiler the pack's result is used. Without both the target is
/// unchanged.
#[must_use]
pub fn settled(engine: &Engine, target: &Target) -> Target {
    let Some(job) = agpr_copy_check::probe_job(target) else { return target.clone() };
    match engine.compile_own(&job) {
        Ok(code) if agpr_copy_check::copies_are_correct(code.bytes()) => target.with_sound_copies(),
        _ => target.clone(),
    }
}
