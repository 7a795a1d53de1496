//! Options of a model, and of sampling.

use super::samplers::MoreSamplers;
use super::values::{Lora, Size, above_zero, finite, not_negative, positive, seed, unit, whole};
use clap::{ArgGroup, Args, ValueEnum};
use kjit_model::session::{HostPrompts, KvType, Persistence, Split};

/// Options of a model.
#[derive(Debug, Clone, Args)]
pub struct Setup {
    /// Context size in tokens, prompt and answer together (default: the model's, at most 8192)
    #[arg(short = 'c', long = "context", alias = "ctx-size", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Type of stored keys and values
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: Kv,
    /// Highest precision instead of highest speed. Activations, keys and values are f32 on the CPU,
    /// and f16 or better on a GPU
    #[arg(long)]
    pub precise: bool,
    /// Reproducible results: scores are equal bit for bit. They depend only on the sequence's own
    /// tokens, not on other sequences, the prompt's chunks, cached prefixes or drafts. Prompts and
    /// single sequences are slower. Incompatible features are refused
    #[arg(long)]
    pub reproducible: bool,
    /// One kernel launch per token on a GPU. auto uses it on GPUs where it was measured to be
    /// faster (H100, H200). If a model cannot use it, -v prints the reason
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub persistent: PersistentMode,
    /// Tokens of a prompt per step (default: 2048 on a GPU, 512 on the CPU)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
    /// LoRA adapter: a GGUF file, or a PEFT folder. May be given several times. SCALE multiplies
    /// the adapter's changes (default: 1)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = Lora::parser())]
    pub lora: Vec<Lora>,
    #[command(flatten)]
    pub room: MemoryLimitArgs,
    #[command(flatten)]
    pub placing: PlacementArgs,
}

/// Placement of a model's layers.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("on the CPU").args(["host_experts", "host_ffn"]).multiple(true)))]
pub struct PlacementArgs {
    /// Division of a model among devices. layers: each device has some layers. tensor: all devices
    /// compute each layer together. ranks: as tensor, with one GPU per process, numbered by Slurm,
    /// mpirun, Kubernetes or RANK and WORLD_SIZE
    #[arg(long, value_name = "HOW", default_value = "layers")]
    pub split: SplitBy,
    /// First N layers on the CPU, the others on the GPU (default: 0; if cpu is one of several
    /// devices: the layers that do not fit on the GPUs)
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub host_layers: Option<usize>,
    /// Experts of the first N mixture-of-experts layers on the CPU, the rest of these layers on the
    /// GPU (default: 0)
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub host_experts: Option<usize>,
    /// Feed-forward part of N layers on the CPU, the rest of these layers on the GPU. Meanwhile
    /// other layers that do not fit are copied to the GPU. 0 copies all layers that do not fit
    /// (default: chosen by rates measured at startup, if the model does not fit and there is one
    /// sequence)
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub host_ffn: Option<usize>,
    /// GPU memory for the most often chosen of the CPU's experts. The GPU computes these experts
    /// (default: 0)
    #[arg(long, value_name = "SIZE", requires = "host_experts")]
    pub hot_experts: Option<Size>,
    /// Where the CPU's experts and feed-forward parts run for prompts: copy (they are copied to the
    /// GPU), compute (on the CPU), or measured (the faster one, by rates measured at startup)
    #[arg(long, value_name = "HOW", default_value = "measured", requires = "on the CPU")]
    pub host_prompts: PromptsBy,
}

/// `--host-prompts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PromptsBy {
    Measured,
    Compute,
    Copy,
}

impl From<PromptsBy> for HostPrompts {
    fn from(by: PromptsBy) -> HostPrompts {
        match by {
            PromptsBy::Measured => HostPrompts::Measured,
            PromptsBy::Compute => HostPrompts::Compute,
            PromptsBy::Copy => HostPrompts::Copy,
        }
    }
}

/// `--split`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitBy {
    Layers,
    Tensor,
    Ranks,
}

impl From<SplitBy> for Split {
    fn from(by: SplitBy) -> Split {
        match by {
            SplitBy::Layers => Split::Layers,
            SplitBy::Tensor => Split::Tensor,
            SplitBy::Ranks => Split::Ranks,
        }
    }
}

/// Memory of a GPU that a model may use.
#[derive(Debug, Clone, Default, Args)]
pub struct MemoryLimitArgs {
    /// Total GPU memory for weights, keys, values and working memory. Layers that do not fit are
    /// copied to the GPU for each step (default: all free memory)
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Copy all layers to the GPU for each step, even if they fit
    #[arg(long)]
    pub stream: bool,
}

/// `--kv-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    #[value(name = "f16")]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> KvType {
        match kv {
            Kv::F16 => KvType::F16,
            Kv::Q8_0 => KvType::Q8_0,
        }
    }
}

/// `--persistent`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum PersistentMode {
    #[default]
    Auto,
    On,
    Off,
}

impl From<PersistentMode> for Persistence {
    fn from(whole: PersistentMode) -> Persistence {
        match whole {
            PersistentMode::Auto => Persistence::Auto,
            PersistentMode::On => Persistence::On,
            PersistentMode::Off => Persistence::Off,
        }
    }
}

/// Options of sampling.
#[derive(Debug, Clone, Args)]
pub struct Sampling {
    /// Temperature. 0 always chooses the most likely token
    #[arg(long, alias = "temperature", default_value_t = 0.8, value_parser = not_negative, value_name = "T", allow_negative_numbers = true)]
    pub temp: f32,
    /// Number of most likely tokens to choose from; 0 means all
    #[arg(long, default_value_t = 40, value_parser = whole, value_name = "K", allow_negative_numbers = true)]
    pub top_k: usize,
    /// Probability mass to choose from: the most likely tokens whose probabilities add up to P
    #[arg(long, default_value_t = 0.95, value_parser = unit, value_name = "P", allow_negative_numbers = true)]
    pub top_p: f32,
    /// Minimum probability of a token, relative to the most likely one
    #[arg(long, default_value_t = 0.05, value_parser = unit, value_name = "P", allow_negative_numbers = true)]
    pub min_p: f32,
    /// Penalty for recent tokens: divides their positive scores and multiplies their negative
    /// scores. 1 means none
    #[arg(long, default_value_t = 1.0, value_parser = above_zero, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Amount subtracted from the scores of recent tokens
    #[arg(long, default_value_t = 0.0, value_parser = finite, value_name = "X", allow_hyphen_values = true)]
    pub presence_penalty: f32,
    /// Amount subtracted from the scores of recent tokens, once per occurrence
    #[arg(long, default_value_t = 0.0, value_parser = finite, value_name = "X", allow_hyphen_values = true)]
    pub frequency_penalty: f32,
    #[command(flatten)]
    pub more: MoreSamplers,
    /// Random seed (default: a new one each time)
    #[arg(short, long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}
