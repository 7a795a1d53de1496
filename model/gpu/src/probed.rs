//! Settles a target whose kernels depend on the compiler.

use kjit_engine::{Engine, Target};
use kjit_kernels::copies;

/// The target with what is known about the compiler of its kernels. A small kernel, compiled once
/// and cached like any other, tells it. If a compiler is present, its own result counts, not a
/// pack's, since it would compile what the pack lacks. Without one the pack's counts. Without
/// either the target is unchanged.
#[must_use]
pub fn settled(engine: &Engine, target: &Target) -> Target {
    let Some(job) = copies::asks(target) else { return target.clone() };
    match engine.compile_own(&job) {
        Ok(code) if copies::are_sound(code.bytes()) => target.with_sound_copies(),
        _ => target.clone(),
    }
}
