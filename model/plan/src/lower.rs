//! The shared parts of all lowerings: jobs, weights, values, epilogues of projections, and errors
//! that name the step.

use super::build::{Builder, CompiledSizes, Jobs, Shape};
use super::fuse::{Finish, Input, Segment, Step, head_size};
use super::product::Form;
use super::{Bind, BufferId, Dim, GemmUse, JobId, PlanError};
use crate::error::unsupported;
use crate::group::Group;
use kjit_engine::Target;
use kjit_graph::{Activation, Graph, StateId, StateKind, ValueId, WeightId};
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
    /// The measured tunings.
    pub tuned: &'g dyn Choices,
    /// Positions in a cache.
    pub context: u32,
    /// The storage type of caches.
    pub storage: KvStorage,
    /// Whether keys and values are in pages.
    pub paged: bool,
    pub jobs: &'g mut Jobs,
    pub matrices: &'g mut Vec<WeightId>,
    pub vectors: &'g mut Vec<WeightId>,
    pub program: Builder<'g>,
    /// True: rows are sequences, each in its own slot. False: rows are tokens of one sequence.
    pub batch: bool,
    /// Whether the results of a row are bit for bit independent of other rows.
    pub reproducible: bool,
    /// Whether rows are tokens of one sequence whose attention is computed separately for each, as
    /// in decoding.
    pub apart: bool,
    /// Whether rows are drafted tokens of one sequence. Each is treated as a slot with its own
    /// position. Only with `batch`.
    pub drafted: bool,
    /// Products whose launches depend on the number of tokens, with the maximum bytes of their
    /// partial results and counters.
    pub products: Vec<(GemmUse, u64, u64)>,
    /// Inputs that are already in a layout of products: the value, the norm that was applied to it,
    /// and the layout.
    pub in_form: HashMap<(ValueId, Option<WeightId>, Form), Bind>,
    /// Rows grouped by expert. The key is the value with the experts. There is one row for each
    /// token and slot, or one for each token.
    pub groups: HashMap<(ValueId, bool), Group>,
    /// The steps after the current one.
    pub later: &'g [Step],
}

/// A job and its launch geometry, typed by the family of its arguments.
pub(super) struct LoweredJob<F> {
    job: JobId,
    block: u32,
    shared: u32,
    /// The number of arguments.
    arguments: usize,
    family: PhantomData<F>,
}

impl Lower<'_> {
    /// Binds a matrix, which will be uploaded.
    pub fn matrix(&mut self, id: WeightId) -> Bind {
        push_unique(self.matrices, id);
        Bind::Matrix(id)
    }

    /// Binds a vector, which will be uploaded.
    pub fn vector(&mut self, id: WeightId) -> Bind {
        push_unique(self.vectors, id);
        Bind::Vector(id)
    }

    /// The memory layout of a cache.
    pub fn kv(&self, id: StateId) -> KvLayout {
        kv_layout(self.graph, id, self.storage)
    }

    /// The buffer of a value in rows of f32.
    pub fn value(&self, v: ValueId) -> Result<Bind, PlanError> {
        let name = &self.graph.value(v).name;
        if self.program.is_tiled(v) {
            return Err(unsupported(
                name,
                "it is stored in the layout for products of many rows, \
                 but a different kernel reads it",
            ));
        }
        self.program
            .bind_of(v)
            .ok_or_else(|| unsupported(name, "it exists only inside a fused step"))
    }

    /// The buffer id of a value.
    pub fn buffer_of(&self, v: ValueId) -> Result<BufferId, PlanError> {
        match self.value(v)? {
            Bind::Buffer(id) => Ok(id),
            _ => Err(unsupported(&self.graph.value(v).name, "it is not in a buffer")),
        }
    }

    /// Adds the step's name to a kernel family's error.
    pub fn spec<T>(&self, name: &str, made: Result<T, SpecError>) -> Result<T, PlanError> {
        made.map_err(|e| unsupported(name, e))
    }

    /// The spec with its measured tuning, if there is one.
    pub fn tuned<F: Registered>(&self, spec: F) -> F {
        if self.reproducible {
            // A tuning that was measured for one number of rows must not be used for a different
            // number.
            let usual = spec.usual(&self.target).ok();
            return spec.with(usual);
        }
        let whole: Spec = spec.clone().into();
        let Some(tuning) = self.tuned.choice(&whole, &self.target) else { return spec };
        whole.with(Some(tuning)).try_into().unwrap_or(spec)
    }

    /// The job of a kernel.
    pub fn job<F: Registered>(&mut self, name: &str, spec: F) -> Result<LoweredJob<F>, PlanError> {
        let spec: Spec = spec.into();
        let arguments = spec.arguments().len();
        let CompiledSizes { job, block, shared } = match self.jobs.known(&spec) {
            Some(made) => made,
            None => {
                let kernel = self.spec(name, spec.kernel(&self.target))?;
                let job = kernel.job(&self.target);
                job.check().map_err(|e| unsupported(name, e))?;
                self.jobs.make(spec, kernel, job)
            }
        };
        Ok(LoweredJob { job, block, shared, arguments, family: PhantomData })
    }

    /// The name of a projection: the value of its result.
    pub fn name_of(&self, segments: &[Segment], finish: &Finish) -> String {
        let named = finish.out().or(segments.first().map(|s| s.out));
        named.map_or(String::new(), |v| self.graph.value(v).name.clone())
    }

    /// A launch's weights in the kernels' format, and their row length.
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

    /// The residual of a projection.
    pub fn residual(&self, finish: &Finish) -> Result<Bind, PlanError> {
        match *finish {
            Finish::Add { residual, .. } => self.value(residual),
            _ => Ok(Bind::Null),
        }
    }

    /// The result buffers of a launch.
    pub fn results(&mut self, input: &Input, segments: &[Segment], finish: &Finish) -> Vec<Bind> {
        match *finish {
            Finish::Store => segments.iter().map(|s| self.program.make(s.out)).collect(),
            Finish::Add { residual, out } => {
                vec![self.program.make_over(out, residual, &[input.value()])]
            }
            Finish::Glu { out, .. } | Finish::Sum { out, .. } => vec![self.program.make(out)],
        }
    }

    /// A product's arguments for its weights.
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

    /// Adds a launch of a job.
    pub fn run<F: Family>(
        &mut self,
        name: String,
        ready: &LoweredJob<F>,
        grid: [Dim; 3],
        args: F::Args<Bind>,
    ) {
        let shape = Shape { grid, block: ready.block, shared: ready.shared };
        let mut args = args.list();
        args.truncate(ready.arguments);
        self.program.launch(name, ready.job, shape, args);
    }
}

/// The memory layout of a state: keys, with values if it has any; or latents.
pub(super) fn kv_layout(graph: &Graph, id: StateId, storage: KvStorage) -> KvLayout {
    let (heads, head_dim) = match &graph.state(id).kind {
        StateKind::Kv(kv) => (kv.heads, head_size(kv)),
        StateKind::Latent { rank, rope } => (1, rank + rope),
        StateKind::Recurrent { .. } | StateKind::Remote => (0, 0),
    };
    KvLayout { heads, head_dim, storage }
}

/// The finish of a projection without experts, in the kernels' format.
pub(super) fn finish_of(name: &str, finish: &Finish) -> Result<segments::Finish, PlanError> {
    match finish {
        Finish::Store => Ok(segments::Finish::Store),
        Finish::Add { .. } => Ok(segments::Finish::Add),
        Finish::Glu { act: Activation::Silu, .. } => Ok(segments::Finish::Silu),
        Finish::Glu { act: Activation::GeluTanh, .. } => Ok(segments::Finish::Gelu),
        Finish::Glu { act, .. } => {
            Err(unsupported(name, format!("no kernel supports its activation {act:?}")))
        }
        Finish::Sum { .. } => {
            Err(unsupported(name, "a weighted sum without experts is not supported"))
        }
    }
}

/// Adds an id that is not in the list.
fn push_unique(list: &mut Vec<WeightId>, id: WeightId) {
    if !list.contains(&id) {
        list.push(id);
    }
}
