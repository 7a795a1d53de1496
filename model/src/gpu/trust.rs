//! Trust after proof: before a code object is used on a device for the first time, it is run there once, at
//! its own sizes on a few rows of chosen numbers, and held against the host's.
//!
//! The verdict is kept in the cache by the device, its driver and the build: a start that finds them all runs
//! nothing. A kernel that computes wrongly is reported, and the model is planned for the next variant of the
//! device ([`ladder`]). "Under way" is written before the first launch, so one that takes the process down is
//! known at the next start. Only AMD's devices are proven: NVIDIA's kernels ran on a card before they were
//! released, AMD's did not.

use super::measure::Placed;
use super::plan::Job;
use kjit_engine::{CodeObject, Device, Engine, Error, HostArg, Kernel, ProofSubject, Target, Vendor};
use kjit_kernels::Size;
use kjit_kernels::cases::Random;

/// Tokens of a proof at most: few rows.
const TOKENS: usize = 3;
/// Tokens in the cache before them.
const PAST: usize = 37;
/// Of the chosen numbers.
const SEED: u64 = 0x6b6a_6974;
/// A proof's bounds are so many times those of the kernels' cases: it looks for instructions that compute
/// something else, which are off by a tenth and more, and must refuse no kernel that is right. Over the sizes
/// of all models some come out just beside the cases' bounds (1.1e-4 of its norm where 1e-4 is allowed).
const BOUNDS: f64 = 16.0;
const RIGHT: &[u8] = b"right";
const UNDER_WAY: &[u8] = b"under way";

/// What came of a proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may be used.
    Right,
    /// It may be used, and was not proven: why.
    Unproven(String),
    /// It must not be used: what is wrong, in a line.
    Wrong(String),
}

/// Whether kernels of a device are proven.
pub(super) fn wanted(device: &Device) -> bool {
    device.target().vendor() == Vendor::Amd
}

/// The targets that a device is tried as, best first: as it is; as if nothing were known of its compiler; by
/// its other wave width; without its matrix unit; without its byte dot product; without either.
pub(super) fn ladder(target: &Target) -> Vec<Target> {
    let mut all = vec![target.clone()];
    let target = &target.without_sound_copies();
    if target.vendor() != Vendor::Amd {
        return all;
    }
    let other = target.waves().iter().copied().find(|w| *w != target.default_wave());
    let other = other.and_then(|wave| target.at_wave(wave));
    let weaker = [(true, false), (false, true), (true, true)].map(|(matrix, dot)| target.without(matrix, dot));
    let last = other.as_ref().map(|t| t.without(true, true));
    for next in std::iter::once(target.clone()).chain(other).chain(weaker).chain(last) {
        if !all.contains(&next) {
            all.push(next);
        }
    }
    all
}

/// The verdict on a kernel of a plan for `target`: the one that was kept, else that of a run now.
///
/// `room`: bytes of the device's memory that a proof may take, beside what the model is to have.
///
/// # Errors
/// A device that is lost.
pub(super) fn verdict(
    engine: &Engine,
    device: &Device,
    (target, job, room): (&Target, &Job, u64),
    code: &CodeObject,
    kernel: &Kernel,
) -> Result<Verdict, Error> {
    if !wanted(device) {
        return Ok(Verdict::Right);
    }
    let what = format!("{}: {}", job.entry, job.spec);
    let subject = ProofSubject { device: device.info(), code, what: &what };
    let wrong = |why: &str| Verdict::Wrong(format!("{} computes wrongly on {}: {why}", job.spec, device.label()));
    let unproven = |why: &dyn std::fmt::Display| Verdict::Unproven(format!("{} could not be proven: {why}", job.spec));
    match engine.proof(&subject).as_deref() {
        Some(RIGHT) => return Ok(Verdict::Right),
        Some(UNDER_WAY) => return Ok(wrong("the process that proved it was ended by it")),
        Some(why) => return Ok(wrong(&String::from_utf8_lossy(why))),
        None => {}
    }
    let size = job.spec.timed_at(PAST);
    let size = Size { tokens: size.tokens.min(TOKENS), past: size.past };
    let case = match job.spec.case(target, device.info().units, size, &mut Random::new(SEED).few()) {
        Ok(case) => case.with_bounds(BOUNDS),
        Err(why) => return Ok(unproven(&why)),
    };
    let bytes: usize = case.host_args().iter().map(|a| if let HostArg::Buffer(b) = a { b.len() } else { 0 }).sum();
    if bytes as u64 > room {
        return Ok(unproven(&format_args!("{} MiB do not fit beside the model", bytes >> 20)));
    }
    let mut placed = match Placed::new(device, case) {
        Ok(placed) => placed,
        Err(lost @ Error::DeviceLost { .. }) => return Err(lost),
        Err(why) => return Ok(unproven(&why)),
    };
    engine.keep_proof(&subject, UNDER_WAY);
    match placed.check(kernel, false) {
        Ok(()) => {
            engine.keep_proof(&subject, RIGHT);
            Ok(Verdict::Right)
        }
        Err(why) => {
            engine.keep_proof(&subject, why.as_bytes());
            // A fault ends all on the device: the verdict is kept, and the next start takes the next variant.
            device.memory()?;
            Ok(wrong(&why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variants_of_a_device_are_what_it_has_and_can_do_without() {
        let names =
            |id: &str| -> Vec<String> { ladder(&Target::parse(id).unwrap()).iter().map(ToString::to_string).collect() };
        assert_eq!(
            names("gfx1100"),
            [
                "gfx1100",
                "gfx1100:wave64",
                "gfx1100:no-matrix",
                "gfx1100:no-dot",
                "gfx1100:no-matrix:no-dot",
                "gfx1100:no-matrix:no-dot:wave64"
            ]
        );
        assert_eq!(names("gfx942:xnack-").len(), 4);
        assert_eq!(
            names("gfx908:sound-copies"),
            ["gfx908:sound-copies", "gfx908", "gfx908:no-matrix", "gfx908:no-dot", "gfx908:no-matrix:no-dot"]
        );
        assert_eq!(names("gfx900"), ["gfx900"]);
        assert_eq!(names("sm_90a"), ["sm_90a"]);
    }
}
