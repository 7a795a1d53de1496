//! How a model is set up, and how tokens are chosen.

use super::values::{Size, above_zero, finite, not_negative, positive, seed, unit, whole};
use clap::{ArgGroup, Args, ValueEnum};
use kjit_model::session::{HostPrompts, KvType, Persistence, Split};

/// How a model is set up.
#[derive(Debug, Clone, Args)]
pub struct Setup {
    /// Tokens of context, prompt and answer together (default: the model's, at most 8192)
    #[arg(short = 'c', long = "context", alias = "ctx-size", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Storage of keys and values
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: Kv,
    /// Nearest to the truth instead of fastest: f32 activations and KV on the CPU, f16 or better on
    /// a GPU
    #[arg(long)]
    pub precise: bool,
    /// A text's scores are the same bits whatever comes with it: other requests, pieces of a
    /// prompt, kept beginnings, drafts; single tokens and prompts are slower, and what cannot be so
    /// yet is refused
    #[arg(long)]
    pub reproducible: bool,
    /// One launch for each token, of a kernel that is rendered for the model (on a GPU; auto: where
    /// that was measured to be faster, on cards of an H100's kind; -v says why a model has none)
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub persistent: Whole,
    /// Tokens of a prompt that go through the model at once (default: 2048 on a GPU, 512 on the
    /// CPU)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
    #[command(flatten)]
    pub room: Room,
    #[command(flatten)]
    pub placing: Placing,
}

/// Where a model's layers are.
#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("on the CPU").args(["host_experts", "host_ffn"]).multiple(true)))]
pub struct Placing {
    /// How the model is divided among several devices (--device cuda:0,cuda:1): each has some
    /// layers, or all compute each layer together; ranks: the same with a GPU of each of several
    /// processes, which Slurm, mpirun, Kubernetes or RANK and WORLD_SIZE number
    #[arg(long, value_name = "HOW", default_value = "layers")]
    pub split: SplitBy,
    /// The model's first N layers on the CPU, the others on the GPU (default: none; with cpu among
    /// several devices, as many as do not fit)
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub host_layers: Option<usize>,
    /// The experts of the first N layers that have some on the CPU, all else of them on the GPU
    /// (default: none; as many as there are, at most)
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub host_experts: Option<usize>,
    /// The feed-forward part of N layers on the CPU, all else of them on the GPU; what does not fit
    /// then is copied while it computes (default: as measured rates say, where the model does not
    /// fit, for one sequence; 0: copies alone)
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub host_ffn: Option<usize>,
    /// Memory of the GPU for those of these experts that are chosen most: it computes them, the CPU
    /// the others (default: none)
    #[arg(long, value_name = "SIZE", requires = "host_experts")]
    pub hot_experts: Option<Size>,
    /// Who computes those experts, or those feed-forward parts, for prompts: the GPU, to which they
    /// are copied, the CPU, or whoever is sooner by rates that are measured at the start
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

/// How much of a GPU a model may take.
#[derive(Debug, Clone, Default, Args)]
pub struct Room {
    /// Memory of the GPU that weights, keys and values and working memory may take (default: what
    /// is free); layers that do not fit are copied to it for each step
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Size>,
    /// Copy all layers for each step, whether they would fit or not
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
pub enum Whole {
    #[default]
    Auto,
    On,
    Off,
}

impl From<Whole> for Persistence {
    fn from(whole: Whole) -> Persistence {
        match whole {
            Whole::Auto => Persistence::Auto,
            Whole::On => Persistence::On,
            Whole::Off => Persistence::Off,
        }
    }
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token, the same each time
    #[arg(long, alias = "temperature", default_value_t = 0.8, value_parser = not_negative, value_name = "T", allow_negative_numbers = true)]
    pub temp: f32,
    /// Choose among the K likeliest (0: all)
    #[arg(long, default_value_t = 40, value_parser = whole, value_name = "K", allow_negative_numbers = true)]
    pub top_k: usize,
    /// Choose among the likeliest that together have this probability
    #[arg(long, default_value_t = 0.95, value_parser = unit, value_name = "P", allow_negative_numbers = true)]
    pub top_p: f32,
    /// Leave out what is less likely than this times the likeliest
    #[arg(long, default_value_t = 0.05, value_parser = unit, value_name = "P", allow_negative_numbers = true)]
    pub min_p: f32,
    /// Divide (or multiply) the scores of tokens seen lately by this
    #[arg(long, default_value_t = 1.0, value_parser = above_zero, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Take this off the scores of tokens seen lately
    #[arg(long, default_value_t = 0.0, value_parser = finite, value_name = "X", allow_hyphen_values = true)]
    pub presence_penalty: f32,
    /// Take this off the scores of tokens seen lately, for each time
    #[arg(long, default_value_t = 0.0, value_parser = finite, value_name = "X", allow_hyphen_values = true)]
    pub frequency_penalty: f32,
    /// Seed of the choice (default: another each time)
    #[arg(short, long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}
