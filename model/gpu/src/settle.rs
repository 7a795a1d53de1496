//! Targets whose kernels depend on who compiles them.

use kjit_engine::{Engine, Target};
use kjit_kernels::copies;

/// A target with what is known of the compiler that kernels for it come from: asked, where that
/// matters, by a small kernel that is compiled once and kept like any other. Where a compiler is
/// here, its own answer counts and no pack's, since what a pack lacks it would compile. Where none
/// is, the pack's does, as for all kernels. Without an answer the target is as it was.
#[must_use]
pub fn settled(engine: &Engine, target: &Target) -> Target {
    let Some(job) = copies::asks(target) else { return target.clone() };
    match engine.compile_own(&job) {
        Ok(code) if copies::are_sound(code.bytes()) => target.with_sound_copies(),
        _ => target.clone(),
    }
}
