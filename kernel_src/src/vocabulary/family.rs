//! A family of kernels: one module that implements [`Family`], and one row of the registry in
//! [`spec`](crate::spec).
//!
//! Specialising, launching, tuning and timing use this trait; cases and samples use `Cases` of
//! `kjit-kernel-cases`. Every family in the registry implements both.

use crate::vocabulary::arguments::{Arguments, Declared};
use crate::vocabulary::kernel::{Kernel, SpecError};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shipped::{self, Table};
use crate::vocabulary::step::{Step, StepContext};
use crate::vocabulary::variant::Variant;
use kjit_engine::Target;
use std::fmt::{self, Debug};
use std::hash::Hash;

/// A family of kernels. A value of this type is a *spec*: a computation, its sizes, and optionally
/// a tuning.
pub trait Family: Clone + Eq + Hash + Debug + 'static {
    /// Name of the family: the first word of a spec's string.
    const NAME: &'static str;
    /// The division of the work; it does not change the result.
    type Tuning: Variant;
    /// The arguments of a launch, in the kernel's order.
    type Args<A>: Arguments<A>;

    /// The computation and its sizes, without the name and the tuning. It is the key of tuning
    /// records: specs of one computation have equal strings, and different strings mean different
    /// kernels.
    ///
    /// # Errors
    /// Only errors of the formatter.
    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// The tuning in the spec, if there is one.
    fn own(&self) -> Option<Self::Tuning>;

    /// This spec with the given tuning. `None`: the best measured tuning, or without measurements
    /// the family's default.
    #[must_use]
    fn with(self, tuning: Option<Self::Tuning>) -> Self;

    /// The family's default for this spec, without measurements.
    ///
    /// # Errors
    /// Unsupported sizes.
    fn usual(&self, target: &Target) -> Result<Self::Tuning, SpecError>;

    /// Whether the target can run the spec with this tuning.
    ///
    /// # Errors
    /// Unsupported sizes, or a tuning that the target cannot run.
    fn check(&self, _target: &Target, _tuning: &Self::Tuning) -> Result<(), SpecError> {
        Ok(())
    }

    /// Tunings worth trying: small lists, since each is compiled, checked and timed. Some may not
    /// fit the target.
    fn candidates(&self, target: &Target) -> Vec<Self::Tuning>;

    /// The block of a launch; generates no source.
    ///
    /// # Errors
    /// More LDS than the target has.
    fn block(&self, target: &Target, tuning: &Self::Tuning) -> Result<Block, SpecError>;

    /// The kernel: source, constants, entry point. The tuning has been checked.
    ///
    /// # Errors
    /// Weights without a layout.
    fn render(
        &self,
        target: &Target,
        tuning: &Self::Tuning,
        block: Block,
    ) -> Result<Kernel, SpecError>;

    /// The arguments of a launch. The last one of [`Family::Args`] may exist for some specs only.
    fn declared(&self) -> &'static [Declared] {
        <Self::Args<()> as Arguments<()>>::DECLARED
    }

    /// The grid on a device of `units` compute units, and the arguments that depend on it.
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
    /// The family does not have such a step.
    fn inside(&self, _target: &Target, _inside: StepContext) -> Result<Step, SpecError> {
        Err(SpecError::Unsupported {
            kernel: Self::NAME,
            why: "not supported in a persistent kernel".to_owned(),
        })
    }

    /// The least work of a launch.
    fn work(&self, size: Size) -> Work;

    /// The size for timing the kernel, with `depth` tokens in the cache.
    fn timed_at(&self, depth: usize) -> Size {
        Size { tokens: 1, past: depth }
    }

    /// The tuning in use: the spec's own; without one the shipped tuning; without both the family's
    /// default.
    ///
    /// # Errors
    /// Unsupported sizes, or a tuning that the target cannot run.
    fn tuning(&self, target: &Target) -> Result<Self::Tuning, SpecError> {
        self.tuning_by(shipped::table(), target)
    }

    /// As [`Family::tuning`], with `table` instead of the shipped table.
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
    /// Unsupported sizes or target.
    fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let tuning = self.tuning(target)?;
        let block = self.block(target, &tuning)?;
        self.render(target, &tuning, block)
    }

    /// Whether the target has the kernel; generates no source.
    fn covered(&self, target: &Target) -> bool {
        self.tuning(target).and_then(|t| self.block(target, &t)).is_ok()
    }

    /// The launch on a device of `units` compute units; generates no source.
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
    /// The tuning in the table for this spec.
    pub fn choice<F: Family>(&self, spec: &F, target: &Target) -> Option<F::Tuning> {
        let specs = self.choices.get(target.id())?;
        let choice = specs.get(&SpecName(spec).to_string())?;
        let space = spec.candidates(target);
        let place = choice.place.get_or_init(|| space.iter().position(|t| t.text() == choice.text));
        space.get((*place)?).copied()
    }
}

/// A spec as a string with the family's name: the key of tuning records.
#[derive(Debug, Clone, Copy)]
pub struct SpecName<'a, F>(pub &'a F);

impl<F: Family> fmt::Display for SpecName<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", F::NAME)?;
        self.0.text(f)
    }
}
