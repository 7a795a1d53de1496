//! The command line of what compiles, checks and times kernels.

use super::Setup;
use super::values::{positive, sequences, whole};
use crate::model::ModelName;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// `kjit doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Run every kernel on the device and hold it against the oracle
    #[arg(long)]
    pub run: bool,
    /// Write a proof bundle into a new folder: every kernel for --arch with inputs and what must
    /// come out, for a card or an emulator elsewhere
    #[arg(long, value_name = "DIR", requires = "arch", conflicts_with_all = ["run", "bundle"])]
    pub export: Option<PathBuf>,
    /// The architecture of --export: gfx942, gfx1100, sm_90, …
    #[arg(long, value_name = "ARCH", requires = "export")]
    pub arch: Option<String>,
    /// Only kernel cases whose name contains this, for --run and --export
    #[arg(long, value_name = "TEXT", conflicts_with = "bundle")]
    pub filter: Option<String>,
    /// Run a proof bundle on the device
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    pub bundle: Option<PathBuf>,
    /// Started by --run, to run what may take its process down
    #[arg(long, hide = true, requires = "run")]
    pub run_for_parent: bool,
    /// Write a report that can be sent to this file: the verdicts, `kjit devices -v`, the system,
    /// the variables that matter
    #[arg(long, value_name = "FILE", conflicts_with_all = ["export", "bundle"])]
    pub report: Option<PathBuf>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit warm`.
#[derive(Debug, Args)]
pub struct Warm {
    /// The model: exactly its kernels are compiled; without one, those of some common models
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: Option<ModelName>,
    /// Architectures to compile for: sm_90, gfx1100, … (default: those of the cards that are here)
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    pub arch: Vec<String>,
    /// Measure the variants of the model's kernels on the device first, keep the best in the cache,
    /// and warm for that device
    #[arg(long, requires = "model", conflicts_with = "arch")]
    pub tune: bool,
    /// For --tune: variants of a kernel at most (default: all)
    #[arg(long, value_name = "N", value_parser = positive, requires = "tune", allow_negative_numbers = true)]
    pub tries: Option<usize>,
    /// Started by --tune, to measure
    #[arg(long, hide = true)]
    pub measure_for_parent: bool,
    /// Compiles at once (default: cores, as far as memory allows)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub jobs: Option<usize>,
    /// Which compiler
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub compiler: Compiler,
    /// Write the code objects and a manifest.json into this folder too
    #[arg(long, value_name = "DIR")]
    pub emit: Option<PathBuf>,
    #[command(flatten)]
    pub setup: Setup,
    /// Also the kernels that decode up to N sequences side by side, which `run` has no use for: 1
    /// to 64, as `bench -b`
    #[arg(long, value_name = "N", value_parser = sequences)]
    pub sequences: Option<usize>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `--compiler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compiler {
    /// Whichever knows the architecture.
    Auto,
    Hiprtc,
    Nvrtc,
    Clang,
}

impl Compiler {
    /// The engine's settings with this compiler.
    pub fn choose(self, config: kjit_engine::Config) -> kjit_engine::Config {
        match self {
            Compiler::Auto => config,
            Compiler::Hiprtc => config.compiler_kind("hiprtc"),
            Compiler::Nvrtc => config.compiler_kind("nvrtc"),
            Compiler::Clang => config.compiler_kind("clang"),
        }
    }
}

/// `kjit bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// The model: a file, or hf:ORG/REPO:QUANT
    #[arg(required_unless_present = "kernels", value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: Option<ModelName>,
    /// Each kernel of the model (without one: one of each at common sizes) by itself, checked and
    /// timed on the device: time, rate, % of the limit measured in the same run, registers, spills,
    /// LDS, occupancy
    #[arg(long)]
    pub kernels: bool,
    /// For --kernels: compiled for these architectures, on no card; resources only, untimed
    #[arg(
        long,
        value_name = "ARCH",
        value_delimiter = ',',
        requires = "kernels",
        conflicts_with = "model"
    )]
    pub arch: Vec<String>,
    /// For --kernels: only those whose name, sizes or program this regular expression matches
    #[arg(long, value_name = "RE", requires = "kernels")]
    pub filter: Option<regex_lite::Regex>,
    /// For --kernels: which compiler
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "kernels")]
    pub compiler: Compiler,
    /// For --kernels: measure each kernel's variants and keep the best in the cache, for every
    /// later run and warm
    #[arg(long, requires = "kernels", conflicts_with = "arch")]
    pub tune: bool,
    /// For --tune: variants of a kernel at most (default: all)
    #[arg(long, value_name = "N", value_parser = positive, requires = "tune", allow_negative_numbers = true)]
    pub tries: Option<usize>,
    /// For --tune: append what beat its default to this file, as lines of the shipped table
    /// (kernel_src/tuning/measured.tsv)
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub rows: Option<PathBuf>,
    /// For --kernels: a token of the model as one launch (--persistent on), where each block was
    /// when, as a page for a browser
    #[arg(long, value_name = "FILE", requires_all = ["kernels", "model"], conflicts_with_all = ["arch", "filter", "tune"])]
    pub timeline: Option<PathBuf>,
    /// Started by --tune, to measure
    #[arg(long, hide = true)]
    pub measure_for_parent: bool,
    /// Tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = whole, allow_negative_numbers = true)]
    pub prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = whole, allow_negative_numbers = true)]
    pub tokens: usize,
    /// Sequences decoded side by side, each number in turn; but for 1 alone, without a prompt. With
    /// --kernels: also the programs for up to so many
    #[arg(short = 'b', long = "sequences", value_name = "N[,N…]", value_delimiter = ',', default_value = "1", value_parser = sequences)]
    pub sequences: Vec<usize>,
    /// Tokens that are in the context before
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = whole, allow_negative_numbers = true)]
    pub depth: usize,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive, allow_negative_numbers = true)]
    pub repeat: usize,
    /// Output
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    pub output: BenchOutput,
    #[command(flatten)]
    pub setup: Setup,
}

impl Bench {
    /// The largest number of sequences side by side.
    pub fn most_sequences(&self) -> usize {
        self.sequences.iter().copied().max().unwrap_or(1)
    }
}

/// Output of `kjit bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    Md,
    Json,
    Csv,
}
