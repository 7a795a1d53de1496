//! What a GPU does for a model, as data: kernels to compile, memory to have, launches to make.
//!
//! A [`Plan`] follows from the graph, the target and the options alone; no device is asked. So it
//! can be printed, tested and compiled for (`kjit warm`) on a machine without a GPU, and a device
//! of the same target finds every kernel in the cache. What only a live device tells (compute
//! units) enters as a [`Dim`] when a launch is made.

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
pub use persistent::{Instruction, OneLaunch};
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

/// One for each token (of a batch: each sequence).
const TOKENS: Dim = Dim::Tokens { per: 1, each: 1 };
const ONE: Dim = Dim::Is(1);

/// One compilation, and the kernel wanted of it.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Job {
    /// What is compiled.
    pub job: kjit_engine::Job,
    /// The kernel.
    pub entry: &'static str,
    /// What it is a specialisation of.
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

/// A piece of memory that launches pass on to each other. Buffers that are never alive together
/// share their place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(hidden)]
pub struct Buffer {
    /// The value that it holds, or what it is for.
    pub name: String,
    /// Bytes, for as many tokens as the program takes at most.
    pub bytes: u64,
    /// Bytes from the start of the arena, a multiple of 256.
    pub offset: u64,
    /// Counters: zero before the first run, and zero again after each launch that uses them.
    /// Nothing shares their place.
    pub zeroed: bool,
}

/// Words that live on the device and drive sequences: written by the host at the start of a call,
/// by the sampler for each token. Each sequence has its own in its slot; programs for one sequence
/// are given one slot's, programs for several those of all slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Control {
    /// `u32`s: ids of all tokens, by position.
    Tokens,
    /// `u32`s: 0, 1, 2 …, as many as a context has positions. One for all.
    Numbers,
    /// `u32`: position of the first token at hand.
    Position,
    /// `u64`: what a draw's noise is made of.
    Seed,
    /// Top-k as `u32`, 1 / temperature, top-p, min-p as `f32`.
    Options,
    /// `u32`s: what is done to the logits before the next token is chosen
    /// (`kjit_kernels::changes`).
    Adjustments,
    /// `u32`s: the slot of each sequence that is decoded, in the order of a batch's rows. One for
    /// all.
    Slots,
    /// `u32`s: the page of each stretch of positions.
    Pages,
    /// `u32`s: the position of each row of drafted tokens. One for all.
    Places,
    /// `u32`s: the position of each of a prompt's tokens, where they attend each by itself. One for
    /// all.
    Each,
    /// `u32`s, zeros: what counts up where tokens are chosen behind drafted ones. One for all.
    Turns,
    /// `u32`s: [`PICK`] for each row of drafted tokens, the second of which gets the token chosen
    /// there. One for all.
    Picks,
}

/// Words of [`Control::Picks`] for a row: that of the turn before, and that of the first turn.
pub const PICK: usize = 2;

/// What devices that compute one model together meet by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Meeting {
    /// `u32`s: how many meetings there were, and what goes with that.
    Words,
    /// `u32` of the host: somebody has waited in vain.
    Late,
    /// This device's inbox.
    Inbox,
    /// The inbox of the device so many behind this one, less one, in turn.
    To(u32),
    /// As `u64`: packets that an inbox has for each device.
    Room,
    /// All parts, that a library has put one behind the other.
    Gathered,
    /// This device's inbox for rows of a prompt.
    Rows,
    /// The same of another device, in turn.
    RowsTo(u32),
    /// As `u64`: values that it has for each device.
    RowsRoom,
    /// As `u64`: nanoseconds that are waited at most.
    Limit,
}

/// How the next token is chosen from the logits.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Choice {
    /// The likeliest.
    Greedy,
    /// At random.
    Draw {
        /// Among so many of the likeliest; 0: all.
        top_k: u32,
        /// Multiplies logits: 1 / temperature.
        inverse: f32,
        /// Among the likeliest whose probabilities reach this.
        top_p: f32,
        /// Among those at least this times as likely as the likeliest.
        min_p: f32,
    },
}

/// An argument that the choice of the next token has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Chosen {
    /// [`Choice::Draw`]'s field.
    TopK,
    /// Likewise.
    Inverse,
    /// Likewise.
    TopP,
    /// Likewise.
    MinP,
}

/// A number for a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Number {
    /// An integer.
    U32(u32),
    /// A float.
    F32(f32),
}

impl Chosen {
    /// Its value.
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

/// A size that may depend on the device or on the work at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Dim {
    /// Always this.
    Is(u32),
    /// One for each `n` tokens at hand, times `each`.
    Tokens {
        /// Tokens a block takes.
        per: u32,
        /// Blocks for those.
        each: u32,
    },
    /// As many as the device holds at once, `per_unit` for each compute unit, but at most `most`.
    Fill {
        /// Blocks that a compute unit takes at once.
        per_unit: u32,
        /// Blocks for which there is work.
        most: u32,
    },
    /// A number of a product's launch, times `each`.
    Gemm {
        /// Index in [`Program::products`].
        product: u32,
        /// Which number.
        part: GemmPart,
        /// Times this.
        each: u32,
    },
    /// So many that, times `over` for each token at hand, there are no more than `per_unit` for
    /// each compute unit; at most `most`.
    Spread {
        /// Blocks that a compute unit takes at once.
        per_unit: u32,
        /// Blocks of the other dimensions for a token.
        over: u32,
        /// At most.
        most: u32,
    },
}

/// A product of matrices whose launch depends on the tokens at hand.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct GemmUse {
    /// The product.
    pub spec: GemmSpec,
    /// With experts: the rows are those of tokens grouped so.
    pub group: Option<MoeSpec>,
    /// A block has all columns of its results ([`GemmLaunch::whole`]).
    pub whole: bool,
}

impl GemmUse {
    /// Its launch.
    ///
    /// # Errors
    /// As [`GemmSpec::launch_rows`].
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
    /// Tiles in all.
    Tiles,
    /// Blocks in the grid's first dimension.
    Blocks,
    /// The grid.
    GridX,
    /// The grid.
    GridY,
    /// The grid.
    GridZ,
}

/// What a [`Dim`] is evaluated with: the device, the tokens at hand, and the launches of products
/// that follow from both.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Now {
    /// Compute units of the device.
    pub units: u32,
    /// Tokens at hand.
    pub tokens: u32,
    /// How the next one is chosen.
    pub choice: Choice,
    /// By the index of [`Program::products`].
    pub products: Vec<GemmLaunch>,
}

impl Dim {
    /// The size now; at least 1.
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
    /// A matrix, in the layout of the device.
    Matrix(WeightId),
    /// A vector of f32.
    Vector(WeightId),
    /// Cosines and sines of a rotation.
    Rope(RopeId),
    /// Keys of a cache, or all that another state keeps.
    Keys(StateId),
    /// Values of a cache.
    Values(StateId),
    /// A word that drives the sequence.
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
    /// So many for each token at hand, as `u64`.
    Elements(u64),
    /// A number that comes with the choice of a token.
    Chosen(Chosen),
    /// What devices meet by: memory, or a number.
    Meeting(Meeting),
    /// Rows that the CPU has made, in its own memory.
    Aside,
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Launch {
    /// The value it ends in, or what it does.
    pub name: String,
    /// Index of the step that it belongs to.
    pub step: usize,
    /// What runs.
    pub job: JobId,
    /// Its arguments, in order.
    pub args: Vec<Bind>,
    /// Blocks.
    pub grid: [Dim; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// May start before the launch before it has ended: the kernel waits by itself.
    pub dependent: bool,
    /// Its blocks wait for each other: they are all resident, or there is one a sequence (on a
    /// device that cannot promise it).
    pub cooperative: bool,
}

/// Launches for up to so many tokens at once.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Program {
    /// Tokens it takes at most.
    pub tokens: u32,
    /// Memory passed from launch to launch.
    pub buffers: Vec<Buffer>,
    /// Where its buffers start in the plan's arena: each program has its own, since counters must
    /// stay zero.
    pub base: u64,
    /// Bytes that the buffers take together.
    pub arena: u64,
    /// In order.
    pub launches: Vec<Launch>,
    /// Where values ended up that were asked to be kept, or that are the result.
    pub kept: Vec<Kept>,
    /// Products of matrices whose launches depend on the tokens at hand.
    pub products: Vec<GemmUse>,
    /// What the steps that make logits read: a row of singles for each token.
    pub head: BufferId,
    /// The first launch of those steps.
    pub head_from: usize,
    /// Where rows of singles go before a run, one for each token: none where launches make them
    /// from ids.
    pub given: Option<BufferId>,
    /// Where the CPU computes in between, in order.
    pub pauses: Vec<Pause>,
}

/// Where launches wait for what the CPU computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Pause {
    /// Before the launch of this index.
    pub at: usize,
    /// Which of the graph's operations that are elsewhere.
    pub op: usize,
    /// What is done there.
    pub what: AtPause,
}

/// What is done at a pause, in rows of 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum AtPause {
    /// The CPU computes all from these rows; a launch behind it takes what it has made
    /// ([`Bind::Aside`]).
    All {
        /// What it reads.
        from: BufferId,
    },
    /// The CPU takes its part of what was chosen, and says where the rest lies on the device.
    Divide {
        /// Its rows, the chosen experts, their shares.
        from: [BufferId; 3],
        /// Where those of the device lie, and their shares.
        to: [BufferId; 2],
    },
    /// The CPU computes the part that it took before.
    Rest {
        /// What it makes.
        to: BufferId,
    },
}

impl AtPause {
    /// What is read there.
    pub fn reads(&self) -> &[BufferId] {
        match self {
            AtPause::All { from } => std::slice::from_ref(from),
            AtPause::Divide { from, .. } => from,
            AtPause::Rest { .. } => &[],
        }
    }

    /// What is made there.
    pub fn makes(&self) -> &[BufferId] {
        match self {
            AtPause::All { .. } => &[],
            AtPause::Rest { to } => std::slice::from_ref(to),
            AtPause::Divide { to, .. } => to,
        }
    }
}

/// A value that is there after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct Kept {
    /// The value.
    pub value: ValueId,
    /// Where it is.
    pub buffer: BufferId,
    /// As halves in tiles, else rows of 32-bit elements.
    pub tiled: bool,
}

impl Program {
    /// Whether launches want to know the position of each token ([`Control::Each`]).
    pub fn wants_each(&self) -> bool {
        self.launches.iter().any(|l| l.args.contains(&Bind::Control(Control::Each)))
    }

    /// What launches are evaluated with on a device of so many compute units.
    ///
    /// # Errors
    /// As [`GemmUse::launch`].
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

/// One more token of several sequences at once: a row each, whatever their lengths.
#[derive(Debug, Clone, PartialEq)]
#[doc(hidden)]
pub struct Batch {
    /// A token of each, their logits. Runs for any number of sequences up to [`Program::tokens`].
    pub program: Program,
    /// Biases, masks and penalties on its logits, where a sequence has any; none where there are no
    /// logits.
    pub adjust: Option<Launch>,
    /// The likeliest token of each from the logits of the program, on whose buffers it works; none
    /// where other layers come behind.
    pub greedy: Option<Launch>,
    /// Random ones, each by the options in its slot.
    pub draw: Option<Launch>,
}

/// Bytes a plan needs on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights as they lie there, and the ring of those that are streamed.
    pub weights: u64,
    /// Keys and values of a full context.
    pub kv: u64,
    /// All else: arenas, tables, words.
    pub rest: u64,
}

impl MemoryNeed {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.rest)
    }
}

/// What a GPU does for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What it is for.
    pub target: Target,
    /// The distinct compilations.
    pub jobs: Vec<Job>,
    /// One token, its logits.
    pub decode: Program,
    /// Biases, masks and penalties on its logits, where a sequence has any; none where there are no
    /// logits.
    pub adjust: Option<Launch>,
    /// The likeliest token from the logits of [`Plan::decode`], on whose buffers it works; none
    /// where other layers come behind, on another device.
    pub greedy: Option<Launch>,
    /// A random one, likewise.
    pub draw: Option<Launch>,
    /// A token of each of so many sequences as one launch, the fewest first: of one sequence the
    /// launches of [`Plan::decode`]. None where nobody wants it, or where it is not possible.
    pub persistent: Vec<OneLaunch>,
    /// Why there are none, where they were asked for.
    pub no_persistent: Option<String>,
    /// Many tokens, without their logits: for up to so many at once each, the fewest first. None
    /// where the kernels for prompts do not cover the model: tokens then go one by one.
    pub prompts: Vec<Program>,
    /// Why there are none.
    pub no_prompts: Option<String>,
    /// Sequences that have a slot each: their keys and values lie side by side in the caches. One
    /// where none was asked for.
    pub slots: usize,
    /// For so many sequences decoded side by side, the fewest first; none where none was asked for.
    pub batches: Vec<Batch>,
    /// A few tokens of one sequence at once with the logits of each, so that drafted ones are held
    /// against what would have been chosen; none where nobody drafts, or where states cannot be
    /// kept before they are read.
    pub drafts: Option<Batch>,
    /// Matrices, each once, with the job that lays it out.
    pub matrices: Vec<(WeightId, Option<JobId>)>,
    /// Bytes of each of them on the device.
    pub matrix_bytes: Vec<u64>,
    /// The layers whose matrices are copied for each pass; none where all stay ([`Plan::fit`]).
    pub streaming: Option<Streaming>,
    /// Vectors, each once.
    pub vectors: Vec<WeightId>,
    /// Pages that slots have keys and values in; none where each slot has its own.
    pub pages: Option<usize>,
    /// Bytes of the keys, and of the values, of each cache, for one slot, or one page; of another
    /// state, of all, and none.
    pub caches: Vec<[u64; 2]>,
    /// How often each of them has that.
    pub parts: Vec<Parts>,
    /// Memory.
    pub memory: MemoryNeed,
}

impl Plan {
    /// All that is compiled for it.
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

    /// The program whose buffers one launch works on.
    pub fn program_of<'a>(&'a self, one: &'a OneLaunch) -> &'a Program {
        one.own.as_ref().map_or(&self.decode, |own| &own.program)
    }

    /// Layers whose experts the CPU computes for a token.
    pub fn computed_aside(&self) -> usize {
        self.decode.pauses.iter().filter(|p| !matches!(p.what, AtPause::Divide { .. })).count()
    }

    /// The program for prompts whose experts are copied to the device, where the CPU has them for
    /// single tokens.
    pub fn copying(&self) -> Option<&Program> {
        self.streaming.as_ref().and_then(|s| s.prompt.as_ref())
    }

    /// How often a cache has the bytes that [`Plan::caches`] says.
    pub fn parts_of(&self, cache: usize) -> Parts {
        self.parts.get(cache).copied().unwrap_or(Parts::Slots { slots: self.slots, copies: 0 })
    }

    /// Copies of a sequence's states that do not grow for which there is room, where there are such
    /// states.
    pub fn copies(&self) -> usize {
        self.parts
            .iter()
            .map(|p| if let Parts::Slots { copies, .. } = *p { copies } else { 0 })
            .max()
            .unwrap_or(0)
    }

    /// Words of a slot's table of pages.
    pub fn table(&self, context: usize) -> usize {
        self.pages.map_or(0, |_| context.div_ceil(PAGE))
    }

    /// Bytes that launches pass on to each other.
    pub fn arena(&self) -> u64 {
        self.programs().iter().map(|p| p.base + p.arena).max().unwrap_or(0)
    }
}

/// How often there is what a cache has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// For each page, whoever has it.
    Pages(usize),
    /// For each slot, and behind them for copies of what slots had.
    Slots {
        /// Slots.
        slots: usize,
        /// Copies.
        copies: usize,
    },
}

impl Parts {
    /// All of them.
    pub const fn count(self) -> usize {
        match self {
            Parts::Pages(pages) => pages,
            Parts::Slots { slots, copies } => slots + copies,
        }
    }
}

/// Why a model cannot be planned for a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An operation that the kernels do not have in this shape.
    #[error("{what} cannot run on a GPU yet: {why}; --device cpu runs it")]
    Unsupported {
        /// The value or weight.
        what: String,
        /// What is not there.
        why: String,
    },
    /// More tokens than kernels can count.
    #[error("a context of {0} tokens is more than a GPU's kernels can count: give a smaller -c, \
        at most {max}", max = u32::MAX)]
    Context(usize),
    /// A weight that cannot be laid out.
    #[error("tensor '{name}': {source}")]
    Layout {
        /// The tensor.
        name: String,
        /// Why.
        source: kjit_kernels::layout::LayoutError,
    },
}

impl From<PlanError> for SessionError {
    fn from(error: PlanError) -> SessionError {
        SessionError::Device(error.to_string())
    }
}
