//! A plan: all that a GPU does for a model, as data (kernels to compile, memory to allocate,
//! launches).
//!
//! A [`Plan`] depends on the graph, the target and the options, not on a device. So it can be
//! printed, tested and compiled (`kjit warm`) on a machine without a GPU, and a device of the same
//! target finds every kernel in the cache. Facts that only a device knows (compute units) enter
//! through a [`Dim`] at launch time.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod arena;
mod batch;
mod build;
mod chosen;
mod decode;
pub mod divide;
pub mod expert_places;
mod fit;
#[doc(hidden)]
pub mod fuse;
mod lower;
mod map;
mod persistent;
mod print;
mod product;
mod prompt;
mod reduce;
mod reproducible;
mod small;
mod states;
mod stream;
mod whole;

#[doc(hidden)]
pub use arena::{Life, place};
pub use batch::DRAFTED;
use map::function_of;
pub use persistent::{Instruction, PersistentKernel};
pub use reduce::{RANKS, Room, WORDS};
#[doc(hidden)]
pub use stream::{SLOTS, StreamedLayer, StreamedMatrix, Streaming, Stretch};
pub use whole::{Request, copies_beside, plan};

use kjit_engine::Target;
use kjit_exec::SessionError;
use kjit_graph::{RopeId, StateId, ValueId, WeightId};
use kjit_kernels::SpecError;
use kjit_kernels::gemm::{GemmLaunch, GemmSpec};
use kjit_kernels::kv::PAGE;
use kjit_kernels::moe::MoeSpec;
use kjit_kernels::spec::Spec;

/// One for each token; in a batch, for each sequence.
const TOKENS: Dim = Dim::Tokens { per: 1, each: 1 };
const ONE: Dim = Dim::Is(1);

/// A compile job and one of its kernels.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Job {
    /// The compile job.
    pub job: kjit_engine::Job,
    /// The kernel.
    pub entry: &'static str,
    /// The spec that it specialises.
    pub spec: Spec,
}

/// Index of a [`Job`] in [`Plan::jobs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(hidden)]
pub struct JobId(pub u32);

/// Index of a [`Buffer`] in [`Program::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(hidden)]
pub struct BufferId(pub u32);

/// Memory that launches share. Buffers that are never alive at the same time may overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct Buffer {
    /// The value in it, or its purpose.
    pub name: String,
    /// Bytes for the program's most tokens.
    pub bytes: u64,
    /// Bytes from the start of the arena, a multiple of 256.
    pub offset: u64,
    /// Counters: zero before the first run and after each launch that uses them. Nothing overlaps
    /// them.
    pub zeroed: bool,
}

/// Control words in device memory that drive sequences: written by the host at the start of a call,
/// and by the sampler for each token. Each slot has its own; programs for one sequence get one
/// slot's, batches those of all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Control {
    /// `u32`s: token ids by position.
    Tokens,
    /// `u32`s 0, 1, 2 …, one for each position of a context. Shared by all slots.
    Numbers,
    /// `u32`: the position of the first current token.
    Position,
    /// `u64`: the seed of draws.
    Seed,
    /// Top-k as `u32`, 1 / temperature, top-p, min-p as `f32`.
    Options,
    /// `u32`s: adjustments of the logits before the next choice (`kjit_kernels::changes`).
    Adjustments,
    /// `u32`s: the slot of each decoded sequence, in the order of a batch's rows. Shared by all
    /// slots.
    Slots,
    /// `u32`s: the page table: the page of each range of positions.
    Pages,
    /// `u32`s: the position of each drafted token's row. Shared by all slots.
    Places,
    /// `u32`s: the position of each prompt token, if each attends alone. Shared by all slots.
    Each,
    /// `u32`s, initially zero: counters for choices after drafts. Shared by all slots.
    Turns,
    /// `u32`s: [`PICK`] for each row of drafted tokens; the second one gets the chosen token.
    /// Shared by all slots.
    Picks,
}

/// Words of [`Control::Picks`] in a row: for the previous turn and for the first turn.
pub const PICK: usize = 2;

/// An argument of a reduction over devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Meeting {
    /// `u32`s: the number of exchanges so far, and related counters.
    Words,
    /// `u32` in host memory: set when a device waited too long.
    Late,
    /// This device's inbox.
    Inbox,
    /// The inbox of the device `1 + n` ranks after this one, cyclically.
    To(u32),
    /// `u64`: packets of an inbox for each device.
    Room,
    /// All parts, gathered by a library.
    Gathered,
    /// This device's inbox for rows of a prompt.
    Rows,
    /// The inbox for rows of the device `1 + n` ranks after this one, cyclically.
    RowsTo(u32),
    /// `u64`: values of that inbox for each device.
    RowsRoom,
    /// `u64`: the time limit in nanoseconds.
    Limit,
}

/// The way to choose the next token from the logits.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Choice {
    /// The most likely token.
    Greedy,
    /// A random token.
    Draw {
        /// Among the `top_k` most likely; 0 for all.
        top_k: u32,
        /// Multiplies logits: 1 / temperature.
        inverse: f32,
        /// Among the most likely tokens up to this sum of probabilities.
        top_p: f32,
        /// Among tokens at least this times as likely as the most likely one.
        min_p: f32,
    },
}

/// An argument of the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Chosen {
    /// Top-k of [`Choice::Draw`].
    TopK,
    /// The inverse temperature of [`Choice::Draw`].
    Inverse,
    /// Top-p of [`Choice::Draw`].
    TopP,
    /// Min-p of [`Choice::Draw`].
    MinP,
}

/// A kernel argument's value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Number {
    /// An integer.
    U32(u32),
    /// A float.
    F32(f32),
}

impl Chosen {
    /// The argument's value.
    pub fn of(self, choice: Choice) -> Number {
        let (top_k, inverse, top_p, min_p) = match choice {
            Choice::Greedy => (1, 1.0, 1.0, 0.0),
            Choice::Draw { top_k, inverse, top_p, min_p } => (top_k, inverse, top_p, min_p),
        };
        match self {
            Chosen::TopK => Number::U32(top_k),
            Chosen::Inverse => Number::F32(inverse),
            Chosen::TopP => Number::F32(top_p),
            Chosen::MinP => Number::F32(min_p),
        }
    }
}

/// A size that may depend on the device or the number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Dim {
    /// A constant.
    Is(u32),
    /// `tokens / per`, rounded up, times `each`.
    Tokens {
        /// Tokens a block takes.
        per: u32,
        /// Blocks for those.
        each: u32,
    },
    /// `min(units * per_unit, most)`.
    Fill {
        /// Blocks that are resident on a compute unit.
        per_unit: u32,
        /// Blocks that have work.
        most: u32,
    },
    /// A number of a product's launch, times `each`.
    Gemm {
        /// Index in [`Program::products`].
        product: u32,
        /// The number.
        part: GemmPart,
        /// The factor.
        each: u32,
    },
    /// `min(units * per_unit / (over * tokens), most)`.
    Spread {
        /// Blocks that are resident on a compute unit.
        per_unit: u32,
        /// Blocks of the other grid dimensions for a token.
        over: u32,
        /// The maximum.
        most: u32,
    },
}

/// A matrix product whose launch depends on the number of tokens.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct GemmUse {
    /// The product.
    pub spec: GemmSpec,
    /// With experts: how the rows of tokens are grouped.
    pub group: Option<MoeSpec>,
    /// Each block has all columns of its results ([`GemmLaunch::whole`]).
    pub whole: bool,
}

impl GemmUse {
    /// The launch for a number of tokens.
    ///
    /// # Errors
    /// Those of [`GemmSpec::launch_rows`].
    pub fn launch(
        &self,
        target: &Target,
        tokens: u32,
        units: u32,
    ) -> Result<GemmLaunch, SpecError> {
        let tokens = tokens as usize;
        let rows = self.group.map_or(tokens, |g| g.rows(tokens));
        let launch = self.spec.launch_rows(target, rows, units.min(product::UNITS))?;
        Ok(if self.whole { launch.whole() } else { launch })
    }
}

/// A number of a product's launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum GemmPart {
    /// Blocks that share a result.
    Splits,
    /// Tiles of tokens.
    TokenTiles,
    /// All tiles.
    Tiles,
    /// Blocks in the grid's first dimension.
    Blocks,
    /// The grid's first dimension.
    GridX,
    /// The grid's second dimension.
    GridY,
    /// The grid's third dimension.
    GridZ,
}

/// The values that a [`Dim`] is evaluated with: the device, the tokens, and the products' launches
/// that follow from both.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Now {
    /// Compute units of the device.
    pub units: u32,
    /// The number of tokens.
    pub tokens: u32,
    /// The way to choose the next token.
    pub choice: Choice,
    /// Launches by index of [`Program::products`].
    pub products: Vec<GemmLaunch>,
}

impl Dim {
    /// The size, at least 1.
    pub fn at(self, now: &Now) -> u32 {
        match self {
            Dim::Is(n) => n,
            Dim::Tokens { per, each } => now.tokens.div_ceil(per.max(1)).saturating_mul(each),
            Dim::Fill { per_unit, most } => now.units.saturating_mul(per_unit).min(most),
            Dim::Gemm { product, part, each } => {
                let launch = now.products.get(product as usize);
                launch
                    .map_or(0, |l| match part {
                        GemmPart::Splits => l.splits,
                        GemmPart::TokenTiles => l.token_tiles,
                        GemmPart::Tiles => l.tiles,
                        GemmPart::Blocks => l.blocks,
                        GemmPart::GridX => l.geometry.grid[0],
                        GemmPart::GridY => l.geometry.grid[1],
                        GemmPart::GridZ => l.geometry.grid[2],
                    })
                    .saturating_mul(each)
            }
            Dim::Spread { per_unit, over, most } => {
                let over = over.saturating_mul(now.tokens).max(1);
                (now.units.saturating_mul(per_unit) / over).min(most)
            }
        }
        .max(1)
    }
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Bind {
    /// A buffer of the program.
    Buffer(BufferId),
    /// A matrix in the device's layout.
    Matrix(WeightId),
    /// A vector of f32.
    Vector(WeightId),
    /// The table of a rotation: cosines and sines.
    Rope(RopeId),
    /// A cache's keys, or the whole of another state.
    Keys(StateId),
    /// Values of a cache.
    Values(StateId),
    /// A control word.
    Control(Control),
    /// No buffer.
    Null,
    /// A size, as `u32`.
    Dim(Dim),
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
    /// A number.
    F32(f32),
    /// This many for each token, as `u64`.
    Elements(u64),
    /// An argument of the choice.
    Chosen(Chosen),
    /// An argument of a reduction over devices.
    Meeting(Meeting),
    /// Rows that the CPU computed, in host memory.
    HostParts,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Launch {
    /// The value that it ends in, or its purpose.
    pub name: String,
    /// Index of its step.
    pub step: usize,
    /// The kernel.
    pub job: JobId,
    /// Its arguments, in order.
    pub args: Vec<Bind>,
    /// Blocks.
    pub grid: [Dim; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// May start before the previous launch has ended; the kernel itself waits.
    pub dependent: bool,
    /// Its blocks wait for each other: all must be resident. A device that cannot guarantee that
    /// runs one block for each sequence.
    pub cooperative: bool,
}

/// Launches for up to a number of tokens.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Program {
    /// The most tokens.
    pub tokens: u32,
    /// Memory passed from launch to launch.
    pub buffers: Vec<Buffer>,
    /// Offset of its buffers in the plan's arena. Programs do not overlap, since counters must stay
    /// zero.
    pub base: u64,
    /// Bytes of all buffers.
    pub arena: u64,
    /// The launches in order.
    pub launches: Vec<Launch>,
    /// The buffers of kept values and of the result.
    pub kept: Vec<Kept>,
    /// Products whose launches depend on the number of tokens.
    pub products: Vec<GemmUse>,
    /// The input of the logits' steps: one f32 row for each token.
    pub head: BufferId,
    /// The first launch of those steps.
    pub head_from: usize,
    /// Input buffer of f32 hidden states; `None` if the program starts from token ids.
    pub given: Option<BufferId>,
    /// Pauses at which the CPU computes, in order.
    pub pauses: Vec<Pause>,
}

/// A pause of launches for work of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Pause {
    /// Index of the launch that it precedes.
    pub at: usize,
    /// Index among the graph's host operations.
    pub op: usize,
    /// The work.
    pub what: HostWork,
}

/// The work at a pause, on rows of 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum HostWork {
    /// The CPU computes everything from these rows; a later launch fetches its result
    /// ([`Bind::HostParts`]).
    All {
        /// The input.
        from: BufferId,
    },
    /// The host divides the chosen experts: it keeps the CPU's, and tells the device the cache
    /// slots of the others.
    Divide {
        /// The input, the chosen experts, their shares.
        from: [BufferId; 3],
        /// The cache slots of the device's experts, and their shares.
        to: [BufferId; 2],
    },
    /// The CPU computes the experts that it kept.
    Rest {
        /// The result.
        to: BufferId,
    },
}

impl HostWork {
    /// The buffers that it reads.
    pub fn reads(&self) -> &[BufferId] {
        match self {
            HostWork::All { from } => std::slice::from_ref(from),
            HostWork::Divide { from, .. } => from,
            HostWork::Rest { .. } => &[],
        }
    }

    /// The buffers that it writes.
    pub fn makes(&self) -> &[BufferId] {
        match self {
            HostWork::All { .. } => &[],
            HostWork::Rest { to } => std::slice::from_ref(to),
            HostWork::Divide { to, .. } => to,
        }
    }
}

/// A value that exists after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Kept {
    /// The value.
    pub value: ValueId,
    /// Its buffer.
    pub buffer: BufferId,
    /// Stored as half-precision tiles; otherwise rows of 32-bit elements.
    pub tiled: bool,
}

impl Program {
    /// Whether launches read the position of each token ([`Control::Each`]).
    pub fn wants_each(&self) -> bool {
        self.launches.iter().any(|l| l.args.contains(&Bind::Control(Control::Each)))
    }

    /// The values that launches are evaluated with on a device of `units` compute units.
    ///
    /// # Errors
    /// Those of [`GemmUse::launch`].
    pub fn now(
        &self,
        target: &Target,
        units: u32,
        tokens: u32,
        choice: Choice,
    ) -> Result<Now, SpecError> {
        let products = self
            .products
            .iter()
            .map(|p| p.launch(target, tokens, units))
            .collect::<Result<_, _>>()?;
        Ok(Now { units, tokens, choice, products })
    }
}

/// One token of each of several sequences: one row each, at any lengths.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Batch {
    /// Logits of a token of each sequence, for up to [`Program::tokens`] sequences.
    pub program: Program,
    /// Applies biases, masks and penalties to the logits; `None` without logits.
    pub adjust: Option<Launch>,
    /// Chooses each sequence's most likely token, in the program's buffers; `None` if another stage
    /// follows.
    pub greedy: Option<Launch>,
    /// Draws tokens, each by the options in its slot.
    pub draw: Option<Launch>,
}

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
    /// Chooses the most likely token, in the buffers of [`Plan::decode`]; `None` if another stage
    /// follows.
    pub greedy: Option<Launch>,
    /// Draws a token, in the same buffers.
    pub draw: Option<Launch>,
    /// Persistent kernels for one token of each of some sequences, fewest sequences first; the one
    /// for one sequence replaces [`Plan::decode`]. Empty if not wanted or not possible.
    pub persistent: Vec<PersistentKernel>,
    /// The reason if persistent kernels were requested and there are none.
    pub no_persistent: Option<String>,
    /// Prompt programs without logits, smallest first. Empty if the prompt kernels do not cover the
    /// model: tokens then run one by one.
    pub prompts: Vec<Program>,
    /// The reason why there are none.
    pub no_prompts: Option<String>,
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

/// The reason why a model cannot be planned for a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An operation in a shape that no kernel supports.
    #[error("{what} cannot run on a GPU yet: {why}; --device cpu runs it")]
    Unsupported {
        /// The value or weight.
        what: String,
        /// The missing feature.
        why: String,
    },
    /// A context beyond the kernels' counters.
    #[error("a context of {0} tokens is more than a GPU's kernels can count: give a smaller -c, \
        at most {max}", max = u32::MAX)]
    Context(usize),
    /// A weight without a device layout.
    #[error("tensor '{name}': {source}")]
    Layout {
        /// The tensor.
        name: String,
        /// The cause.
        source: kjit_kernels::layout::LayoutError,
    },
}

impl From<PlanError> for SessionError {
    fn from(error: PlanError) -> SessionError {
        SessionError::Device(error.to_string())
    }
}
