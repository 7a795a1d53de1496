//! Tuning as data: the best measured choices, and their source.
//!
//! A tuned choice consists of two strings: one of a [`Spec`] and one of a [`Tuning`]. It is valid
//! only if the second is a tuning in the spec's tuning space. So a file, a cache record or a pack
//! can only choose among kernels that this code knows. Candidates and defaults are in the module of
//! each family.

pub use crate::spec::Tuning;
pub use crate::vocabulary::shipped;

use crate::spec::Spec;
use kjit_engine::Target;
use std::fmt;

/// The best measured tuning of a spec, if there is one.
pub trait Choices: fmt::Debug {
    /// The tuning for this spec, which does not contain one.
    fn choice(&self, spec: &Spec, target: &Target) -> Option<Tuning>;
}

/// Choices from the shipped table only.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shipped;

impl Choices for Shipped {
    fn choice(&self, _: &Spec, _: &Target) -> Option<Tuning> {
        None
    }
}
