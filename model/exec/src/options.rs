//! Options of opening a model, for every runner and for planning.

use super::{DeviceChoice, NonExhaustive};
use kjit_graph::{Graph, Op, Pooling, StateKind};
pub use kjit_kernels::persistent::Probe;

/// The storage type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum KvType {
    /// Single precision, the reference (`--precise`).
    F32,
    /// Half precision, the default.
    F16,
    /// Blocks of 32 signed bytes with a half-precision scale.
    Q8_0,
}

impl KvType {
    /// Bytes of `elems` elements, a multiple of 32.
    pub fn bytes(self, elems: usize) -> u64 {
        let elems = elems as u64;
        match self {
            KvType::F32 => elems * 4,
            KvType::F16 => elems * 2,
            KvType::Q8_0 => elems / 32 * 34,
        }
    }
}

/// The most tokens of context if none was requested, so that memory use is no surprise.
const USUAL_CONTEXT: usize = 8192;
/// Tokens of a prompt in one pass on a GPU: matrix units need many rows.
const CHUNK_ON_GPU: usize = 2048;
/// Tokens of a prompt in one pass on the CPU: more would not fit its caches.
const CHUNK_ON_CPU: usize = 512;

/// The most drafted tokens of a step. With the current token they make 8 rows, which cost a
/// memory-bound device hardly more than one row.
pub const DRAFTS: usize = 7;

/// The result that a model is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Output {
    /// The model's own: logits of the next token, or an encoder's vector.
    #[default]
    Own,
    /// One vector of a text with this pooling, else with the file's
    /// ([`Runner::embed`](super::Runner::embed)).
    Vector(Option<Pooling>),
}

/// Whether one launch of a persistent kernel, rendered for the model, computes a whole token of one
/// or two sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Persistence {
    /// When measured to be faster: on Hopper cards, for dense models that are mostly Q4_0, Q4_1,
    /// Q4_K, Q5_K, Q6_K or Q8_0, with heads of at most 128 and at least 50 MiB of weights a layer
    /// (100 MiB of each card's share if two compute a layer together, and only for one sequence).
    /// Ordinary launches if the kernel cannot be compiled.
    #[default]
    Auto,
    /// If possible; else launches, and the plan says why.
    On,
    /// Never.
    Off,
}

/// The device that computes experts or feed-forward parts for prompts, if the CPU computes them for
/// single tokens ([`OpenOptions::host_experts`], [`OpenOptions::host_ffn`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HostPrompts {
    /// The faster one for each prompt length, by rates measured when the model is opened: the CPU,
    /// or the GPU after copying the weights.
    #[default]
    Measured,
    /// Always the CPU. Nothing is copied and no GPU memory is reserved.
    Compute,
    /// The GPU, from two tokens on.
    Copy,
}

/// The division of a model among several devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Split {
    /// By layers: each device has a range of them, and hidden states pass from one to the next.
    #[default]
    Layers,
    /// By heads and rows: all devices compute each layer together.
    Tensor,
    /// As `Tensor`, with one device in each of several processes. The launcher's variables tell
    /// this process's rank (`kjit_ranks::Ranks`).
    Ranks,
}

/// Options of opening a model.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct OpenOptions {
    /// The device or devices.
    pub device: DeviceChoice,
    /// The division among several devices.
    pub split: Split,
    /// Number of first layers on the CPU; a GPU computes the others. `None`: those that do not fit
    /// if the CPU is among the devices, else 0.
    pub host_layers: Option<usize>,
    /// Number of first MoE layers whose experts run on the CPU within a GPU's pass; more than exist
    /// means all.
    pub host_experts: usize,
    /// Number of layers, spread evenly, whose feed-forward part runs on the CPU within a GPU's
    /// pass; more than exist means all. `None`: chosen by measured rates for a model that one GPU
    /// cannot hold, opened for one sequence without [`OpenOptions::stream`]; else 0.
    pub host_ffn: Option<usize>,
    /// GPU bytes for an expert cache: it holds the most used of the host's experts, and the GPU
    /// computes those. `None`: no expert cache.
    pub hot_experts: Option<u64>,
    /// The device that computes host experts and host FFN for prompts.
    pub host_prompts: HostPrompts,
    /// The result that the model is opened for.
    pub output: Output,
    /// Tokens of a sequence, prompt and answer together. `None`: the trained context, at most 8192.
    pub context: Option<usize>,
    /// Maximum number of concurrent sequences, each with its own context; at most 256 on a GPU, 64
    /// with `reproducible`.
    /// Their state is allocated when the model is opened.
    pub sequences: usize,
    /// On a GPU: halves `sequences`, down to [`OpenOptions::FEW`], while their state takes memory
    /// that the weights need.
    pub fewer: bool,
    /// On one GPU: tokens that all sequences share, in pages. Sequences with a common prefix share
    /// its pages; each has at most one context. `None`: every sequence has a full context. The CPU
    /// needs no pages: it allocates as tokens come.
    pub paged: Option<usize>,
    /// The storage type of keys and values.
    pub kv: KvType,
    /// Prefers accuracy to speed.
    pub precise: bool,
    /// A sequence's logits have the same bits whatever else runs: other sequences, prompt pieces,
    /// cached prefixes, drafts, threads. Slower. Opening fails if this cannot be guaranteed.
    pub reproducible: bool,
    /// Threads of the CPU.
    pub threads: usize,
    /// Tokens of a prompt in one pass. `None`: the device's default.
    pub prefill_chunk: Option<usize>,
    /// On a GPU: opening returns once single tokens can be decoded. Missing prompt kernels are
    /// compiled in the background and take over between tokens, so two runs may differ in
    /// near-ties.
    pub early: bool,
    /// On a GPU: has a program for a few tokens of one sequence, to verify drafts
    /// ([`Want::Drafted`]).
    ///
    /// [`Want::Drafted`]: super::Want::Drafted
    pub drafts: bool,
    /// On a GPU: whether one launch computes a whole token.
    pub persistent: Persistence,
    /// Extra work of the persistent kernel, for tests. Not serialised.
    #[serde(skip)]
    pub probe: Probe,
    /// On a GPU: the most bytes of weights, state and working memory. `None`: the free memory.
    /// Layers that do not fit are streamed in each step.
    pub memory: Option<u64>,
    /// On a GPU: streams all layers, even if they fit.
    pub stream: bool,
    /// On a GPU: names of values to keep in memory after a step, except those that a fused step has
    /// only in registers.
    pub keep: Vec<String>,
    #[doc(hidden)]
    #[serde(skip)]
    pub _more: NonExhaustive,
}

impl Default for OpenOptions {
    /// The first GPU, else the CPU with every core; one sequence; keys and values in half
    /// precision.
    fn default() -> OpenOptions {
        OpenOptions {
            device: DeviceChoice::Auto,
            split: Split::Layers,
            host_layers: None,
            host_experts: 0,
            host_ffn: None,
            hot_experts: None,
            host_prompts: HostPrompts::Measured,
            output: Output::Own,
            context: None,
            sequences: 1,
            fewer: false,
            paged: None,
            kv: KvType::F16,
            precise: false,
            reproducible: false,
            threads: default_threads(),
            prefill_chunk: None,
            early: false,
            drafts: false,
            persistent: Persistence::Auto,
            probe: Probe::None,
            memory: None,
            stream: false,
            keep: vec![],
            _more: NonExhaustive::default(),
        }
    }
}

impl OpenOptions {
    /// The default with a context of `context` tokens.
    #[must_use]
    pub fn new(context: usize) -> OpenOptions {
        OpenOptions { context: Some(context), ..OpenOptions::default() }
    }

    /// Tokens that fit in a sequence of this model: at most its number of learned positions, if
    /// they are learned.
    pub fn context_of(&self, graph: &Graph) -> usize {
        let context = self.context.unwrap_or_else(|| graph.context.min(USUAL_CONTEXT));
        graph.positions.map_or(context, |n| n.min(context))
    }

    /// The fewest sequences that [`OpenOptions::fewer`] leaves.
    pub const FEW: usize = 4;

    /// Whether [`OpenOptions::paged`] works with this model and these devices.
    ///
    /// # Errors
    /// The reason against it.
    pub fn may_page(&self, graph: &Graph) -> Result<(), String> {
        match (&self.device, self.host_layers) {
            (DeviceChoice::Cpu, _) => {
                return Err("the CPU has no pages: it takes memory as tokens come".to_owned());
            }
            (DeviceChoice::Several(_), _) | (_, Some(1..)) => {
                return Err("pages are one GPU's".to_owned());
            }
            (DeviceChoice::Auto | DeviceChoice::Gpu { .. }, _) => {}
        }
        why_no_pages(graph).map_or(Ok(()), Err)
    }

    /// The effective storage type of keys and values: `precise` means `F32`.
    pub fn kv_stored(&self) -> KvType {
        if self.precise { KvType::F32 } else { self.kv }
    }

    /// Tokens of a prompt in one pass on a GPU.
    pub fn chunk_on_gpu(&self) -> usize {
        self.prefill_chunk.unwrap_or(CHUNK_ON_GPU)
    }

    /// Tokens of a prompt in one pass on the CPU.
    pub fn chunk_on_cpu(&self) -> usize {
        self.prefill_chunk.unwrap_or(CHUNK_ON_CPU).max(1)
    }
}

/// The reason why a model's states cannot be in pages; `None` if they can.
pub fn why_no_pages(graph: &Graph) -> Option<String> {
    if graph.pooling.is_some() {
        return Some("what makes vectors of texts keeps no keys and values".to_owned());
    }
    if graph.ops.iter().any(|op| matches!(op, Op::TopKeys(_))) {
        return Some("sparse attention does not support pages".to_owned());
    }
    let other = graph.states.iter().find(|s| matches!(s.kind, StateKind::Remote));
    other.map(|other| format!("{} is on another device", other.name))
}

/// The number of cores that this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
