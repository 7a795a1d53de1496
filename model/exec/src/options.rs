//! Options of opening a model, for every runner and for planning.

use super::{DeviceChoice, NonExhaustive};
use kjit_graph::{Graph, Op, Pooling, StateKind};
pub use kjit_kernels::persistent::Probe;
use std::path::PathBuf;

/// The storage type of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum KvType {
    /// f32, the reference (`--precise`).
    F32,
    /// f16, the default.
    F16,
    /// Blocks of 32 signed bytes with an f16 scale.
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

/// The largest context if none was requested. It limits memory use.
const USUAL_CONTEXT: usize = 8192;
/// Number of prompt tokens in one pass on a GPU. Matrix units need many rows.
const CHUNK_ON_GPU: usize = 2048;
/// Number of prompt tokens in one pass on the CPU. More tokens would not fit in the caches.
const CHUNK_ON_CPU: usize = 512;

/// Maximum number of drafted tokens of a step. With the current token they are 8 rows. On a
/// memory-bound device 8 rows take hardly longer than one.
pub const DRAFTS: usize = 7;

/// The output that a model is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Output {
    /// The default output of the model: logits of the next token, or an encoder's vector.
    #[default]
    Own,
    /// One vector per text, with this pooling or with the pooling of the file
    /// ([`Runner::embed`](super::Runner::embed)).
    Vector(Option<Pooling>),
}

/// Whether one launch of a persistent kernel, generated for the model, computes a whole token of
/// one or two sequences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Persistence {
    /// If it was measured to be faster. This is true on Hopper GPUs for dense models that are
    /// mostly Q4_0, Q4_1, Q4_K, Q5_K, Q6_K or Q8_0, with at most 128 elements per head and at least
    /// 50 MiB of weights per layer. (If two GPUs compute a layer together: 100 MiB in each GPU's
    /// share, and only for one sequence.) If the kernel cannot be compiled, ordinary launches are
    /// used.
    #[default]
    Auto,
    /// As `Auto`. If nothing was measured, the kernel is planned as well, for a trial at opening.
    /// `Auto` becomes this variant on devices that have a trial (AMD).
    Tried,
    /// If possible. Otherwise ordinary launches are used, and the plan has the reason.
    On,
    /// Never.
    Off,
}

/// The device that computes experts or feed-forward parts for prompts, if the CPU computes them for
/// single tokens ([`OpenOptions::host_experts`], [`OpenOptions::host_ffn`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum HostPrompts {
    /// The faster device for each prompt length: the CPU, or the GPU after copying the weights.
    /// Rates are measured when the model is opened.
    #[default]
    Measured,
    /// Always the CPU. Nothing is copied and no GPU memory is reserved.
    Compute,
    /// The GPU, for prompts of at least two tokens.
    Copy,
}

/// The division of a model among several devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Split {
    /// By layers: each device has a range of layers. Hidden states go from each device to the next.
    #[default]
    Layers,
    /// By heads and rows: all devices compute each layer together.
    Tensor,
    /// As `Tensor`, with one device in each of several processes. The launcher's variables give the
    /// rank of this process (`kjit_ranks::Ranks`).
    Ranks,
}

/// A LoRA adapter to open with a model.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct AdapterFile {
    /// A GGUF file, or a PEFT folder.
    pub path: PathBuf,
    /// The name that requests use. `None`: the name of the file or folder.
    pub name: Option<String>,
    /// The scale in sequences that choose no adapter. With 0 the adapter has no effect in them.
    pub scale: f32,
}

/// Options of opening a model.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct OpenOptions {
    /// The device or devices.
    pub device: DeviceChoice,
    /// The division among several devices.
    pub split: Split,
    /// Number of first layers on the CPU; a GPU computes the others. `None`: if the CPU is among
    /// the devices, the layers that do not fit on the GPUs; otherwise 0.
    pub host_layers: Option<usize>,
    /// Number of first MoE layers whose experts run on the CPU during a GPU's pass. Numbers above
    /// the number of layers mean all layers.
    pub host_experts: usize,
    /// Number of layers, spread evenly, whose feed-forward part runs on the CPU during a GPU's
    /// pass. Numbers above the number of layers mean all layers. `None`: measured rates decide for
    /// a model that exceeds one GPU's memory and is opened for one sequence without
    /// [`OpenOptions::stream`]; otherwise 0.
    pub host_ffn: Option<usize>,
    /// GPU bytes for an expert cache. It has the most used experts of the host, and the GPU
    /// computes them. `None`: no expert cache.
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
    /// On a GPU: halves `sequences`, down to [`OpenOptions::FEW`], until their state and the
    /// weights fit.
    pub fewer: bool,
    /// On one GPU: tokens that all sequences share, in pages. Sequences with a common prefix share
    /// its pages; each sequence has at most one context. `None`: every sequence has a full context.
    /// The CPU needs no pages: it allocates memory as tokens arrive.
    pub paged: Option<usize>,
    /// The storage type of keys and values.
    pub kv: KvType,
    /// Prefers accuracy to speed.
    pub precise: bool,
    /// The logits of a sequence are bit for bit independent of other sequences, prompt chunks,
    /// cached prefixes, drafts and threads. Slower. Opening fails if this cannot be guaranteed.
    pub reproducible: bool,
    /// Number of CPU threads.
    pub threads: usize,
    /// Tokens of a prompt in one pass. `None`: the device's default.
    pub prefill_chunk: Option<usize>,
    /// On a GPU: opening returns when single tokens can be decoded. Missing prompt kernels are
    /// compiled in the background and used from a later token on. So two runs may choose different
    /// tokens if logits are nearly equal.
    pub early: bool,
    /// On a GPU: compiles a program for a few tokens of one sequence, to verify drafts
    /// ([`Want::Drafted`]).
    ///
    /// [`Want::Drafted`]: super::Want::Drafted
    pub drafts: bool,
    /// On a GPU: whether one launch computes a whole token.
    pub persistent: Persistence,
    /// Instrumentation of the persistent kernel, for tests. Not serialised.
    #[serde(skip)]
    pub probe: Probe,
    /// On a GPU: maximum bytes of weights, state and working memory. `None`: the free memory.
    /// Layers that do not fit are streamed in each step.
    pub memory: Option<u64>,
    /// On a GPU: streams all layers, even if they fit.
    pub stream: bool,
    /// LoRA adapters, at most [`kjit_graph::MAX_ADAPTERS`]. Each sequence has a scale for each.
    pub adapters: Vec<AdapterFile>,
    /// Places for LoRA adapters that are loaded later, at most [`kjit_graph::MAX_ADAPTERS`], and
    /// the largest rank of such an adapter. Not together with `adapters`. `None`: no places.
    pub adapter_slots: Option<(usize, usize)>,
    /// Rows of an image if they attend to each other, also to later ones (Gemma 3's 256). A GPU
    /// then gets a program for a pass of these rows. 0: images have no such rows.
    pub image_rows: usize,
    /// On a GPU: names of values to keep in memory after a step. A value that a fused step has only
    /// in registers is not kept.
    pub keep: Vec<String>,
    #[doc(hidden)]
    #[serde(skip)]
    pub _more: NonExhaustive,
}

impl Default for OpenOptions {
    /// Defaults: the first GPU, or the CPU with every core if there is no GPU; one sequence; keys
    /// and values in f16.
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
            adapters: vec![],
            adapter_slots: None,
            image_rows: 0,
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

    /// Tokens that fit in a sequence of this model. Learned positions limit this number.
    pub fn context_of(&self, graph: &Graph) -> usize {
        let context = self.context.unwrap_or_else(|| graph.context.min(USUAL_CONTEXT));
        graph.positions.map_or(context, |n| n.min(context))
    }

    /// The minimum number of sequences with [`OpenOptions::fewer`].
    pub const FEW: usize = 4;

    /// Whether [`OpenOptions::paged`] works with this model and these devices.
    ///
    /// # Errors
    /// The reason why pages cannot be used.
    pub fn may_page(&self, graph: &Graph) -> Result<(), String> {
        match (&self.device, self.host_layers) {
            (DeviceChoice::Cpu, _) => {
                return Err(
                    "KV pages need a GPU: on the CPU, memory grows with the tokens".to_owned()
                );
            }
            (DeviceChoice::Several(_), _) | (_, Some(1..)) => {
                return Err("KV pages need exactly one GPU and no layers on the CPU".to_owned());
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
        return Some("embedding models have no KV cache".to_owned());
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
