//! A family's cases and samples.

use crate::case::Case;
use crate::data::Random;
use crate::samples::Samples;
use kjit_engine::Target;
use kjit_kernels::{Family, Size, SpecError};

/// The cases and samples of a family.
pub trait Cases: Family {
    /// A case of this size, whose oracle is fast enough for matrices of a real model.
    ///
    /// # Errors
    /// A kernel that cannot be specialised.
    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError>;

    /// The family's cases at a wave width of the target: small and odd sizes, and sizes at every
    /// border.
    ///
    /// # Errors
    /// A kernel that cannot be specialised.
    fn cases(
        target: &Target,
        wave: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError>;

    /// The family's kernels at the sizes of real models: the compile matrix.
    ///
    /// # Errors
    /// A kernel that cannot be specialised.
    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError>;
}
