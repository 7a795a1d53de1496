//! Builds a program launch by launch: deduplicates jobs, assigns buffers to values, and lays out
//! memory.

use super::arena::{Lifetime, place};
use super::fuse::Step;
use super::{
    Bind, Buffer, BufferId, Dim, GemmUse, HostWork, Job, JobId, KeptValue, Launch, Pause,
    PlanError, Program,
};
use crate::error::unsupported;
use kjit_graph::op::Offload;
use kjit_graph::{Graph, Op, ValueId};
use kjit_kernels::Kernel;
use kjit_kernels::spec::Spec;
use kjit_kernels::tiles::TileLayout;
use std::collections::HashMap;

/// The distinct compile jobs of all programs of a plan.
#[derive(Debug, Clone, Default)]
pub struct Jobs {
    list: Vec<Job>,
    known: HashMap<Spec, CompiledSizes>,
}

/// The facts of a job that a launch needs.
#[derive(Debug, Clone, Copy)]
pub struct CompiledSizes {
    /// The job.
    pub job: JobId,
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory, in bytes.
    pub shared: u32,
}

impl Jobs {
    /// Adds a job, or finds it.
    pub fn intern(&mut self, job: Job) -> JobId {
        let at =
            self.list.iter().position(|j| j.job == job.job && j.entry == job.entry).unwrap_or_else(
                || {
                    self.list.push(job);
                    self.list.len() - 1
                },
            );
        JobId(at as u32)
    }

    /// The result for a spec that was created before. All jobs have one target and layers are
    /// similar, so few specs are new. Most of a plan's time is needed to generate a kernel, find
    /// its includes and compare it with the others.
    pub fn known(&self, spec: &Spec) -> Option<CompiledSizes> {
        self.known.get(spec).copied()
    }

    /// Creates a kernel's job for this target and stores it by its spec.
    pub fn make(&mut self, spec: Spec, kernel: Kernel, job: kjit_engine::Job) -> CompiledSizes {
        let Kernel { entry, block, shared, .. } = kernel;
        let job = self.intern(Job { job, entry, spec: spec.clone() });
        *self.known.entry(spec).or_insert(CompiledSizes { job, block, shared })
    }

    /// The jobs so far.
    pub fn all(&self) -> &[Job] {
        &self.list
    }

    /// The finished list of jobs.
    pub fn finish(self) -> Vec<Job> {
        self.list
    }
}

struct Pending {
    name: String,
    bytes: u64,
    until: BufferLifetime,
}

/// A buffer's lifetime.
#[derive(Clone, Copy, PartialEq)]
enum BufferLifetime {
    /// From the first to the last launch that binds it.
    Bound,
    /// From the first launch that binds it to the end.
    End,
    /// Always: counters that stay zero between runs.
    Ever,
    /// From before the first launch to the last launch that binds it.
    Given,
}

/// The launch geometry of a kernel.
pub struct Shape {
    /// Blocks.
    pub grid: [Dim; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory, in bytes.
    pub shared: u32,
}

/// Builds a [`Program`].
pub struct Builder<'g> {
    graph: &'g Graph,
    tokens: u32,
    keep: Vec<ValueId>,
    /// Last step that reads each value.
    last_read: Vec<usize>,
    buffers: Vec<Pending>,
    values: HashMap<ValueId, BufferId>,
    tiled: Vec<(ValueId, TileLayout)>,
    launches: Vec<Launch>,
    step: usize,
    given: Option<BufferId>,
    embedded: Option<BufferId>,
    pauses: Vec<Pause>,
}

/// The layout of a value among those that are stored in a layout of products.
fn layout_in(tiled: &[(ValueId, TileLayout)], v: ValueId) -> Option<TileLayout> {
    tiled.iter().find(|(one, _)| *one == v).map(|(_, layout)| *layout)
}

impl<'g> Builder<'g> {
    /// Starts a program for up to `tokens` tokens. The values in `keep` and the logits remain after
    /// the last launch.
    pub fn new(graph: &'g Graph, steps: &[Step], tokens: u32, keep: &[ValueId]) -> Builder<'g> {
        let keep = keep.iter().copied().chain([graph.logits]).collect();
        let mut last_read = vec![0; graph.values.len()];
        for (i, step) in steps.iter().enumerate() {
            for v in step.reads() {
                if let Some(last) = last_read.get_mut(v.0 as usize) {
                    *last = i;
                }
            }
        }
        let (buffers, values, launches) = (vec![], HashMap::new(), vec![]);
        Builder {
            graph,
            tokens,
            keep,
            last_read,
            buffers,
            values,
            tiled: vec![],
            launches,
            step: 0,
            given: None,
            embedded: None,
            pauses: vec![],
        }
    }

    /// Maximum number of tokens.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// Starts a step; later launches belong to it.
    pub fn step(&mut self, index: usize) {
        self.step = index;
    }

    /// Working memory of this step. Its lifetime is from the first to the last launch that binds
    /// it.
    pub fn scratch(&mut self, name: impl Into<String>, bytes: u64) -> Bind {
        self.add(name.into(), bytes, BufferLifetime::Bound)
    }

    /// Counters that are zero before and after each launch that uses them. All launches with this
    /// name share them.
    pub fn counters(&mut self, name: &str, bytes: u64) -> Bind {
        match self.buffers.iter().position(|b| b.until == BufferLifetime::Ever && b.name == name) {
            Some(at) => {
                if let Some(b) = self.buffers.get_mut(at) {
                    b.bytes = b.bytes.max(bytes);
                }
                Bind::Buffer(BufferId(at as u32))
            }
            None => self.add(name.to_string(), bytes, BufferLifetime::Ever),
        }
    }

    fn add(&mut self, name: String, bytes: u64, until: BufferLifetime) -> Bind {
        self.buffers.push(Pending { name, bytes, until });
        Bind::Buffer(BufferId(self.buffers.len() as u32 - 1))
    }

    /// Bytes of a value for all tokens, with 32-bit elements.
    pub fn value_bytes(&self, v: ValueId) -> u64 {
        let value = self.graph.value(v);
        4 * (value.slots * value.width) as u64 * u64::from(self.tokens)
    }

    /// A buffer for a value that the next launch writes.
    pub fn make(&mut self, v: ValueId) -> Bind {
        let bytes = self.value_bytes(v);
        self.make_sized(v, bytes)
    }

    /// A buffer for a value that exists before the first launch.
    pub fn give(&mut self, v: ValueId) {
        let bytes = self.value_bytes(v);
        if let Bind::Buffer(id) =
            self.add(self.graph.value(v).name.clone(), bytes, BufferLifetime::Given)
        {
            self.values.insert(v, id);
            self.given = Some(id);
        }
    }

    /// A buffer for the embeddings of tokens, of which the host may write rows before the first
    /// launch.
    pub fn make_embedded(&mut self, v: ValueId) -> Bind {
        let made = self.make(v);
        if let Bind::Buffer(id) = made {
            self.embedded = Some(id);
        }
        made
    }

    /// As [`Builder::make`], for a value stored as f16 in a layout of products.
    pub fn make_tiled(&mut self, v: ValueId, bytes: u64, layout: TileLayout) -> Bind {
        self.tiled.push((v, layout));
        self.make_sized(v, bytes)
    }

    /// Whether a value is stored as f16 in a layout of products.
    pub fn is_tiled(&self, v: ValueId) -> bool {
        layout_in(&self.tiled, v).is_some()
    }

    fn make_sized(&mut self, v: ValueId, bytes: u64) -> Bind {
        let made = self.add(
            self.graph.value(v).name.clone(),
            bytes,
            if self.keep.contains(&v) { BufferLifetime::End } else { BufferLifetime::Bound },
        );
        if let Bind::Buffer(id) = made {
            self.values.insert(v, id);
        }
        made
    }

    /// A buffer for a sum: the buffer of its operand, if no later step reads the operand.
    pub fn make_over(&mut self, v: ValueId, operand: ValueId, others: &[ValueId]) -> Bind {
        let free = self.last_read.get(operand.0 as usize) == Some(&self.step)
            && !self.keep.contains(&operand)
            && !self.keep.contains(&v)
            && !others.contains(&operand);
        match self.values.get(&operand) {
            Some(&id) if free => {
                self.values.insert(v, id);
                Bind::Buffer(id)
            }
            _ => self.make(v),
        }
    }

    /// The buffer of a value.
    pub fn bind_of(&self, v: ValueId) -> Option<Bind> {
        self.values.get(&v).map(|&id| Bind::Buffer(id))
    }

    /// Adds a pause, at which the CPU computes an operation.
    ///
    /// # Errors
    /// A value has a layout that the CPU does not support.
    pub fn pause(&mut self, op: &Op) -> Result<(), PlanError> {
        let name =
            || op.writes().first().map(|v| self.graph.value(*v).name.clone()).unwrap_or_default();
        let wrong_layout =
            || unsupported(&name(), "the CPU does not support the layout of its rows");
        let kind = std::mem::discriminant(op);
        let mut aside = self.graph.ops.iter().filter(|o| std::mem::discriminant(*o) == kind);
        let place = aside.position(|o| o == op).ok_or_else(wrong_layout)?;
        let bind_of = |v: ValueId| match self.bind_of(v) {
            Some(Bind::Buffer(from)) if !self.is_tiled(v) => Ok(from),
            _ => Err(wrong_layout()),
        };
        let what = match op {
            Op::Placed(placed) => {
                let from = [bind_of(placed.x)?, bind_of(placed.experts)?, bind_of(placed.shares)?];
                HostWork::Divide { from, to: [self.made(placed.places)?, self.made(placed.own)?] }
            }
            Op::Offload(Offload { x, with, .. }) if with.is_empty() => {
                HostWork::All { from: bind_of(*x)? }
            }
            Op::Offload(Offload { out, .. }) => HostWork::Rest { to: self.made(*out)? },
            _ => return Err(wrong_layout()),
        };
        self.pauses.push(Pause { at: self.launches.len(), op: place, what });
        Ok(())
    }

    /// The buffer for a value that a pause writes.
    fn made(&mut self, v: ValueId) -> Result<BufferId, PlanError> {
        match self.make(v) {
            Bind::Buffer(id) => Ok(id),
            _ => Err(unsupported(&self.graph.value(v).name, "it is not stored as rows")),
        }
    }

    /// Adds a launch.
    pub fn launch(&mut self, name: impl Into<String>, job: JobId, shape: Shape, args: Vec<Bind>) {
        let Shape { grid, block, shared } = shape;
        let (name, step) = (name.into(), self.step);
        self.launches.push(Launch {
            name,
            step,
            job,
            args,
            grid,
            block,
            shared,
            dependent: true,
            cooperative: false,
        });
    }

    /// Marks the last launch as cooperative: its blocks wait for each other.
    pub fn last_is_cooperative(&mut self) {
        if let Some(last) = self.launches.last_mut() {
            (last.dependent, last.cooperative) = (false, true);
        }
    }

    /// Lays out memory. `head` is the input of the steps that compute logits. These steps start at
    /// step `first`.
    pub fn finish(self, products: Vec<GemmUse>, head: BufferId, first: usize) -> Program {
        let end = self.launches.len().saturating_sub(1);
        let mut lives: Vec<Lifetime> = self
            .buffers
            .iter()
            .map(|b| match b.until {
                BufferLifetime::Ever => Lifetime { first: 0, last: end, bytes: b.bytes },
                // No launch uses it yet.
                BufferLifetime::End => Lifetime { first: usize::MAX, last: end, bytes: b.bytes },
                BufferLifetime::Bound => Lifetime { first: usize::MAX, last: 0, bytes: b.bytes },
                BufferLifetime::Given => Lifetime { first: 0, last: 0, bytes: b.bytes },
            })
            .collect();
        for (i, launch) in self.launches.iter().enumerate() {
            for arg in &launch.args {
                if let Bind::Buffer(id) = arg
                    && let Some(life) = lives.get_mut(id.0 as usize)
                {
                    life.first = life.first.min(i);
                    life.last = life.last.max(i);
                }
            }
        }
        if let Some(life) = self.embedded.and_then(|id| lives.get_mut(id.0 as usize)) {
            life.first = 0;
        }
        for pause in &self.pauses {
            // A pause reads after the previous launch and writes before the next one.
            let reads = pause.what.reads().iter().map(|id| (id, pause.at.saturating_sub(1)));
            let makes = pause.what.makes().iter().map(|id| (id, pause.at.min(end)));
            for (id, at) in reads.chain(makes) {
                if let Some(life) = lives.get_mut(id.0 as usize) {
                    life.first = life.first.min(at);
                    life.last = life.last.max(at);
                }
            }
        }
        let (offsets, arena) = place(&lives);
        let buffers = self.buffers.into_iter().zip(offsets).map(|(b, offset)| {
            let Pending { name, bytes, until } = b;
            Buffer { name, bytes, offset, zeroed: until == BufferLifetime::Ever }
        });
        let kept = self.keep.iter().filter_map(|&value| {
            Some(KeptValue {
                value,
                buffer: *self.values.get(&value)?,
                tiled: layout_in(&self.tiled, value),
            })
        });
        let (kept, buffers) = (kept.collect(), buffers.collect());
        let head_from =
            self.launches.iter().position(|l| l.step >= first).unwrap_or(self.launches.len());
        let Builder { tokens, launches, given, embedded, pauses, .. } = self;
        Program {
            tokens,
            buffers,
            base: 0,
            arena,
            launches,
            kept,
            products,
            head,
            head_from,
            given,
            embedded,
            pauses,
        }
    }
}
