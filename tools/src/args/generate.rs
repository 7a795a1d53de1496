//! The command line of what runs a model and prints what came of it.

use super::values::{id, positive, whole};
use super::{Kv, Placing, Room, Sampling, Setup, Switch};
use crate::model::ModelName;
use clap::{Args, ValueEnum, ValueHint};
use kjit_model::graph::Pooling;
use std::path::PathBuf;

/// `kjit run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// The prompt, as -p has it
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "file"])]
    pub text: Option<String>,
    /// The prompt; `-` reads it from stdin. What is piped in beside a prompt is put before it
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A file with the prompt
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// At most this many tokens (default: until the model ends, or the context is full)
    #[arg(short = 'n', long, aliases = ["n-predict", "predict"], value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub tokens: Option<usize>,
    /// System message of the chat
    #[arg(
        long,
        alias = "system-prompt",
        value_name = "TEXT",
        conflicts_with = "raw",
        allow_hyphen_values = true
    )]
    pub system: Option<String>,
    /// Feed the prompt as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// A chat template (Jinja) instead of the model's
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub template: Option<PathBuf>,
    /// Wait until every kernel is compiled, instead of starting with those for single tokens and
    /// taking the others as they come (with --temp 0 or --seed that is always so)
    #[arg(long)]
    pub wait_compile: bool,
    /// Draft tokens from what the prompt and the answer repeat, and run them together: the same
    /// answer, sooner where a text copies itself; it stops by itself where it does not pay
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "on|off", hide_possible_values = true)]
    pub lookup: Switch,
    #[command(flatten)]
    pub setup: Setup,
    #[command(flatten)]
    pub sampling: Sampling,
    /// Write when what happened (load, compile, copies, kernels) to this file, in Chrome's trace
    /// format
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// One JSON document on stdout, after generation
    #[arg(long)]
    pub json: bool,
}

/// `kjit embed`.
#[derive(Debug, Args)]
pub struct Embed {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT; an encoder, or any other
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// A JSON string per line in, an array of numbers per line out
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Vectors of length 1
    #[arg(long, alias = "normalize")]
    pub normalise: bool,
    /// How the rows of a text's tokens become one vector (default: as the model asks)
    #[arg(long, value_name = "HOW")]
    pub pooling: Option<Pool>,
    #[command(flatten)]
    pub setup: Setup,
}

/// `--pooling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pool {
    /// Their mean.
    Mean,
    /// The first token's.
    First,
    /// The last token's.
    Last,
}

impl From<Pool> for Pooling {
    fn from(pool: Pool) -> Pooling {
        match pool {
            Pool::Mean => Pooling::Mean,
            Pool::First => Pooling::First,
            Pool::Last => Pooling::Last,
        }
    }
}

/// `kjit logits`.
#[derive(Debug, Args)]
pub struct Logits {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = id, required = true, allow_negative_numbers = true)]
    pub ids: Vec<u32>,
    /// How many of the best to print
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub top: usize,
    #[command(flatten)]
    pub setup: Setup,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit perplexity`.
#[derive(Debug, Args)]
pub struct Perplexity {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// The text
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens of a window
    #[arg(short = 'c', long = "context", value_name = "N", default_value_t = 512, value_parser = positive, allow_negative_numbers = true)]
    pub context: usize,
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
    #[command(flatten)]
    pub room: Room,
    #[command(flatten)]
    pub placing: Placing,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}
