//! Command lines of commands that compile, check and time kernels.

use super::Setup;
use super::values::{positive, sequences, whole};
use crate::model::ModelName;
use clap::{Args, ValueEnum, ValueHint};
use kjit_model::DeviceChoice;
use std::path::PathBuf;

/// `kjit doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Models to test with --run on every device here, or on the chosen one: kernels, tokens
    /// and perplexity against the CPU's, memory, speeds. Exit code 1 if anything is wrong
    #[arg(value_name = "MODEL", requires = "run", value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub models: Vec<ModelName>,
    /// Run every kernel on the device and compare it with the CPU's result. With MODEL: the kernels
    /// of the models, and the models
    #[arg(long)]
    pub run: bool,
    /// JUnit XML file for the verdicts on the models
    #[arg(long, value_name = "FILE", requires = "models")]
    pub junit: Option<PathBuf>,
    /// Context of the models in tokens (default: the model's, at most 512)
    #[arg(short = 'c', long = "context", value_name = "N", requires = "models", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Tokens of a prompt per step (default: 2048 on a GPU, 512 on the CPU)
    #[arg(long, value_name = "N", requires = "models", value_parser = positive, allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
    /// New folder for a proof bundle: every kernel for --arch with inputs and expected outputs, for
    /// a card or an emulator on another machine
    #[arg(long, value_name = "DIR", requires = "arch", conflicts_with_all = ["run", "bundle"])]
    pub export: Option<PathBuf>,
    /// Architecture of --export: gfx942, gfx1100, sm_90, …
    #[arg(long, value_name = "ARCH", requires = "export")]
    pub arch: Option<String>,
    /// For --run and --export: only kernel cases whose name contains TEXT
    #[arg(long, value_name = "TEXT", conflicts_with = "bundle")]
    pub filter: Option<String>,
    /// Proof bundle to run on the device
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    pub bundle: Option<PathBuf>,
    /// Run as the child process of --run. A crash then does not end the parent
    #[arg(long, hide = true, requires = "run")]
    pub run_for_parent: bool,
    /// Child process of a test of models: this model
    #[arg(long, hide = true, value_name = "FILE", requires = "models")]
    pub model_for_parent: Option<PathBuf>,
    /// Child process of a test of models: this device
    #[arg(long, hide = true, value_name = "DEVICE", requires = "model_for_parent")]
    pub device_for_parent: Option<DeviceChoice>,
    /// Child process of a test of models: computes as precisely as possible
    #[arg(long, hide = true, requires = "model_for_parent")]
    pub precise_for_parent: bool,
    /// File for a report to send: verdicts, `kjit devices -v`, the system, relevant environment
    /// variables
    #[arg(long, value_name = "FILE", conflicts_with_all = ["export", "bundle"])]
    pub report: Option<PathBuf>,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit probe`.
#[derive(Debug, Args)]
pub struct Probe {
    /// Take half a minute: fewer repetitions, smaller models, no kernel cases
    #[arg(long)]
    pub quick: bool,
    /// Only kernel cases whose name contains TEXT. They are also run with --quick
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Run kernel cases as a child process. A crash then does not end the parent
    #[arg(long, hide = true)]
    pub run_for_parent: bool,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit warm`.
#[derive(Debug, Args)]
pub struct Warm {
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT).
    /// Compiles exactly this model's kernels (default: the kernels of some common models)
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: Option<ModelName>,
    /// Target architectures, separated by commas: sm_90, gfx1100, … (default: those of this
    /// machine's GPUs)
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    pub arch: Vec<String>,
    /// First measure the variants of the model's kernels on the device and record the fastest in
    /// the cache. Then compile for that device
    #[arg(long, requires = "model", conflicts_with = "arch")]
    pub tune: bool,
    /// Maximum variants per kernel for --tune (default: all)
    #[arg(long, value_name = "N", value_parser = positive, requires = "tune", allow_negative_numbers = true)]
    pub tries: Option<usize>,
    /// Run as the child process of --tune, which measures one kernel
    #[arg(long, hide = true)]
    pub measure_for_parent: bool,
    /// Number of concurrent compiles (default: the number of cores, or fewer if memory is short)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub jobs: Option<usize>,
    /// Compiler. auto uses one that supports the architecture
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub compiler: Compiler,
    /// Folder for a copy of the code objects, with a manifest.json
    #[arg(long, value_name = "DIR")]
    pub emit: Option<PathBuf>,
    #[command(flatten)]
    pub setup: Setup,
    /// Maximum number of concurrent sequences, 1 to 256. Also compiles the kernels that decode up
    /// to N sequences, as in `kjit bench -b` (default: 1)
    #[arg(long, value_name = "N", value_parser = sequences)]
    pub sequences: Option<usize>,
    /// Print one JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `--compiler`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compiler {
    Auto,
    Hiprtc,
    Nvrtc,
    Clang,
}

impl Compiler {
    /// The engine's configuration with this compiler.
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
    /// Model: a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT)
    #[arg(required_unless_present = "kernels", value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: Option<ModelName>,
    /// Check and time each kernel of the model alone on the device. Without a model: one kernel of
    /// each kind at common sizes. Prints time, rate, % of the limit measured in this run,
    /// registers, spills, LDS and occupancy
    #[arg(long)]
    pub kernels: bool,
    /// Architectures for --kernels, separated by commas. Kernels are compiled without a GPU: their
    /// resources are printed, but no times
    #[arg(
        long,
        value_name = "ARCH",
        value_delimiter = ',',
        requires = "kernels",
        conflicts_with = "model"
    )]
    pub arch: Vec<String>,
    /// Regular expression for --kernels. Only kernels whose name, sizes or program match are
    /// measured
    #[arg(long, value_name = "RE", requires = "kernels")]
    pub filter: Option<regex_lite::Regex>,
    /// Compiler for --kernels. auto uses one that supports the architecture
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "kernels")]
    pub compiler: Compiler,
    /// Measure the variants of each kernel of --kernels and record the fastest in the cache. Later
    /// `kjit run` and `kjit warm` use it
    #[arg(long, requires = "kernels", conflicts_with = "arch")]
    pub tune: bool,
    /// Maximum variants per kernel for --tune (default: all)
    #[arg(long, value_name = "N", value_parser = positive, requires = "tune", allow_negative_numbers = true)]
    pub tries: Option<usize>,
    /// File to which --tune appends each variant that is faster than the default, as lines of the
    /// shipped table (kernel_src/tuning/measured.tsv)
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub rows: Option<PathBuf>,
    /// HTML page for --kernels. Shows when each block worked on each step of a token that is one
    /// launch (--persistent on)
    #[arg(long, value_name = "FILE", requires_all = ["kernels", "model"], conflicts_with_all = ["arch", "filter", "tune"])]
    pub timeline: Option<PathBuf>,
    /// Run as the child process of --tune, which measures one kernel
    #[arg(long, hide = true)]
    pub measure_for_parent: bool,
    /// Tokens of the prompt
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = whole, allow_negative_numbers = true)]
    pub prompt: usize,
    /// Tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = whole, allow_negative_numbers = true)]
    pub tokens: usize,
    /// Numbers of concurrent sequences, separated by commas. Each number is measured separately.
    /// Above 1, no prompt is measured. With --kernels, also measures the kernels for up to N
    /// sequences
    #[arg(short = 'b', long = "sequences", value_name = "N[,N…]", value_delimiter = ',', default_value = "1", value_parser = sequences)]
    pub sequences: Vec<usize>,
    /// Tokens already in the context
    #[arg(short, long, value_name = "N", default_value_t = 0, value_parser = whole, allow_negative_numbers = true)]
    pub depth: usize,
    /// Number of repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive, allow_negative_numbers = true)]
    pub repeat: usize,
    /// Output format
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    pub output: BenchOutput,
    #[command(flatten)]
    pub setup: Setup,
}

impl Bench {
    /// The largest number of concurrent sequences.
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
