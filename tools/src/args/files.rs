//! The command line of what reads files, fetches and removes them.

use super::values::{Size, positive, whole};
use super::{Kv, PromptsBy};
use crate::model::ModelName;
use clap::{ArgGroup, Args, ValueHint};
use kjit_hub::Reference;
use std::path::PathBuf;

/// `kjit pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// hf:ORG/REPO, hf:ORG/REPO:QUANT, hf:ORG/REPO/FILE.gguf; @REVISION behind REPO names a branch,
    /// tag or commit
    #[arg(value_name = "REF")]
    pub model: Reference,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// The model, as `kjit list` names it, or as it was fetched; hf:ORG/REPO alone means all models
    /// of the repository
    #[arg(value_name = "REF")]
    pub model: Reference,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit inspect`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("on the CPU").args(["host_experts", "host_ffn"]).multiple(true)))]
pub struct Inspect {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Print what the model computes, one operation a line
    #[arg(long, conflicts_with = "json")]
    pub graph: bool,
    /// Tokens of context for the memory estimate (default: the model's, at most 8192)
    #[arg(short = 'c', long = "context", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Storage of keys and values for the memory estimate
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: Kv,
    /// How it would lie in so much memory of a GPU: what stays there, what is streamed, what it
    /// takes in all
    #[arg(long, value_name = "SIZE", conflicts_with = "graph")]
    pub memory: Option<Size>,
    /// The same with all layers streamed
    #[arg(long, conflicts_with = "graph")]
    pub stream: bool,
    /// The same with the experts of the first N layers that have some on the CPU
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true, conflicts_with_all = ["graph", "stream"])]
    pub host_experts: Option<usize>,
    /// The same with the feed-forward part of N layers on the CPU
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true, conflicts_with_all = ["graph", "stream", "host_experts"])]
    pub host_ffn: Option<usize>,
    /// And with so much of the GPU for those of them that are chosen most
    #[arg(long, value_name = "SIZE", requires = "host_experts")]
    pub hot_experts: Option<Size>,
    /// And with who computes them for prompts: compute takes no memory for copies of them
    #[arg(long, value_name = "HOW", default_value = "measured", requires = "on the CPU")]
    pub host_prompts: PromptsBy,
    /// Tokens of a prompt that go through the model at once, for --memory and --stream (default: as
    /// `run`)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
    /// The GPU's architecture for --memory and --stream (default: that of the one that is here)
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<String>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit tokenize`.
#[derive(Debug, Args)]
pub struct Tokenize {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT; one with a vocabulary alone will do
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// A JSON string per line in, an array of ids per line out
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Neither BOS and EOS nor special tokens
    #[arg(long)]
    pub plain: bool,
}

/// `kjit detokenize`.
#[derive(Debug, Args)]
pub struct Detokenize {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT; one with a vocabulary alone will do
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// An array of ids per line in, a JSON string per line out
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Bytes in hex instead of JSON strings
    #[arg(long)]
    pub hex: bool,
}

/// `kjit template`.
#[derive(Debug, Args)]
pub struct Template {
    /// The model: a file, a folder, or hf:ORG/REPO:QUANT; one with a vocabulary alone will do
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// An array of messages per line in, a JSON string per line out
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// A chat template (Jinja) instead of the model's
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
}

/// `kjit dequant`.
#[derive(Debug, Args)]
pub struct Dequant {
    /// The format: Q4_K, F16, …
    #[arg(long = "type", value_name = "TYPE")]
    pub format: String,
    /// Blocks in hex on stdin, some per line; little-endian f32 in hex on stdout
    #[arg(long, required = true)]
    pub hex: bool,
}
