//! What a family of kernels is: one module that implements [`Family`], and one row of the registry
//! in [`spec`](crate::spec).
//!
//! All that goes by family goes through this trait: specialising, launching, tuning, timing, cases,
//! the compile matrix. So a family that is in the registry is in all of them.

use crate::cases::{Case, Random};
use crate::matrix::Samples;
use crate::vocabulary::arguments::{Arguments, Declared};
use crate::vocabulary::kernel::{Kernel, SpecError};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shipped::{self, Table};
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::Variant;
use kjit_engine::Target;
use std::fmt::{self, Debug};
use std::hash::Hash;

/// A family of kernels. A value of it is a *spec*: what is computed, at which sizes, and perhaps by
/// which tuning.
pub trait Family: Clone + Eq + Hash + Debug + 'static {
    /// Its name: the first word of a spec's text.
    const NAME: &'static str;
    /// How the work is cut: what does not change what is computed.
    type Tuning: Variant;
    /// The arguments of a launch, in the kernel's order.
    type Args<A>: Arguments<A>;

    /// What is computed, at which sizes, without the name and without the tuning: tuning is kept by
    /// it, so two specs that compute the same have one text, and two texts are two kernels.
    ///
    /// # Errors
    /// Only the formatter's.
    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The tuning that the spec names itself.
    fn own(&self) -> Option<Self::Tuning>;

    /// The same spec with another tuning of its own; `None`: the one that was measured best, else
    /// the family's.
    #[must_use]
    fn with(self, tuning: Option<Self::Tuning>) -> Self;

    /// Where the family starts for this spec, whatever was measured.
    ///
    /// # Errors
    /// Sizes that it does not cover.
    fn usual(&self, target: &Target) -> Result<Self::Tuning, SpecError>;

    /// Whether the target can run the spec so.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    fn check(&self, _target: &Target, _tuning: &Self::Tuning) -> Result<(), SpecError> {
        Ok(())
    }

    /// What is worth trying: small lists, since each is compiled, checked and timed. Some may not
    /// fit the target.
    fn candidates(&self, target: &Target) -> Vec<Self::Tuning>;

    /// The block of a launch: known without any source being rendered.
    ///
    /// # Errors
    /// More LDS than the target has.
    fn block(&self, target: &Target, tuning: &Self::Tuning) -> Result<Block, SpecError>;

    /// The kernel: text, constants, entry. The tuning was checked.
    ///
    /// # Errors
    /// Weights that cannot be laid out.
    fn render(
        &self,
        target: &Target,
        tuning: &Self::Tuning,
        block: Block,
    ) -> Result<Kernel, SpecError>;

    /// The arguments of a launch: the last one of [`Family::Args`] may be such that only some specs
    /// have it.
    fn declared(&self) -> &'static [Declared] {
        <Self::Args<()> as Arguments<()>>::DECLARED
    }

    /// The grid on a device of `units` compute units, and the arguments that follow from it.
    ///
    /// # Errors
    /// More blocks than a grid has.
    fn grid(
        &self,
        target: &Target,
        tuning: &Self::Tuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError>;

    /// The step in a kernel of many steps, for one token of one sequence.
    ///
    /// # Errors
    /// It is only launched by itself.
    fn inside(&self, _target: &Target, _inside: Inside) -> Result<Step, SpecError> {
        Err(SpecError::Unsupported {
            kernel: Self::NAME,
            why: "it has no part in a persistent kernel".to_owned(),
        })
    }

    /// What a launch must move and compute, at the least.
    fn work(&self, size: Size) -> Work;

    /// The size at which it is timed by itself, with `depth` tokens in the cache.
    fn timed_at(&self, depth: usize) -> Size {
        Size { tokens: 1, past: depth }
    }

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

    /// The family's cases at a wave width of the target: small, odd, at every border.
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

    /// The tuning in force: the spec's own, else what is shipped for it, else the family's.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    fn tuning(&self, target: &Target) -> Result<Self::Tuning, SpecError> {
        self.tuning_by(shipped::table(), target)
    }

    /// The same by another table than the shipped one.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    fn tuning_by(&self, table: &Table, target: &Target) -> Result<Self::Tuning, SpecError> {
        let tuning = match self.own().or_else(|| table.choice(self, target)) {
            Some(tuning) => tuning,
            None => self.usual(target)?,
        };
        self.check(target, &tuning)?;
        Ok(tuning)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// What the family does not cover, by name.
    fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let tuning = self.tuning(target)?;
        let block = self.block(target, &tuning)?;
        self.render(target, &tuning, block)
    }

    /// Whether there is a kernel: renders nothing.
    fn covered(&self, target: &Target) -> bool {
        self.tuning(target).and_then(|t| self.block(target, &t)).is_ok()
    }

    /// The launch on a device of `units` compute units: renders nothing.
    ///
    /// # Errors
    /// As [`Family::kernel`]; more blocks than a grid has.
    fn launch(&self, target: &Target, units: u32, size: Size) -> Result<Launch, SpecError> {
        let tuning = self.tuning(target)?;
        let block = self.block(target, &tuning)?;
        Ok(Launch::of(block, self.grid(target, &tuning, units.max(1), size)?))
    }
}

/// A spec's text with its family's name: tuning is kept by it.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a, F>(pub &'a F);

impl<F: Family> fmt::Display for Named<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", F::NAME)?;
        self.0.text(f)
    }
}
