//! Compilation targets. The target of a device equals the target parsed from its name.

mod family;
pub mod issue;
mod occupancy;
mod table;

pub use occupancy::{Limit, Occupancy};
pub use table::{ARCHS, Arch, Card, Dot, MatrixUnit, UnitLimits, Vendor};

use crate::error::Error;
use std::fmt;

/// The part of a target's name for compilers that copy accumulation registers correctly.
const SOUND_COPIES: &str = "sound-copies";

/// Everything that determines compilation: the architecture and the feature flags of the device.
///
/// `sm_90` and `sm_90a` are the same target. The needs of the kernel decide which id the compiler
/// gets ([`Target::compile_id`]). So `warm --arch sm_90a` and an H200 have equal keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    arch: &'static Arch,
    /// Pairs `(name, on)`, sorted by name.
    features: Vec<(&'static str, bool)>,
    /// The wave width for kernels, if it differs from the architecture's default.
    wave: Option<u32>,
}

impl Target {
    /// Parses `sm_90`, `sm_90a`, `gfx1100`, `gfx90a:sramecc+:xnack-`, and `gfx1100:wave64` (RDNA
    /// with a default wave width of 64).
    ///
    /// # Errors
    /// [`Error::Target`] for an unknown id, a flag that the architecture does not have, a flag
    /// without `+` or `-`, a repeated flag, or a wave width that the architecture cannot run. An
    /// unknown AMD id of a family in [`ARCHS`] is accepted with the facts of that family, see
    /// [`Target::fallback_row`].
    pub fn parse(text: &str) -> Result<Target, Error> {
        let fail = |why: String| Error::Target { asked: text.to_owned(), why };
        let mut parts = text.split(':');
        let id = parts.next().unwrap_or_default();
        let known = ARCHS.iter().find(|a| a.id == id || a.specific == Some(id));
        let mut arch = known.or_else(|| family::row(id)).ok_or_else(|| {
            let known: Vec<&str> = ARCHS.iter().map(|a| a.specific.unwrap_or(a.id)).collect();
            fail(format!("not an architecture that kjit supports; supported: {}", known.join(" ")))
        })?;
        let mut features: Vec<(&'static str, bool)> = Vec::new();
        let mut wave = None;
        for flag in parts {
            if let Some(asked) = flag.strip_prefix("wave") {
                let known = arch.waves.iter().find(|w| w.to_string() == asked);
                let waves: Vec<String> = arch.waves.iter().map(u32::to_string).collect();
                let Some(known) = known else {
                    return Err(fail(format!("{} runs waves of {}", arch.id, waves.join(" or "))));
                };
                if wave.replace(*known).is_some() {
                    return Err(fail("the wave width is given twice".to_owned()));
                }
                continue;
            }
            if let Some(what) = flag.strip_prefix("no-") {
                let less = match arch.vendor {
                    Vendor::Amd => family::without(arch, what == "matrix", what == "dot"),
                    Vendor::Nvidia => arch,
                };
                if less == arch {
                    return Err(fail(format!(
                        "{} has no option 'no-{what}': AMD targets have no-matrix and no-dot",
                        arch.id
                    )));
                }
                arch = less;
                continue;
            }
            if flag == "f32" && arch.vendor == Vendor::Amd {
                arch = family::f32_alone(arch);
                continue;
            }
            if flag == SOUND_COPIES {
                let sound = family::with_sound_copies(arch);
                if sound == arch {
                    return Err(fail(format!("{} has no option '{SOUND_COPIES}'", arch.id)));
                }
                arch = sound;
                continue;
            }
            let (name, on) = match (flag.strip_suffix('+'), flag.strip_suffix('-')) {
                (Some(name), _) => (name, true),
                (_, Some(name)) => (name, false),
                _ => return Err(fail(format!("the feature flag '{flag}' must end in + or -"))),
            };
            let Some(name) = arch.features.iter().find(|f| **f == name) else {
                return Err(fail(format!("{} has no feature flag '{name}'", arch.id)));
            };
            if features.iter().any(|(f, _)| f == name) {
                return Err(fail(format!("the feature flag '{name}' is given twice")));
            }
            features.push((name, on));
        }
        features.sort_unstable();
        Ok(Target { arch, features, wave: wave.filter(|w| arch.waves.first() != Some(w)) })
    }

    /// The target of an NVIDIA device of compute capability `major.minor`. If the minor number is
    /// newer than the table, the target uses the nearest older row of the major number: cubins are
    /// forward compatible within a major number.
    ///
    /// # Errors
    /// [`Error::Target`] if the table has no row of that major number.
    pub fn from_compute_capability(major: u32, minor: u32) -> Result<Target, Error> {
        let asked = major.saturating_mul(10).saturating_add(minor);
        ARCHS
            .iter()
            .filter_map(|a| a.sm().map(|sm| (sm, a)))
            .filter(|(sm, _)| sm / 10 == major && *sm <= asked)
            .max_by_key(|(sm, _)| *sm)
            .map(|(_, arch)| Target { arch, features: Vec::new(), wave: None })
            .ok_or_else(|| Error::Target {
                asked: format!("sm_{asked}"),
                why: "kjit supports no architecture with this major version".to_owned(),
            })
    }

    /// The row of the table.
    #[must_use]
    pub fn arch(&self) -> &'static Arch {
        self.arch
    }

    /// The variant of an AMD target without its matrix unit, its byte dot product, or both:
    /// `gfx1100:no-matrix:no-dot`. Its code runs on the unmodified chip.
    #[must_use]
    pub fn without(&self, matrix: bool, dot: bool) -> Target {
        match self.vendor() {
            Vendor::Amd => Target { arch: family::without(self.arch, matrix, dot), ..self.clone() },
            Vendor::Nvidia => self.clone(),
        }
    }

    /// The variant of an AMD target that computes in f32 and integers only: `gfx1100:f32`. f16 is
    /// only stored, and converted by integer instructions. Its code runs on the unmodified chip.
    #[must_use]
    pub fn f32_alone(&self) -> Target {
        match self.vendor() {
            Vendor::Amd => Target { arch: family::f32_alone(self.arch), ..self.clone() },
            Vendor::Nvidia => self.clone(),
        }
    }

    /// The difference from the architecture's default, as a string: missing abilities and a
    /// non-default wave width, but not feature flags. Usually empty.
    #[must_use]
    pub fn variant(&self) -> String {
        let wave = self.wave.map_or(String::new(), |wave| format!(":wave{wave}"));
        format!("{}{wave}", self.arch.variant)
    }

    /// The variant whose compiler is known to copy accumulation registers correctly:
    /// `gfx908:sound-copies`. The planner checks the compiler. Other chips have no such variant and
    /// are returned unchanged.
    #[must_use]
    pub fn with_sound_copies(&self) -> Target {
        Target { arch: family::with_sound_copies(self.arch), ..self.clone() }
    }

    /// The target without the mark `sound-copies`.
    #[must_use]
    pub fn without_sound_copies(&self) -> Target {
        Target { arch: family::without_sound_copies(self.arch), ..self.clone() }
    }

    /// The target with this default wave width; `None` if the chip cannot run it.
    #[must_use]
    pub fn at_wave(&self, wave: u32) -> Option<Target> {
        let known = self.waves().contains(&wave);
        known.then(|| Target {
            wave: Some(wave).filter(|w| self.waves().first() != Some(w)),
            ..self.clone()
        })
    }

    /// The row whose facts this target uses because the table has no row for it (a newer chip).
    /// Listings show it.
    #[must_use]
    pub fn fallback_row(&self) -> Option<&'static str> {
        self.arch.fallback_row
    }

    /// The vendor.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        self.arch.vendor
    }

    /// The architecture's short id without flags: `sm_90`, `gfx90a`.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.arch.id
    }

    /// The wave widths that kernels can be compiled for.
    #[must_use]
    pub fn waves(&self) -> &'static [u32] {
        self.arch.waves
    }

    /// The wave width of kernels that do not request one.
    #[must_use]
    pub fn default_wave(&self) -> u32 {
        self.wave.or(self.arch.waves.first().copied()).unwrap_or(32)
    }

    /// The state of a feature flag; `None` if neither the name nor the device stated it.
    #[must_use]
    pub fn feature(&self, name: &str) -> Option<bool> {
        self.features.iter().find(|(f, _)| *f == name).map(|(_, on)| *on)
    }

    /// The canonical id for compilers and keys. It is the plain id; with `specific` it is the id
    /// with suffix `a`, if the architecture has one (wgmma and setmaxnreg need it). The feature
    /// flags in `asked` follow, sorted.
    ///
    /// # Errors
    /// [`Error::Target`] if the architecture does not have a requested flag, or this target does
    /// not state it.
    pub fn compile_id(&self, specific: bool, asked: &[&str]) -> Result<String, Error> {
        let mut id = match self.arch.specific {
            Some(a) if specific => a.to_owned(),
            _ => self.arch.id.to_owned(),
        };
        let mut asked: Vec<&str> = asked.to_vec();
        asked.sort_unstable();
        asked.dedup();
        for name in asked {
            let on = self.feature(name).ok_or_else(|| Error::Target {
                asked: self.to_string(),
                why: format!(
                    "the kernel needs the feature flag '{name}', which this target does not state"
                ),
            })?;
            id.push(':');
            id.push_str(name);
            id.push(if on { '+' } else { '-' });
        }
        Ok(id)
    }

    /// Whether this device runs code that was compiled for `compile_id` (as written by
    /// [`Target::compile_id`]).
    #[must_use]
    pub fn runs(&self, compile_id: &str) -> bool {
        let mut parts = compile_id.split(':');
        let id = parts.next().unwrap_or_default();
        (id == self.arch.id || self.arch.specific == Some(id))
            && parts.all(|flag| {
                let Some(name) = flag.strip_suffix(['+', '-']) else { return false };
                self.feature(name) == Some(flag.ends_with('+'))
            })
    }
}

impl fmt::Display for Target {
    /// The full id: `sm_90a`, `gfx90a:sramecc+:xnack-`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.arch.specific.unwrap_or(self.arch.id))?;
        f.write_str(self.arch.variant)?;
        for (name, on) in &self.features {
            write!(f, ":{name}{}", if *on { '+' } else { '-' })?;
        }
        self.wave.map_or(Ok(()), |wave| write!(f, ":wave{wave}"))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl std::str::FromStr for Target {
    type Err = Error;
    fn from_str(text: &str) -> Result<Target, Error> {
        Target::parse(text)
    }
}

#[cfg(test)]
mod tests;
