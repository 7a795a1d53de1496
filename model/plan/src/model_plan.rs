//! The plan of a model: its programs, weights and memory.

use crate::persistent::PersistentKernel;
use crate::program::Batch;
use crate::program::{HostWork, Job, JobId, Launch, Program};
use crate::streaming::Streaming;
use kjit_engine::Target;
use kjit_graph::WeightId;
use kjit_kernels::kv::PAGE;

/// Bytes that a plan needs on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Resident weights in the device's layout, and the staging ring of streamed ones.
    pub weights: u64,
    /// Keys and values of a full context.
    pub kv: u64,
    /// Everything else: arenas, tables, control words.
    pub rest: u64,
}

impl MemoryNeed {
    /// The sum.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.rest)
    }
}

/// The work of a GPU for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The target.
    pub target: Target,
    /// The distinct compile jobs.
    pub jobs: Vec<Job>,
    /// One token and its logits.
    pub decode: Program,
    /// Applies biases, masks and penalties to the logits; `None` without logits.
    pub adjust: Option<Launch>,
    /// Chooses the most likely token, in the buffers of [`Plan::decode`]. `None` if another stage
    /// follows.
    pub greedy: Option<Launch>,
    /// Draws a token, in the same buffers.
    pub draw: Option<Launch>,
    /// Persistent kernels for one token of each of some sequences, sorted by the number of
    /// sequences. The kernel for one sequence replaces [`Plan::decode`]. Empty if not requested or
    /// not possible.
    pub persistent: Vec<PersistentKernel>,
    /// The reason why the requested persistent kernels are missing.
    pub no_persistent: Option<String>,
    /// Prompt programs without logits, smallest first. Empty if there are no prompt kernels for the
    /// model: prompts then run token by token.
    pub prompts: Vec<Program>,
    /// The reason why there are no prompt programs.
    pub no_prompts: Option<String>,
    /// A pass of the rows of an image that attend to each other, without logits. `None` if it was
    /// not requested ([`OpenOptions::image_rows`](kjit_exec::OpenOptions::image_rows)), or if it
    /// is not possible.
    pub image: Option<Program>,
    /// The reason why the requested program for images is missing.
    pub no_image: Option<String>,
    /// Sequence slots, whose keys and values are side by side in the caches; at least one.
    pub slots: usize,
    /// Batch programs, smallest first; empty for one slot.
    pub batches: Vec<Batch>,
    /// Verifies drafts: a few tokens of one sequence with the logits of each. `None` without
    /// drafts, or if states cannot be written before they are read.
    pub drafts: Option<Batch>,
    /// Each matrix once, with its repack job.
    pub matrices: Vec<(WeightId, Option<JobId>)>,
    /// Bytes of each matrix on the device.
    pub matrix_bytes: Vec<u64>,
    /// Streamed layers; `None` if all are resident ([`Plan::fit`]).
    pub streaming: Option<Streaming>,
    /// Each vector once.
    pub vectors: Vec<WeightId>,
    /// The number of pages; `None` if each slot has its own memory.
    pub pages: Option<usize>,
    /// Bytes of a slot or page of each cache: `[keys, values]`; other states: `[total, 0]`.
    pub caches: Vec<[u64; 2]>,
    /// The number of slots or pages of each cache.
    pub parts: Vec<Parts>,
    /// Memory requirements.
    pub memory: MemoryNeed,
}

impl Plan {
    /// All compile jobs.
    pub fn compiled(&self) -> impl Iterator<Item = &kjit_engine::Job> {
        self.jobs.iter().map(|j| &j.job).chain(self.persistent.iter().map(|one| &one.job))
    }

    /// All programs.
    pub fn programs(&self) -> Vec<&Program> {
        let own = self.persistent.iter().filter_map(|one| one.own.as_deref());
        let batches = self.batches.iter().chain(&self.drafts).chain(own).map(|b| &b.program);
        std::iter::once(&self.decode)
            .chain(&self.prompts)
            .chain(batches)
            .chain(self.copying())
            .chain(&self.image)
            .collect()
    }

    /// The program whose buffers a persistent kernel uses.
    pub fn program_of<'a>(&'a self, one: &'a PersistentKernel) -> &'a Program {
        one.own.as_ref().map_or(&self.decode, |own| &own.program)
    }

    /// Layers whose experts or feed-forward part the CPU computes for a token.
    pub fn host_layers(&self) -> usize {
        self.decode.pauses.iter().filter(|p| !matches!(p.what, HostWork::Divide { .. })).count()
    }

    /// The prompt program for which experts are copied to the device, if the CPU computes them for
    /// single tokens.
    pub fn copying(&self) -> Option<&Program> {
        self.streaming.as_ref().and_then(|s| s.prompt.as_ref())
    }

    /// The number of slots or pages of a cache.
    pub fn parts_of(&self, cache: usize) -> Parts {
        self.parts.get(cache).copied().unwrap_or(Parts::Slots { slots: self.slots, copies: 0 })
    }

    /// Slots for saved recurrent states.
    pub fn copies(&self) -> usize {
        self.parts
            .iter()
            .map(|p| if let Parts::Slots { copies, .. } = *p { copies } else { 0 })
            .max()
            .unwrap_or(0)
    }

    /// Words of a slot's page table.
    pub fn table(&self, context: usize) -> usize {
        self.pages.map_or(0, |_| context.div_ceil(PAGE))
    }

    /// Bytes of the programs' arena.
    pub fn arena(&self) -> u64 {
        self.programs().iter().map(|p| p.base + p.arena).max().unwrap_or(0)
    }
}

/// The number of units of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// One for each page.
    Pages(usize),
    /// One for each slot, followed by saved copies.
    Slots {
        /// Slots.
        slots: usize,
        /// Copies.
        copies: usize,
    },
}

impl Parts {
    /// All units.
    pub const fn count(self) -> usize {
        match self {
            Parts::Pages(pages) => pages,
            Parts::Slots { slots, copies } => slots + copies,
        }
    }
}
