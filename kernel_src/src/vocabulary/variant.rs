//! Tunings as data: the division of a family's work.

use crate::vocabulary::kernel::{SpecError, require};
use kjit_engine::Target;
use std::fmt::Debug;
use std::hash::Hash;

/// A tuning.
pub trait Variant: Copy + Eq + Hash + Debug + 'static {
    /// Whether the family has several tunings.
    const CHOICE: bool = true;

    /// The fields with names, `wave: 32, block: 512, …`; for an enum with the variant's name first.
    fn text(&self) -> String {
        let text = format!("{self:?}");
        let name = std::any::type_name::<Self>().rsplit("::").next().unwrap_or_default();
        match text.strip_prefix(name).and_then(|t| t.strip_prefix(" { ")) {
            Some(fields) => fields.trim_end_matches([' ', '}']).to_owned(),
            None => text,
        }
    }
}

/// The tuning of a family with only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fixed;

impl Variant for Fixed {
    const CHOICE: bool = false;
}

/// The tuning of a family whose only choice is the width of a wave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wave {
    /// Lanes in a wave.
    pub wave: u32,
}

impl Variant for Wave {}

impl Wave {
    /// The default wave width of the target.
    pub(crate) fn usual(target: &Target) -> Wave {
        Wave { wave: target.default_wave() }
    }

    pub(crate) fn check(self, kernel: &'static str, target: &Target) -> Result<(), SpecError> {
        require(target.waves().contains(&self.wave), kernel, || {
            format!("{target} does not support waves of {}", self.wave)
        })
    }

    /// All wave widths.
    pub(crate) fn all(target: &Target) -> Vec<Wave> {
        target.waves().iter().map(|&wave| Wave { wave }).collect()
    }
}

/// The items of [`Family`] for a family with a field `tuning`.
macro_rules! choice {
    ($tuning:ty) => {
        type Tuning = $tuning;

        fn own(&self) -> Option<$tuning> {
            self.tuning
        }

        fn with(mut self, tuning: Option<$tuning>) -> Self {
            self.tuning = tuning;
            self
        }
    };
}
pub(crate) use choice;

/// The items of [`Family`] if the only choice is the width of a wave.
macro_rules! choice_of_wave {
    () => {
        $crate::vocabulary::variant::choice!($crate::vocabulary::variant::Wave);

        fn usual(&self, target: &Target) -> Result<Self::Tuning, SpecError> {
            Ok($crate::vocabulary::variant::Wave::usual(target))
        }

        fn candidates(&self, target: &Target) -> Vec<Self::Tuning> {
            $crate::vocabulary::variant::Wave::all(target)
        }
    };
}
pub(crate) use choice_of_wave;

/// The items of [`Family`] for a family with only one tuning.
macro_rules! no_choice {
    () => {
        type Tuning = $crate::vocabulary::variant::Fixed;

        fn own(&self) -> Option<Self::Tuning> {
            None
        }

        fn with(self, _: Option<Self::Tuning>) -> Self {
            self
        }

        fn usual(&self, _: &Target) -> Result<Self::Tuning, SpecError> {
            Ok($crate::vocabulary::variant::Fixed)
        }

        fn candidates(&self, _: &Target) -> Vec<Self::Tuning> {
            vec![]
        }
    };
}
pub(crate) use no_choice;
