//! Tuning as data: what was measured best, and who says so.
//!
//! A tuned choice is a text: that of a [`Tuning`] for that of a [`Spec`]. It is believed only if it
//! is the text of a tuning in the spec's own space, so that a file, a cache record or a pack can at
//! most choose among kernels that this code knows. What is worth trying, and where a family starts,
//! stands in the family's own module.

pub use crate::spec::Tuning;
pub use crate::vocabulary::shipped;

use crate::spec::Spec;
use kjit_engine::Target;
use std::fmt;

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
