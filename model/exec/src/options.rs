//! How a model is opened: one struct for whatever runs it, and for planning what would.

use super::DeviceChoice;
use kjit_graph::{Graph, Op, Pooling, StateKind};
pub use kjit_kernels::persistent::Probe;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum KvType {
    /// Single precision: the truth (`--precise`).
    F32,
    /// Half precision: the default.
    F16,
    /// Blocks of 32 signed bytes with a half-precision scale.
    Q8_0,
}

impl KvType {
    /// Bytes of so many elements, a multiple of 32.
    pub fn bytes(self, elems: usize) -> u64 {
        let elems = elems as u64;
        match self {
            KvType::F32 => elems * 4,
            KvType::F16 => elems * 2,
            KvType::Q8_0 => elems / 32 * 34,
        }
    }
}

/// Tokens of context where none were asked for, at most: memory for more would come as a surprise.
const USUAL_CONTEXT: usize = 8192;
/// Tokens of a prompt that go through a GPU at once: its matrix units want many rows.
const CHUNK_ON_GPU: usize = 2048;
/// The same on the CPU, whose caches want few.
const CHUNK_ON_CPU: usize = 512;

/// Tokens drafted at most. With the one at hand these are 8 rows, which cost a memory-bound device
/// hardly more than one.
pub const DRAFTS: usize = 7;

/// What a model is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Output {
    /// What it makes: scores of the next token, or an encoder's vector.
    #[default]
    Own,
    /// One vector of a text, pooled so, else as the file asks ([`Runner::embed`](super::Runner::embed)).
    Vector(Option<Pooling>),
}

/// Whether a token of one sequence, or of each of two, is one launch, of a kernel that is rendered
/// for the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Persistence {
    /// Where that was shown to be faster: on Hopper cards, for dense models that are mostly Q4_0,
    /// Q4_1, Q4_K, Q5_K, Q6_K or Q8_0, with heads of 128 at most and 50 MiB of weights a layer at
    /// least (100 MiB of each card's share where two compute a layer together, and one sequence
    /// runs). Launches where its kernel cannot be compiled.
    #[default]
    Auto,
    /// Where it is possible; else launches, and the plan says why.
    On,
    /// Never.
    Off,
}

/// Who computes a prompt's experts, or feed-forward parts, where single tokens' are the CPU's
/// ([`OpenOptions::host_experts`], [`OpenOptions::host_ffn`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HostPrompts {
    /// The CPU, or from as many tokens on as that takes longer than copying the experts to the GPU,
    /// the GPU: by rates that are measured when the model is opened.
    #[default]
    Measured,
    /// The CPU, whatever it takes; nothing is copied, and no memory of the GPU is kept for it.
    Compute,
    /// The GPU, from two tokens on.
    Copy,
}

/// How a model is divided among several devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Split {
    /// By layers: each device has some of them, and rows go from one to the next.
    #[default]
    Layers,
    /// By heads and rows of each layer, which all devices compute together.
    Tensor,
    /// The same with a device of each of several processes, of which this is one by what its
    /// launcher says ([`Ranks`](kjit_model::ranks::Ranks)).
    Ranks,
}

/// How a model is opened.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct OpenOptions {
    /// What computes.
    pub device: DeviceChoice,
    /// How it is divided among several devices.
    pub split: Split,
    /// The model's first layers that the CPU computes, with a GPU for the others; none: as many as
    /// do not fit where the CPU is one of several devices, else no layers.
    pub host_layers: Option<usize>,
    /// The first layers with experts whose experts the CPU computes, in the midst of a GPU's pass:
    /// as many as there are, at most.
    pub host_experts: usize,
    /// Layers whose feed-forward part the CPU computes, in the midst of a GPU's pass, spread
    /// evenly: as many as there are, at most; none: as many as measured rates say, of a model that
    /// one GPU does not hold and that was opened for one sequence (unless [`OpenOptions::stream`]
    /// is set), else no layers.
    pub host_ffn: Option<usize>,
    /// Bytes of the GPU for those of these experts that are chosen most: it computes them, the CPU
    /// the others; none: the CPU computes all.
    pub hot_experts: Option<u64>,
    /// Who computes those experts for prompts.
    pub host_prompts: HostPrompts,
    /// What it is opened for.
    pub output: Output,
    /// Tokens that fit in a sequence, prompt and answer together; none: as many as the model was
    /// trained on, 8192 at most.
    pub context: Option<usize>,
    /// Sequences that fit, each with a context of its own: 64 at most on a GPU. Their state is laid
    /// out when the model is opened.
    pub sequences: usize,
    /// On a GPU: fewer sequences where so many would take memory that the weights need: half as
    /// many, and so on, down to [`OpenOptions::FEW`].
    pub fewer: bool,
    /// On one GPU: tokens that all sequences have room for together, in pages that those which
    /// begin alike share, each a context at most; none: each sequence has room for a context. The
    /// CPU, which takes memory as tokens come, has no use for it.
    pub paged: Option<usize>,
    /// Storage of keys and values.
    pub kv: KvType,
    /// Nearest to the truth instead of fastest.
    pub precise: bool,
    /// The scores of a sequence's next token are the same bits whatever comes with it: other
    /// sequences, pieces of a prompt, what was kept of tokens before, drafts, threads. Costs time;
    /// what cannot be so is no session.
    pub reproducible: bool,
    /// Threads for work on the CPU.
    pub threads: usize,
    /// Tokens of a prompt that go through the model at once; none: as many as suit the device.
    pub prefill_chunk: Option<usize>,
    /// On a GPU: ready as soon as single tokens can be fed. Kernels for prompts that are missing
    /// are compiled meanwhile, and take over between tokens. Not for whom the same tokens were
    /// promised twice.
    pub early: bool,
    /// On a GPU: a program for a few tokens of one sequence at once, for drafted ones
    /// ([`Want::Drafted`]).
    ///
    /// [`Want::Drafted`]: super::Want::Drafted
    pub drafts: bool,
    /// On a GPU: whether one launch does all of a token.
    pub persistent: Persistence,
    /// What the kernel of that launch does beside its work, if there is one: for tests, and written
    /// to no file.
    #[serde(skip)]
    pub probe: Probe,
    /// On a GPU: bytes of it that weights, state and working memory may take together; none: what
    /// is free. Layers that do not fit are copied to it for each step.
    pub memory: Option<u64>,
    /// On a GPU: copy all layers for each step, whether they would fit or not.
    pub stream: bool,
    /// On a GPU: values of these names are there after each step, but for those that a fused step
    /// has in registers only.
    pub keep: Vec<String>,
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
        }
    }
}

impl OpenOptions {
    /// The default with so many tokens of context.
    #[must_use]
    pub fn new(context: usize) -> OpenOptions {
        OpenOptions { context: Some(context), ..OpenOptions::default() }
    }

    /// Tokens that fit in a sequence of this model: no more than it has learned positions for, if
    /// they are learned.
    pub fn context_of(&self, graph: &Graph) -> usize {
        let context = self.context.unwrap_or_else(|| graph.context.min(USUAL_CONTEXT));
        graph.positions.map_or(context, |n| n.min(context))
    }

    /// Sequences that [`OpenOptions::fewer`] leaves at least.
    pub const FEW: usize = 4;

    /// Whether [`OpenOptions::paged`] may be set for this model and these devices.
    ///
    /// # Errors
    /// Why not.
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

    /// How keys and values are really stored: `precise` keeps them whole.
    pub fn kv_stored(&self) -> KvType {
        if self.precise { KvType::F32 } else { self.kv }
    }

    /// Tokens of a prompt that go through a GPU at once.
    pub fn chunk_on_gpu(&self) -> usize {
        self.prefill_chunk.unwrap_or(CHUNK_ON_GPU)
    }

    /// Tokens of a prompt that go through the CPU at once.
    pub fn chunk_on_cpu(&self) -> usize {
        self.prefill_chunk.unwrap_or(CHUNK_ON_CPU).max(1)
    }
}

/// Why what a model keeps of a text cannot lie in pages; none: it can.
pub fn why_no_pages(graph: &Graph) -> Option<String> {
    if graph.pooling.is_some() {
        return Some("what makes vectors of texts keeps no keys and values".to_owned());
    }
    if graph.ops.iter().any(|op| matches!(op, Op::TopKeys(_))) {
        return Some("chosen positions are found in no pages".to_owned());
    }
    let other = graph.states.iter().find(|s| matches!(s.kind, StateKind::Elsewhere));
    other.map(|other| format!("{} is another device's", other.name))
}

/// As many threads as cores that this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
