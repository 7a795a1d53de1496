//! Command lines of commands that read, fetch and remove files.

use super::values::{Lora, Size, positive, whole};
use super::{Kv, PromptsBy};
use crate::model::ModelName;
use clap::{ArgGroup, Args, ValueEnum, ValueHint};
use kjit_hub::Reference;
use std::path::PathBuf;

/// `kjit pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// Model: hf:ORG/REPO, hf:ORG/REPO:QUANT or hf:ORG/REPO/FILE.gguf. @REVISION after REPO names a
    /// branch, tag or commit
    #[arg(value_name = "REF")]
    pub model: Reference,
    /// Do not fetch the encoder of the model's images (mmproj)
    #[arg(long)]
    pub no_mmproj: bool,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// Model, as `kjit list` prints it or as it was downloaded. hf:ORG/REPO alone means all models
    /// of the repository
    #[arg(value_name = "REF")]
    pub model: Reference,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit inspect`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("on the CPU").args(["host_experts", "host_ffn"]).multiple(true)))]
pub struct Inspect {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// List the model's operations, one per line
    #[arg(long, conflicts_with = "json")]
    pub graph: bool,
    /// Context size for the memory estimate (default: the context size of the model, at most 8192)
    #[arg(short = 'c', long = "context", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Type of stored keys and values for the memory estimate
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: Kv,
    /// GPU memory to plan for. Prints the number of layers that stay on the GPU, the number that
    /// are streamed, and the total
    #[arg(long, value_name = "SIZE", conflicts_with = "graph")]
    pub memory: Option<Size>,
    /// Plan with all layers streamed
    #[arg(long, conflicts_with = "graph")]
    pub stream: bool,
    /// Plan with experts of the first N mixture-of-experts layers on the CPU
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true, conflicts_with_all = ["graph", "stream"])]
    pub host_experts: Option<usize>,
    /// Plan with the feed-forward part of N layers on the CPU
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true, conflicts_with_all = ["graph", "stream", "host_experts"])]
    pub host_ffn: Option<usize>,
    /// Plan with this GPU memory for the most often chosen experts of these layers
    #[arg(long, value_name = "SIZE", requires = "host_experts")]
    pub hot_experts: Option<Size>,
    /// Plan for prompts: copy (the CPU's parts are copied to the GPU), compute (they run on the
    /// CPU, so the GPU needs no memory for copies), or measured (the faster one)
    #[arg(long, value_name = "HOW", default_value = "measured", requires = "on the CPU")]
    pub host_prompts: PromptsBy,
    /// Tokens of a prompt per step in the plan (default: as in `kjit run`)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
    /// GPU architecture of the plan, such as gfx1100 or sm_90 (default: that of this machine's GPU)
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<String>,
    /// Print one JSON document on stdout: sizes in bytes, counts as integers
    #[arg(long)]
    pub json: bool,
}

/// `kjit tokenize`.
#[derive(Debug, Args)]
pub struct Tokenize {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT). A
    /// file with only a vocabulary is enough
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Read one JSON string per line, print one array of ids per line
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Read special tokens as plain text, and add no BOS or EOS
    #[arg(long)]
    pub plain: bool,
}

/// `kjit detokenize`.
#[derive(Debug, Args)]
pub struct Detokenize {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT). A
    /// file with only a vocabulary is enough
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Read one array of ids per line, print one JSON string per line
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Print bytes in hex instead of JSON strings
    #[arg(long)]
    pub hex: bool,
}

/// `kjit template`.
#[derive(Debug, Args)]
pub struct Template {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT). A
    /// file with only a vocabulary is enough
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// Read one array of messages per line, print one JSON string per line
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// Chat template (Jinja) to use instead of the model's template
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
}

/// `kjit merge`.
#[derive(Debug, Args)]
pub struct Merge {
    /// Model: a GGUF file, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// LoRA adapter: a GGUF file, or a PEFT folder. May be given several times. SCALE multiplies
    /// the adapter's changes (default: 1)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = Lora::parser(), required = true)]
    pub lora: Vec<Lora>,
    /// GGUF file to write
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
    /// Type of the merged matrices. The types of other tensors do not change
    #[arg(long = "type", value_name = "TYPE", default_value = "F16", ignore_case = true)]
    pub to: MergeType,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub force: bool,
}

/// `--type` of `kjit merge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MergeType {
    #[value(name = "F16")]
    F16,
    #[value(name = "F32")]
    F32,
}

/// `kjit dequant`.
#[derive(Debug, Args)]
pub struct Dequant {
    /// Block format: Q4_K, F16, …
    #[arg(long = "type", value_name = "TYPE")]
    pub format: String,
    /// Read blocks in hex from stdin, any number per line, and print little-endian f32 in hex
    #[arg(long, required = true)]
    pub hex: bool,
}
