//! The command line.

mod cache;
mod files;
mod generate;
mod kernels;
mod serve;
mod setup;
mod values;

pub use cache::{Cache, CacheFilter};
pub use files::{Dequant, Detokenize, Inspect, Pull, Rm, Template, Tokenize};
pub use generate::{Embed, Logits, Perplexity, Run};
pub use kernels::{Bench, BenchOutput, Doctor, Warm};
pub use serve::Serve;
pub use setup::{Kv, Placing, PromptsBy, Room, Sampling, Setup, Whole};
pub use values::{Completions, Json, Man, Size, Switch, positive};

use clap::{Args, Parser, Subcommand};
use kjit_model::DeviceChoice;
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

/// Flags of every command. Under a heading of their own: among a command's flags they would stand
/// in the middle.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Options of every command")]
pub struct Shared {
    /// Where to compute: auto (the first NVIDIA GPU, else the first AMD one, else the CPU), cpu,
    /// cuda:N or rocm:N; several, cuda:0,cuda:1 say, share a model's layers
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    pub device: DeviceChoice,
    /// Threads for work on the CPU (default: all cores)
    #[arg(short, long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
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
    /// Give up a host that sends less than this in a second, over a minute, when a model is fetched
    /// (0: wait)
    #[arg(long, global = true, value_name = "SIZE", default_value = "1kB")]
    pub min_rate: Size,
    /// More on stderr (-vv: still more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
// There is one for a process.
#[allow(clippy::large_enum_variant)]
pub enum Command {
    /// Generate text; without a prompt on a terminal, chat
    #[command(after_help = "Examples:\n  kjit run model.gguf 'Why is the sky blue?'\n  kjit run \
            model.gguf\n  \
                            kjit run hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
                            cat notes.txt | kjit run model.gguf -p 'Summarise this in three \
                            sentences.' --temp 0")]
    Run(Run),
    /// Fetch a model of the hub into Hugging Face's cache folder, or what changed of it; its path
    /// goes to stdout
    #[command(
        after_help = "Examples:\n  kjit pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
                            kjit pull hf:org/repo@v1.0:file.gguf"
    )]
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
        after_help = "Example:\n  echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | kjit template \
            model.gguf --jsonl"
    )]
    Template(Template),
    /// Texts to vectors: a JSON string a line in, an array of numbers a line out
    #[command(
        mut_arg("context", |a| a.help("Tokens that a text may have (default: the model's, at \
            most 8192)")),
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
    #[command(after_help = "Examples:\n  kjit doctor --run\n  kjit doctor --export bundle --arch \
            gfx942\n  kjit doctor --bundle bundle")]
    Doctor(Doctor),
    /// Compile kernels into the cache, with no GPU present
    #[command(
        after_help = "Examples:\n  kjit warm model.gguf --arch gfx1100\n  kjit warm model.gguf \
            --arch sm_90,sm_86 --json\n  \
                            kjit warm model.gguf --tune"
    )]
    Warm(Warm),
    /// The cache of compiled kernels
    #[command(subcommand, after_help = "Example:\n  kjit cache stat")]
    Cache(Cache),
    /// Measure a model's speed
    #[command(
        mut_arg("context", |a| a.help("Tokens of context (default: as many as -d, -p and \
            -n need)")),
        after_help = "Examples:\n  kjit bench model.gguf -p 512 -n 128\n  kjit bench model.gguf \
            -n 128 -b 1,8,32\n  \
                            kjit bench --kernels --arch gfx1100 -o csv\n  \
                            kjit bench model.gguf --kernels --filter 'matvec|attend'\n  kjit \
                            bench model.gguf --kernels --tune"
    )]
    Bench(Bench),
    /// Answer over HTTP, in the words of OpenAI and Ollama, with a page to chat on
    #[command(after_help = "Examples:\n  kjit serve model.gguf\n  \
                            kjit serve small.gguf large.gguf --alias small --alias large\n  \
                            kjit serve model.gguf --host 0.0.0.0 --api-key-file keys.txt \
                            --max-sequences 16 -c 4096\n  \
                            kjit serve --worker-id w0 --model model.gguf --model-ref hf:org/name \
                            --hive-url http://hive:3000 --rocm-device 0")]
    Serve(Serve),
    /// Completions for a shell, on stdout: for packagers
    #[command(after_help = "Example:\n  kjit completions bash > \
            /usr/share/bash-completion/completions/kjit")]
    Completions(Completions),
    /// The licences of what this program is made of
    #[command(after_help = "Example:\n  kjit notices")]
    Notices,
    /// The manual page of kjit, or of one of its commands, on stdout: for packagers
    #[command(after_help = "Examples:\n  kjit man > kjit.1\n  kjit man run > kjit-run.1")]
    Man(Man),
}
