//! The cases and samples of all registered families ([`families!`](kjit_kernels::families)).

use crate::case::Case;
use crate::cases::Cases;
use crate::data::Random;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::spec::Spec;
use kjit_kernels::{Size, SpecError};

macro_rules! of_all {
    ($($(#[$doc:meta])* $name:ident($spec:ty);)*) => {
        /// All cases for a target at one of its wave widths.
        ///
        /// # Errors
        /// A kernel that cannot be specialised for the target.
        pub fn all(target: &Target, wave: u32, seed: u64) -> Result<Vec<Case>, SpecError> {
            let mut all = vec![];
            $(<$spec as Cases>::cases(target, wave, &mut Random::new(seed), &mut all)?;)*
            Ok(all)
        }

        /// The samples of all families.
        pub(crate) fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
            $(<$spec as Cases>::samples(list)?;)*
            Ok(())
        }

        /// A case of this spec on a device of `units` compute units, for the check before the
        /// kernel is timed.
        ///
        /// # Errors
        /// As for the family.
        pub fn case(
            spec: &Spec,
            target: &Target,
            units: u32,
            size: Size,
            random: &mut Random,
        ) -> Result<Case, SpecError> {
            match spec {
                $(Spec::$name(spec) => spec.case(target, units, size, random),)*
            }
        }
    };
}

kjit_kernels::families!(of_all);
