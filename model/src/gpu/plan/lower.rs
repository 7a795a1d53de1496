//! What all lowerings share: jobs, weights, values, the ends of projections, and errors that name
//! the step.

use super::build::{Builder, Jobs, Made, Shape};
use super::prompt::Group;
use super::{Bind, BufferId, Dim, GemmUse, JobId, PlanError};
use crate::gpu::fuse::{Finish, Input, Segment, Step, head_size};
use crate::graph::{Activation, Graph, StateId, StateKind, ValueId, WeightId};
use kjit_engine::Target;
use kjit_kernels::arguments::{Arguments, SegmentArgs};
use kjit_kernels::kv::{KvLayout, KvStorage};
use kjit_kernels::segments;
use kjit_kernels::spec::{Registered, Spec};
use kjit_kernels::tuning::Choices;
use kjit_kernels::{Family, SpecError};
use std::collections::HashMap;
use std::marker::PhantomData;

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
    /// Keys and values lie in pages.
    pub paged: bool,
    pub jobs: &'g mut Jobs,
    pub matrices: &'g mut Vec<WeightId>,
    pub vectors: &'g mut Vec<WeightId>,
    pub program: Builder<'g>,
    /// Rows are sequences, each in a slot of its own; else one sequence's tokens.
    pub batch: bool,
    /// A row's results are the same bits whatever rows come with it.
    pub reproducible: bool,
    /// Rows are one sequence's tokens, each of which attends by itself, as a single token does.
    pub apart: bool,
    /// Rows are tokens of one sequence, each with a place of its own and as if each were a slot:
    /// with `batch`.
    pub drafted: bool,
    /// Products whose launches depend on the tokens at hand, and bytes of their parts and counters
    /// at most.
    pub products: Vec<(GemmUse, u64, u64)>,
    /// Inputs that lie as products take them: the value, and the norm on the way.
    pub in_form: HashMap<(ValueId, Option<WeightId>), Bind>,
    /// Rows grouped, by the value that has their experts; a row for each token and slot, or for
    /// each token.
    pub groups: HashMap<(ValueId, bool), Group>,
    /// The steps after the one at hand.
    pub later: &'g [Step],
}

/// A job with what its launches need of it; they have the arguments of its family.
pub(super) struct Ready<F> {
    job: JobId,
    block: u32,
    shared: u32,
    /// Arguments that it has.
    arguments: usize,
    family: PhantomData<F>,
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
    pub fn kv(&self, id: StateId) -> KvLayout {
        kept_as(self.graph, id, self.storage)
    }

    /// Where a value is, in rows of f32.
    pub fn value(&self, v: ValueId) -> Result<Bind, PlanError> {
        let name = &self.graph.value(v).name;
        if self.program.is_tiled(v) {
            return Err(unsupported(
                name,
                "it lies as products of many rows take it, and something else reads it",
            ));
        }
        self.program.held(v).ok_or_else(|| unsupported(name, "it is used inside a fused step only"))
    }

    /// The buffer of a value.
    pub fn buffer_of(&self, v: ValueId) -> Result<BufferId, PlanError> {
        match self.value(v)? {
            Bind::Buffer(id) => Ok(id),
            _ => Err(unsupported(&self.graph.value(v).name, "it has no buffer")),
        }
    }

    /// What a kernel family says, with the step's name.
    pub fn spec<T>(&self, name: &str, made: Result<T, SpecError>) -> Result<T, PlanError> {
        made.map_err(|e| unsupported(name, e))
    }

    /// The spec with the tuning that was measured best for it, where one was.
    pub fn tuned<F: Registered>(&self, spec: F) -> F {
        if self.reproducible {
            // What was measured, for one number of rows and not for another, has no say.
            let usual = spec.usual(&self.target).ok();
            return spec.with(usual);
        }
        let whole: Spec = spec.clone().into();
        let Some(tuning) = self.tuned.choice(&whole, &self.target) else { return spec };
        whole.with(Some(tuning)).try_into().unwrap_or(spec)
    }

    /// A kernel's job.
    pub fn job<F: Registered>(&mut self, name: &str, spec: F) -> Result<Ready<F>, PlanError> {
        let spec: Spec = spec.into();
        let arguments = spec.arguments().len();
        let Made { job, block, shared } = match self.jobs.known(&spec) {
            Some(made) => made,
            None => {
                let kernel = self.spec(name, spec.kernel(&self.target))?;
                let job = kernel.job(&self.target);
                job.check().map_err(|e| unsupported(name, e))?;
                self.jobs.make(spec, kernel, job)
            }
        };
        Ok(Ready { job, block, shared, arguments, family: PhantomData })
    }

    /// What a projection is called: after the value that it ends in.
    pub fn name_of(&self, segments: &[Segment], finish: &Finish) -> String {
        let named = finish.out().or(segments.first().map(|s| s.out));
        named.map_or(String::new(), |v| self.graph.value(v).name.clone())
    }

    /// The weights of a launch as kernels describe them, with the length of their rows.
    pub fn weights(&self, segments: &[Segment]) -> (usize, Vec<segments::Segment>) {
        let of = |s: &Segment| {
            let w = self.graph.weight(s.weight);
            segments::Segment { format: w.format, rows: w.rows, bias: s.bias.is_some() }
        };
        (
            segments.first().map_or(0, |s| self.graph.weight(s.weight).cols),
            segments.iter().map(of).collect(),
        )
    }

    /// The residual that a projection adds.
    pub fn residual(&self, finish: &Finish) -> Result<Bind, PlanError> {
        match *finish {
            Finish::Add { residual, .. } => self.value(residual),
            _ => Ok(Bind::Null),
        }
    }

    /// Buffers for the results of a launch.
    pub fn results(&mut self, input: &Input, segments: &[Segment], finish: &Finish) -> Vec<Bind> {
        match *finish {
            Finish::Store => segments.iter().map(|s| self.program.make(s.out)).collect(),
            Finish::Add { residual, out } => {
                vec![self.program.make_over(out, residual, &[input.value()])]
            }
            Finish::Glu { out, .. } | Finish::Sum { out, .. } => vec![self.program.make(out)],
        }
    }

    /// The arguments of a product for its weights.
    pub fn weight_args(
        &mut self,
        segments: &[Segment],
        results: &[Bind],
    ) -> [SegmentArgs<Bind>; segments::MOST] {
        std::array::from_fn(|i| {
            let segment = segments.get(i);
            SegmentArgs {
                w: segment.map_or(Bind::Null, |s| self.matrix(s.weight)),
                b: segment.and_then(|s| s.bias).map_or(Bind::Null, |b| self.vector(b)),
                y: results.get(i).copied().unwrap_or(Bind::Null),
            }
        })
    }

    /// A launch of it.
    pub fn run<F: Family>(
        &mut self,
        name: String,
        ready: &Ready<F>,
        grid: [Dim; 3],
        args: F::Args<Bind>,
    ) {
        let shape = Shape { grid, block: ready.block, shared: ready.shared };
        let mut args = args.list();
        args.truncate(ready.arguments);
        self.program.launch(name, ready.job, shape, args);
    }
}

/// How what a state keeps lies in memory: keys, and values if it has any; or latents.
pub(super) fn kept_as(graph: &Graph, id: StateId, storage: KvStorage) -> KvLayout {
    let (heads, head_dim) = match &graph.state(id).kind {
        StateKind::Kv(kv) => (kv.heads, head_size(kv)),
        StateKind::Latent { rank, rope } => (1, rank + rope),
        StateKind::Recurrent { .. } | StateKind::Elsewhere => (0, 0),
    };
    KvLayout { heads, head_dim, storage }
}

/// What happens to the rows of a projection without experts, as kernels describe it.
pub(super) fn finish_of(name: &str, finish: &Finish) -> Result<segments::Finish, PlanError> {
    match finish {
        Finish::Store => Ok(segments::Finish::Store),
        Finish::Add { .. } => Ok(segments::Finish::Add),
        Finish::Glu { act: Activation::Silu, .. } => Ok(segments::Finish::Silu),
        Finish::Glu { act: Activation::GeluTanh, .. } => Ok(segments::Finish::Gelu),
        Finish::Glu { act, .. } => {
            Err(unsupported(name, format!("no kernel has its activation {act:?}")))
        }
        Finish::Sum { .. } => Err(unsupported(name, "a weighted sum without experts")),
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
