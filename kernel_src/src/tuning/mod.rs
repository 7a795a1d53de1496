//! Tuning as data: what is worth trying for a spec on a target, what was measured best, and where an architecture family starts.
//!
//! A tuned choice is a text: that of a [`Tuning`] for that of a [`Spec`]. It is believed only if it is the text of a tuning in the spec's
//! own space, so that a file, a cache record or a pack can at most choose among kernels that this code knows.

pub mod families;
pub mod shipped;
mod space;

use crate::attend::AttendTuning;
use crate::flash::FlashTuning;
use crate::gemm::GemmTuning;
use crate::matvec::MatvecTuning;
use crate::spec::Spec;
use crate::strips::StripsTuning;
use kjit_engine::Target;
use std::fmt;

/// How a kernel of any family that has a choice is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tuning {
    /// Products with vectors, experts' included.
    Matvec(MatvecTuning),
    /// Products of matrices.
    Gemm(GemmTuning),
    /// Products with a few rows.
    Strips(StripsTuning),
    /// Attention of new tokens.
    Attend(AttendTuning),
    /// Attention of prompts.
    Flash(FlashTuning),
}

/// The fields by name: `wave: 32, block: 512, …`.
impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Tuning::Matvec(t) => format!("{t:?}"),
            Tuning::Gemm(t) => format!("{t:?}"),
            Tuning::Strips(t) => format!("{t:?}"),
            Tuning::Attend(t) => format!("{t:?}"),
            Tuning::Flash(t) => format!("{t:?}"),
        };
        let text = ["MatvecTuning { ", "StripsTuning { "].iter().find_map(|n| text.strip_prefix(n)).unwrap_or(&text);
        f.write_str(if text.contains('{') { text } else { text.trim_end_matches([' ', '}']) })
    }
}

macro_rules! families {
    ($($name:ident($tuning:ty);)*) => {$(
        impl TryFrom<Tuning> for $tuning {
            /// It is another family's.
            type Error = Tuning;

            fn try_from(tuning: Tuning) -> Result<$tuning, Tuning> {
                match tuning {
                    Tuning::$name(t) => Ok(t),
                    other => Err(other),
                }
            }
        }
    )*};
}

families! {
    Matvec(MatvecTuning);
    Gemm(GemmTuning);
    Strips(StripsTuning);
    Attend(AttendTuning);
    Flash(FlashTuning);
}

impl Spec {
    /// The tuning in force; none for a family without a choice, or where the spec is not covered.
    #[must_use]
    pub fn tuning(&self, target: &Target) -> Option<Tuning> {
        match self {
            Spec::Matvec(s) => s.tuning(target).ok().map(Tuning::Matvec),
            Spec::Experts(s) => s.tuning(target).ok().map(Tuning::Matvec),
            Spec::Gemm(s) => s.tuning(target).ok().map(Tuning::Gemm),
            Spec::Strips(s) => s.tuning(target).ok().map(Tuning::Strips),
            Spec::Attend(s) => s.tuning(target).ok().map(Tuning::Attend),
            Spec::Flash(s) => s.tuning(target).ok().map(Tuning::Flash),
            _ => None,
        }
    }

    /// The same spec with another tuning; with none, or another family's, the default.
    #[must_use]
    pub fn with(&self, tuning: Option<Tuning>) -> Spec {
        let mut spec = self.clone();
        match &mut spec {
            Spec::Matvec(s) => s.tuning = tuning.and_then(|t| t.try_into().ok()),
            Spec::Experts(s) => s.tuning = tuning.and_then(|t| t.try_into().ok()),
            Spec::Gemm(s) => s.tuning = tuning.and_then(|t| t.try_into().ok()),
            Spec::Strips(s) => s.tuning = tuning.and_then(|t| t.try_into().ok()),
            Spec::Attend(s) => s.tuning = tuning.and_then(|t| t.try_into().ok()),
            Spec::Flash(s) => s.tuning = tuning.and_then(|t| t.try_into().ok()),
            _ => {}
        }
        spec
    }

    /// What is worth trying on a device, the default first, each of which is a kernel for the target. Empty for a family without a choice.
    #[must_use]
    pub fn space(&self, target: &Target) -> Vec<Tuning> {
        let Some(default) = self.with(None).tuning(target) else { return vec![] };
        let mut all = vec![default];
        for tuning in space::candidates(self, target) {
            if !all.contains(&tuning) && self.with(Some(tuning)).kernel(target).is_ok() {
                all.push(tuning);
            }
        }
        all
    }

    /// The tuning of the space that has this text.
    #[must_use]
    pub fn named(&self, target: &Target, text: &str) -> Option<Tuning> {
        let default = self.with(None).tuning(target)?;
        let mut all = std::iter::once(default).chain(space::candidates(self, target));
        let found = all.find(|t| t.to_string() == text)?;
        self.with(Some(found)).kernel(target).is_ok().then_some(found)
    }
}

/// Says which tuning was measured best for a spec, where one was.
pub trait Choices: fmt::Debug {
    /// The tuning for this spec, which has none of its own.
    fn choice(&self, spec: &Spec, target: &Target) -> Option<Tuning>;
}

/// What is shipped, and nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shipped;

impl Choices for Shipped {
    fn choice(&self, _: &Spec, _: &Target) -> Option<Tuning> {
        None
    }
}
