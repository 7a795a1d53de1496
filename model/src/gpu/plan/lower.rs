//! What the lowering of single tokens and of prompts share: jobs, weights, values, and errors that name the step.

use super::build::{Builder, Jobs, Shape};
use super::{Bind, Dim, GemmUse, JobId, PlanError};
use crate::graph::{CacheId, Graph, ValueId, WeightId};
use kjit_engine::Target;
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::spec::Spec;
use kjit_kernels::tuning::Choices;
use kjit_kernels::{Kernel, SpecError};

/// The state of a lowering.
pub(super) struct Lower<'g> {
    pub graph: &'g Graph,
    pub target: Target,
    /// Which tuning was measured best.
    pub tuned: &'g dyn Choices,
    /// Positions that caches hold.
    pub context: u32,
    /// How they hold them.
    pub storage: KvStorage,
    pub jobs: &'g mut Jobs,
    pub matrices: &'g mut Vec<WeightId>,
    pub vectors: &'g mut Vec<WeightId>,
    pub program: Builder<'g>,
    /// Rows are sequences, each in a slot of its own; else one sequence's tokens.
    pub batch: bool,
    /// Products whose launches depend on the tokens at hand, and bytes of their parts and counters at most.
    pub products: Vec<(GemmUse, u64, u64)>,
}

/// A job with what its launches need of it.
pub(super) struct Ready {
    job: JobId,
    block: u32,
    shared: u32,
}

impl Lower<'_> {
    /// A matrix of the model, to be uploaded.
    pub fn matrix(&mut self, id: WeightId) -> Bind {
        note(self.matrices, id);
        Bind::Matrix(id)
    }

    /// A vector of the model, to be uploaded.
    pub fn vector(&mut self, id: WeightId) -> Bind {
        note(self.vectors, id);
        Bind::Vector(id)
    }

    /// How a cache lies in memory.
    pub fn kv(&self, id: CacheId) -> KvLayout {
        let c = self.graph.cache(id);
        KvLayout { heads: c.heads, head_dim: c.head_dim, storage: self.storage }
    }

    /// Where a value is.
    pub fn value(&self, v: ValueId) -> Result<Bind, PlanError> {
        let name = &self.graph.value(v).name;
        self.program.held(v).ok_or_else(|| unsupported(name, "it is used inside a fused step only"))
    }

    /// What a kernel family says, with the step's name.
    pub fn spec<T>(&self, name: &str, made: Result<T, SpecError>) -> Result<T, PlanError> {
        made.map_err(|e| unsupported(name, e))
    }

    /// The spec with the tuning that was measured best for it, where one was.
    pub fn tuned<S: Clone + Into<Spec> + TryFrom<Spec>>(&self, spec: S) -> S {
        let whole: Spec = spec.clone().into();
        let Some(tuning) = self.tuned.choice(&whole, &self.target) else { return spec };
        whole.with(Some(tuning)).try_into().unwrap_or(spec)
    }

    /// A kernel's job.
    pub fn job(&mut self, name: &str, spec: impl Into<Spec>) -> Result<Ready, PlanError> {
        let spec = spec.into();
        let Kernel { source, constants, options, entry, block, shared } = self.spec(name, spec.kernel(&self.target))?;
        let job = kjit_engine::Job::new(source, constants, options, self.target.clone());
        job.check().map_err(|e| unsupported(name, e))?;
        Ok(Ready { job: self.jobs.intern(super::Job { job, entry, spec }), block, shared })
    }

    /// A launch of it.
    pub fn run(&mut self, name: String, ready: &Ready, grid: [Dim; 3], args: Vec<Bind>) {
        let shape = Shape { grid, block: ready.block, shared: ready.shared };
        self.program.launch(name, ready.job, shape, args);
    }
}

/// Adds what is not there.
fn note(list: &mut Vec<WeightId>, id: WeightId) {
    if !list.contains(&id) {
        list.push(id);
    }
}

/// The error for a step that kernels do not cover.
pub(super) fn unsupported(what: &str, why: impl ToString) -> PlanError {
    PlanError::Unsupported { what: format!("'{what}'"), why: why.to_string() }
}
