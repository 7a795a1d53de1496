//! Command lines of commands that run a model and print the result.

use super::values::{Lora, id, positive, whole};
use super::{Kv, MemoryLimitArgs, PlacementArgs, Sampling, Setup, Switch};
use crate::model::ModelName;
use clap::{Args, ValueEnum, ValueHint};
use kjit_model::graph::Pooling;
use std::path::PathBuf;

/// `kjit run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Prompt, as with --prompt
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "file"])]
    pub text: Option<String>,
    /// Prompt. - reads it from stdin. Otherwise piped stdin is put before the prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File that holds the prompt
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Maximum number of tokens to generate (default: until the model ends its answer or the
    /// context is full)
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
    /// Do not apply the chat template to the prompt
    #[arg(long)]
    pub raw: bool,
    /// Chat template (Jinja) to use instead of the model's template
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub template: Option<PathBuf>,
    /// Start generation only when all kernels are compiled. Without this flag it starts with the
    /// kernels for single tokens and uses the others when they are ready. --temp 0 and --seed imply
    /// this flag
    #[arg(long)]
    pub wait_compile: bool,
    /// Draft tokens from n-grams that repeat in the prompt and the answer, and verify them in one
    /// step. The answer is the same. Drafting stops if it is not faster
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "on|off", hide_possible_values = true)]
    pub lookup: Switch,
    /// Encoder of the model's images: its mmproj file (GGUF). Default: the one in the model's
    /// repository on the hub, if it has one
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
    /// Neither fetch nor use the encoder of images in the model's repository
    #[arg(long, conflicts_with_all = ["mmproj", "image"])]
    pub no_mmproj: bool,
    /// Image before the prompt: a PNG, JPEG or WebP file. Needs an encoder. May be given several
    /// times
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub image: Vec<PathBuf>,
    #[command(flatten)]
    pub grammar: Grammar,
    #[command(flatten)]
    pub setup: Setup,
    #[command(flatten)]
    pub sampling: Sampling,
    /// Trace file to write, in Chrome's trace format: loading, compiling, copies, kernels
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Stop text. It ends the answer and is not printed. May be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Print one JSON document on stdout after generation
    #[arg(long)]
    pub json: bool,
}

/// Constraints on the answer.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Grammar {
    /// Grammar that the answer follows, in llama.cpp's GBNF: its first rule is root. A reasoning
    /// model reasons first. Tokens are not drafted
    #[arg(long, value_name = "GBNF", allow_hyphen_values = true)]
    pub grammar: Option<String>,
    /// File with a grammar, as with --grammar
    #[arg(long, value_name = "FILE")]
    pub grammar_file: Option<PathBuf>,
    /// JSON schema that the answer follows: its text, which begins with {, or a file. The model
    /// does not see the schema
    #[arg(short = 'j', long, value_name = "JSON|FILE")]
    pub json_schema: Option<String>,
    /// File with a JSON schema, as with --json-schema
    #[arg(long, value_name = "FILE")]
    pub json_schema_file: Option<PathBuf>,
}

/// `kjit embed`.
#[derive(Debug, Args)]
pub struct Embed {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT).
    /// An encoder or a generative model
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Read one JSON string per line, print one array of numbers per line
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Normalise vectors to length 1
    #[arg(long, alias = "normalize")]
    pub normalise: bool,
    /// Pooling of a text's token vectors: their mean, the first vector, or the last one (default:
    /// as the model file states)
    #[arg(long, value_name = "HOW")]
    pub pooling: Option<Pool>,
    #[command(flatten)]
    pub setup: Setup,
}

/// `--pooling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pool {
    Mean,
    First,
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
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = id, required = true, allow_negative_numbers = true)]
    pub ids: Vec<u32>,
    /// Number of most likely tokens to print
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub top: usize,
    #[command(flatten)]
    pub setup: Setup,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit perplexity`.
#[derive(Debug, Args)]
pub struct Perplexity {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Text file
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens per window
    #[arg(short = 'c', long = "context", value_name = "N", default_value_t = 512, value_parser = positive, allow_negative_numbers = true)]
    pub context: usize,
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
    /// LoRA adapter: a GGUF file, or a PEFT folder. May be given several times. SCALE multiplies
    /// the adapter's changes (default: 1)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = Lora::parser())]
    pub lora: Vec<Lora>,
    #[command(flatten)]
    pub room: MemoryLimitArgs,
    #[command(flatten)]
    pub placing: PlacementArgs,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}
