//! A family of kernels: one module that implements [`Family`], and one row of the registry in
//! [`spec`](crate::spec).
//!
//! Specialising, launching, tuning and timing go through this trait; cases and samples through
//! `Cases` of `kjit-kernel-cases`. A family in the registry has all of them.

use crate::vocabulary::arguments::{Arguments, Declared};
use crate::vocabulary::kernel::{Kernel, SpecError};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shipped::{self, Table};
use crate::vocabulary::step::{Inside, Step};
use crate::vocabulary::variant::Variant;
use kjit_engine::Target;
use std::fmt::{self, Debug};
use std::hash::Hash;

/// A family of kernels. A value of it is a *spec*: a computation, its sizes, and optionally a
/// tuning.
pub trait Family: Clone + Eq + Hash + Debug + 'static {
    /// Its name: the first word of a spec's text.
    const NAME: &'static str;
    /// How the work is cut; it does not change the result.
    type Tuning: Variant;
    /// The arguments of a launch, in the kernel's order.
    type Args<A>: Arguments<A>;

    /// The computation and its sizes, without the name and the tuning. Tuning records are keyed by
    /// it: specs of one computation have one text, and different texts are different kernels.
    ///
    /// # Errors
    /// Only the formatter's.
    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The tuning that the spec names itself.
    fn own(&self) -> Option<Self::Tuning>;

    /// This spec with another tuning of its own; `None`: the best measured one, else the family's
    /// default.
    #[must_use]
    fn with(self, tuning: Option<Self::Tuning>) -> Self;

    /// The family's default for this spec, without measurements.
    ///
    /// # Errors
    /// Sizes that it does not cover.
    fn usual(&self, target: &Target) -> Result<Self::Tuning, SpecError>;

    /// Whether the target can run the spec with this tuning.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    fn check(&self, _target: &Target, _tuning: &Self::Tuning) -> Result<(), SpecError> {
        Ok(())
    }

    /// Tunings worth trying: small lists, since each is compiled, checked and timed. Some may not
    /// fit the target.
    fn candidates(&self, target: &Target) -> Vec<Self::Tuning>;

    /// The block of a launch: renders no source.
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

    /// The arguments of a launch: the last one of [`Family::Args`] may exist for some specs only.
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
    /// The family has no such step.
    fn inside(&self, _target: &Target, _inside: Inside) -> Result<Step, SpecError> {
        Err(SpecError::Unsupported {
            kernel: Self::NAME,
            why: "it has no part in a persistent kernel".to_owned(),
        })
    }

    /// The least work of a launch.
    fn work(&self, size: Size) -> Work;

    /// The size at which it is timed alone, with `depth` tokens in the cache.
    fn timed_at(&self, depth: usize) -> Size {
        Size { tokens: 1, past: depth }
    }

    /// The tuning in force: the spec's own, else the shipped one, else the family's default.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    fn tuning(&self, target: &Target) -> Result<Self::Tuning, SpecError> {
        self.tuning_by(shipped::table(), target)
    }

    /// As [`Family::tuning`], with another table than the shipped one.
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
    /// Sizes or targets that the family does not cover.
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

impl Table {
    /// The tuning of this spec's space that the table names.
    pub fn choice<F: Family>(&self, spec: &F, target: &Target) -> Option<F::Tuning> {
        let specs = self.choices.get(target.id())?;
        let choice = specs.get(&Named(spec).to_string())?;
        let space = spec.candidates(target);
        let place = choice.place.get_or_init(|| space.iter().position(|t| t.text() == choice.text));
        space.get((*place)?).copied()
    }
}

/// A spec's text with its family's name: the key of tuning records.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a, F>(pub &'a F);

impl<F: Family> fmt::Display for Named<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", F::NAME)?;
        self.0.text(f)
    }
}
