//! The command line.

mod cache;
mod serve;

pub use serve::Serve;

pub use cache::{Cache, CacheFilter};

use crate::model::ModelName;
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use kjit_hub::Reference;
use kjit_model::DeviceChoice;
use kjit_model::graph::Pooling;
use kjit_model::session::{KvType, Persistence};
use std::path::PathBuf;

/// Runs GGUF language models on any GPU, or none.
#[derive(Debug, Parser)]
#[command(name = "kjit", version, max_term_width = 110, arg_required_else_help = true)]
#[command(after_help = "Example:\n  kjit run model.gguf 'Why is the sky blue?'")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub shared: Shared,
}

/// Flags of every command. Under a heading of their own: among a command's flags they would stand in the
/// middle.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Shared {
    /// Where to compute: auto (the first NVIDIA GPU, else the first AMD one, else the CPU), cpu, cuda:N or
    /// rocm:N
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
    /// Threads for work on the CPU (default: all cores)
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub threads: Option<u16>,
    /// Where compiled kernels are kept (default: $KJIT_CACHE_DIR, else the user's cache folder)
    #[arg(long, global = true, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Keep compiled kernels in memory only
    #[arg(long, global = true, conflicts_with = "cache_dir")]
    pub no_cache: bool,
    /// The run-time compiler to use: a library (nvrtc, hiprtc) or a clang
    #[arg(long, global = true, value_name = "FILE")]
    pub compiler_path: Option<PathBuf>,
    /// More on stderr (-vv: still more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text; without a prompt on a terminal, chat
    #[command(after_help = "Examples:\n  kjit run model.gguf 'Why is the sky blue?'\n  kjit run model.gguf\n  \
                            kjit run hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
                            cat notes.txt | kjit run model.gguf -p 'Summarise this in three sentences.' --temp 0")]
    Run(Run),
    /// Fetch a model of the hub into Hugging Face's cache folder, or what changed of it; its path goes to
    /// stdout
    #[command(after_help = "Examples:\n  kjit pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
                            kjit pull hf:org/repo@v1.0:file.gguf")]
    Pull(Pull),
    /// The models of the hub that are here
    #[command(after_help = "Example:\n  kjit list")]
    List(Json),
    /// Remove a model of the hub from here
    #[command(after_help = "Example:\n  kjit rm hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")]
    Rm(Rm),
    /// What is in a model file
    #[command(after_help = "Example:\n  kjit inspect model.gguf")]
    Inspect(Inspect),
    /// What can compute here, and what was not found; with -v every place that was looked into
    #[command(after_help = "Examples:\n  kjit devices\n  kjit devices -v")]
    Devices(Json),
    /// Text to token ids: a JSON string a line in, an array a line out
    #[command(after_help = "Example:\n  echo '\"Hello\"' | kjit tokenize model.gguf --jsonl")]
    Tokenize(Tokenize),
    /// Token ids to text: an array a line in, a JSON string a line out
    #[command(after_help = "Example:\n  echo '[19556]' | kjit detokenize model.gguf --jsonl")]
    Detokenize(Detokenize),
    /// Messages to the prompt that the model's chat template makes of them
    #[command(
        after_help = "Example:\n  echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | kjit template model.gguf --jsonl"
    )]
    Template(Template),
    /// Texts to vectors: a JSON string a line in, an array of numbers a line out
    #[command(
        mut_arg("context", |a| a.help("Tokens that a text may have (default: the model's, at most 8192)")),
        after_help = "Example:\n  echo '\"Hello\"' | kjit embed model.gguf --jsonl --normalise"
    )]
    Embed(Embed),
    /// Scores of the next token after the ids given
    #[command(after_help = "Example:\n  kjit logits model.gguf --ids 504,2365 --top 5 --json")]
    Logits(Logits),
    /// How well a model predicts a text
    #[command(after_help = "Example:\n  kjit perplexity model.gguf -f text.txt")]
    Perplexity(Perplexity),
    /// Decode quantised blocks
    #[command(after_help = "Example:\n  kjit dequant --type Q8_0 --hex < blocks.hex")]
    Dequant(Dequant),
    /// Check libraries, devices and the cache; with --run every kernel against the oracle
    #[command(
        after_help = "Examples:\n  kjit doctor --run\n  kjit doctor --export bundle --arch gfx942\n  kjit doctor --bundle bundle"
    )]
    Doctor(Doctor),
    /// Compile kernels into the cache, with no GPU present
    #[command(
        after_help = "Examples:\n  kjit warm model.gguf --arch gfx1100\n  kjit warm model.gguf --arch sm_90,sm_86 --json\n  \
                            kjit warm model.gguf --tune"
    )]
    Warm(Warm),
    /// The cache of compiled kernels
    #[command(subcommand, after_help = "Example:\n  kjit cache stat")]
    Cache(Cache),
    /// Measure a model's speed
    #[command(
        mut_arg("context", |a| a.help("Tokens of context (default: as many as -d, -p and -n need)")),
        after_help = "Examples:\n  kjit bench model.gguf -p 512 -n 128\n  kjit bench model.gguf -n 128 -b 1,8,32\n  \
                            kjit bench --kernels --arch gfx1100 -o csv\n  \
                            kjit bench model.gguf --kernels --filter 'matvec|attend'\n  kjit bench model.gguf --kernels --tune"
    )]
    Bench(Bench),
    /// Answer over HTTP, in the words of OpenAI and Ollama, with a page to chat on
    #[command(after_help = "Examples:\n  kjit serve model.gguf\n  \
                            kjit serve model.gguf --host 0.0.0.0 --api-key-file keys.txt --max-sequences 16 -c 4096\n  \
                            kjit serve --worker-id w0 --model model.gguf --model-ref hf:org/name --hive-url http://hive:3000 --rocm-device 0")]
    Serve(Serve),
    /// Completions for a shell, on stdout: for packagers
    #[command(after_help = "Example:\n  kjit completions bash > /usr/share/bash-completion/completions/kjit")]
    Completions(Completions),
    /// The licences of what this program is made of
    #[command(after_help = "Example:\n  kjit notices")]
    Notices,
    /// The manual page of kjit, or of one of its commands, on stdout: for packagers
    #[command(after_help = "Examples:\n  kjit man > kjit.1\n  kjit man run > kjit-run.1")]
    Man(Man),
}

/// `kjit completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `kjit man`.
#[derive(Debug, Args)]
pub struct Man {
    /// The command whose page is wanted
    pub command: Option<String>,
}

/// `kjit pull`.
#[derive(Debug, Args)]
pub struct Pull {
    /// hf:ORG/REPO, hf:ORG/REPO:QUANT, hf:ORG/REPO/FILE.gguf; @REVISION behind REPO names a branch, tag or
    /// commit
    #[arg(value_name = "REF")]
    pub model: Reference,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// The model, as `kjit list` names it, or as it was fetched; hf:ORG/REPO alone means all models of the
    /// repository
    #[arg(value_name = "REF")]
    pub model: Reference,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `--json` alone.
#[derive(Debug, Args)]
pub struct Json {
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// How a model is set up.
#[derive(Debug, Clone, Args)]
pub struct Setup {
    /// Tokens of context, prompt and answer together (default: the model's, at most 8192)
    #[arg(short = 'c', long = "context", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Storage of keys and values
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv_type: Kv,
    /// Nearest to the truth instead of fastest: f32 activations and KV on the CPU, f16 or better on a GPU
    #[arg(long)]
    pub precise: bool,
    /// One launch for each token, of a kernel that is rendered for the model (on a GPU; auto: where that was
    /// measured to be faster, on no
    /// card yet; -v says why a model has none)
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub persistent: Whole,
    /// Tokens of a prompt that go through the model at once (default: 2048 on a GPU, 512 on the CPU)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub prefill_chunk: Option<usize>,
}

/// `kjit run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The model: a file, or hf:ORG/REPO:QUANT
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
    #[arg(short = 'n', long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub tokens: Option<usize>,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// Feed the prompt as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// A chat template (Jinja) instead of the model's
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub template: Option<PathBuf>,
    /// Wait until every kernel is compiled, instead of starting with those for single tokens and taking the
    /// others as they come (with --temp 0 or --seed that is always so)
    #[arg(long)]
    pub wait_compile: bool,
    /// Draft tokens from what the prompt and the answer repeat, and run them together: the same answer, sooner where a text copies
    /// itself; it stops by itself where it does not pay
    #[arg(long, value_enum, default_value_t = Switch::Off, value_name = "on|off", hide_possible_values = true)]
    pub lookup: Switch,
    #[command(flatten)]
    pub setup: Setup,
    #[command(flatten)]
    pub sampling: Sampling,
    /// Write when what happened (load, compile, copies, kernels) to this file, in Chrome's trace format
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// One JSON document on stdout, after generation
    #[arg(long)]
    pub json: bool,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token, the same each time
    #[arg(long, default_value_t = 0.8, value_parser = not_negative, value_name = "T", allow_negative_numbers = true)]
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
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

/// `kjit inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// The model: a file, or hf:ORG/REPO:QUANT
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
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `kjit tokenize`.
#[derive(Debug, Args)]
pub struct Tokenize {
    /// The model: a file, or hf:ORG/REPO:QUANT; one with a vocabulary alone will do
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
    /// The model: a file, or hf:ORG/REPO:QUANT; one with a vocabulary alone will do
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
    /// The model: a file, or hf:ORG/REPO:QUANT; one with a vocabulary alone will do
    #[arg(value_parser = ModelName::parser(), value_hint = ValueHint::FilePath)]
    pub model: ModelName,
    /// An array of messages per line in, a JSON string per line out
    #[arg(long, required = true)]
    pub jsonl: bool,
    /// A chat template (Jinja) instead of the model's
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
}

/// `kjit embed`.
#[derive(Debug, Args)]
pub struct Embed {
    /// The model: a file, or hf:ORG/REPO:QUANT; an encoder, or any other
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
    /// The model: a file, or hf:ORG/REPO:QUANT
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
    /// The model: a file, or hf:ORG/REPO:QUANT
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
    /// Nearest to the truth instead of fastest: f32 activations and KV on the CPU, f16 or better on a GPU
    #[arg(long)]
    pub precise: bool,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
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

/// `kjit doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Run every kernel on the device and hold it against the oracle
    #[arg(long)]
    pub run: bool,
    /// Write a proof bundle into a new folder: every kernel for --arch with inputs and what must come out,
    /// for a card or an emulator elsewhere
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
    /// Write a report that can be sent to this file: the verdicts, `kjit devices -v`, the system, the
    /// variables that matter
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
    /// Measure the variants of the model's kernels on the device first, keep the best in the cache, and warm
    /// for that device
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
    /// Also the kernels that decode up to N sequences side by side, which `run` has no use for: 1 to 64, as
    /// `bench -b`
    #[arg(long, value_name = "N", value_parser = sequences)]
    pub sequences: Option<usize>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
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
    /// Each kernel of the model (without one: one of each at common sizes) by itself, checked and timed on
    /// the device: time, rate, % of the limit measured in the same run, registers, spills, LDS, occupancy
    #[arg(long)]
    pub kernels: bool,
    /// For --kernels: compiled for these architectures, on no card; resources only, untimed
    #[arg(long, value_name = "ARCH", value_delimiter = ',', requires = "kernels", conflicts_with = "model")]
    pub arch: Vec<String>,
    /// For --kernels: only those whose name, sizes or program this regular expression matches
    #[arg(long, value_name = "RE", requires = "kernels")]
    pub filter: Option<regex_lite::Regex>,
    /// For --kernels: which compiler
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "kernels")]
    pub compiler: Compiler,
    /// For --kernels: measure each kernel's variants and keep the best in the cache, for every later run and
    /// warm
    #[arg(long, requires = "kernels", conflicts_with = "arch")]
    pub tune: bool,
    /// For --tune: variants of a kernel at most (default: all)
    #[arg(long, value_name = "N", value_parser = positive, requires = "tune", allow_negative_numbers = true)]
    pub tries: Option<usize>,
    /// For --tune: append what beat its default to this file, as lines of the shipped table
    /// (kernel_src/tuning/measured.tsv)
    #[arg(long, value_name = "FILE", requires = "tune")]
    pub rows: Option<PathBuf>,
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

/// `--kv-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    #[value(name = "f16")]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
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

impl From<Kv> for KvType {
    fn from(kv: Kv) -> KvType {
        match kv {
            Kv::F16 => KvType::F16,
            Kv::Q8_0 => KvType::Q8_0,
        }
    }
}

fn number(s: &str, good: impl Fn(f32) -> bool, want: &str) -> Result<f32, String> {
    s.parse().ok().filter(|v: &f32| v.is_finite() && good(*v)).ok_or_else(|| format!("give {want}"))
}

fn not_negative(s: &str) -> Result<f32, String> {
    number(s, |v| v >= 0.0, "a number of at least 0")
}

fn above_zero(s: &str) -> Result<f32, String> {
    number(s, |v| v > 0.0, "a number above 0")
}

fn finite(s: &str) -> Result<f32, String> {
    number(s, |_| true, "a number")
}

fn unit(s: &str) -> Result<f32, String> {
    number(s, |v| (0.0..=1.0).contains(&v), "a number from 0 to 1")
}

fn whole(s: &str) -> Result<usize, String> {
    s.parse().map_err(|_| "give a whole number of at least 0".to_string())
}

fn id(s: &str) -> Result<u32, String> {
    s.trim().parse().map_err(|_| "give token ids, whole numbers with commas between them".to_string())
}

fn seed(s: &str) -> Result<u64, String> {
    s.parse().map_err(|_| "give a whole number of at least 0".to_string())
}

fn sequences(s: &str) -> Result<usize, String> {
    s.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| "give whole numbers from 1 to 64".to_string())
}

fn positive(s: &str) -> Result<usize, String> {
    s.parse().ok().filter(|&n| n > 0).ok_or_else(|| "give a whole number above 0".to_string())
}
