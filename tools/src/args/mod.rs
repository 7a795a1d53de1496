//! The command line.

mod cache;
mod files;
mod generate;
mod kernels;
mod quantize;
mod samplers;
mod serve;
mod setup;
mod shared;
mod values;

pub use cache::{Cache, CacheFilter};
pub use files::{Dequant, Detokenize, Inspect, Merge, MergeType, Pull, Rm, Template, Tokenize};
pub use generate::{Embed, Grammar, Logits, Perplexity, Run};
pub use kernels::{Bench, BenchOutput, Doctor, Probe, Warm};
pub use quantize::{Imatrix, Quantize};
pub use serve::Serve;
pub use setup::{Kv, MemoryLimitArgs, PersistentMode, PlacementArgs, PromptsBy, Sampling, Setup};
pub use values::{Completions, Json, Man, Switch, positive};

use clap::{Parser, Subcommand};
pub use shared::Shared;

/// Runs GGUF language models on NVIDIA and AMD GPUs, or on the CPU.
#[derive(Debug, Parser)]
#[command(name = "kjit", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  kjit run model.gguf 'Why is the sky blue?'")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub shared: Shared,
}

/// The commands.
#[derive(Debug, Subcommand)]
// A process has one value of this type, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum Command {
    /// Generate text. Without a prompt, on a terminal, chat
    #[command(after_help = "Examples:\n  kjit run model.gguf 'Why is the sky blue?'\n  kjit run \
            model.gguf\n  \
                            kjit run hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
                            cat notes.txt | kjit run model.gguf -p 'Summarise this in three \
                            sentences.' --temp 0")]
    Run(Run),
    /// Download a model from the hub, or update it. Prints its path
    #[command(
        after_help = "Examples:\n  kjit pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n  \
                            kjit pull hf:org/repo@v1.0:file.gguf"
    )]
    Pull(Pull),
    /// List the downloaded models
    #[command(after_help = "Example:\n  kjit list")]
    List(Json),
    /// Remove a downloaded model
    #[command(after_help = "Example:\n  kjit rm hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")]
    Rm(Rm),
    /// Show a model's metadata, tensors and memory needs
    #[command(after_help = "Example:\n  kjit inspect model.gguf")]
    Inspect(Inspect),
    /// List devices, drivers and compilers. With -v, also every place that was searched
    #[command(after_help = "Examples:\n  kjit devices\n  kjit devices -v")]
    Devices(Json),
    /// Convert text to token ids: read one JSON string per line, print one array of ids per line
    #[command(after_help = "Example:\n  echo '\"Hello\"' | kjit tokenize model.gguf --jsonl")]
    Tokenize(Tokenize),
    /// Convert token ids to text: read one array of ids per line, print one JSON string per line
    #[command(after_help = "Example:\n  echo '[19556]' | kjit detokenize model.gguf --jsonl")]
    Detokenize(Detokenize),
    /// Render messages to a prompt with the model's chat template
    #[command(
        after_help = "Example:\n  echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | kjit template \
            model.gguf --jsonl"
    )]
    Template(Template),
    /// Compute embeddings: read one JSON string per line, print one array of numbers per line
    #[command(
        mut_arg("context", |a| a.help("Maximum tokens per text (default: \
            the model's context, at most 8192)")),
        after_help = "Example:\n  echo '\"Hello\"' | kjit embed model.gguf --jsonl --normalise"
    )]
    Embed(Embed),
    /// Print the scores of the next token after the given token ids
    #[command(after_help = "Example:\n  kjit logits model.gguf --ids 504,2365 --top 5 --json")]
    Logits(Logits),
    /// Measure a model's perplexity on a text
    #[command(after_help = "Example:\n  kjit perplexity model.gguf -f text.txt")]
    Perplexity(Perplexity),
    /// Write a model with LoRA adapters merged into its matrices
    #[command(after_help = "Example:\n  kjit merge model.gguf --lora adapter.gguf -o merged.gguf")]
    Merge(Merge),
    /// Quantise a model: a GGUF file or a folder of safetensors to a GGUF file
    #[command(
        after_help = "Examples:\n  kjit quantize model-f16.gguf model-q4.gguf --type Q4_K_M\n  \
                            kjit quantize Qwen3-0.6B/ qwen3.gguf --type F16\n  \
                            kjit quantize model-f16.gguf small.gguf --type Q4_K_S --imatrix \
                            imatrix.gguf --keep 'attn_v=Q8_0'"
    )]
    Quantize(Quantize),
    /// Compute an importance matrix for `kjit quantize` from a text, on the CPU
    #[command(after_help = "Example:\n  kjit imatrix model-f16.gguf -f text.txt -o imatrix.gguf")]
    Imatrix(Imatrix),
    /// Decode quantised blocks to f32
    #[command(after_help = "Example:\n  kjit dequant --type Q8_0 --hex < blocks.hex")]
    Dequant(Dequant),
    /// Check libraries, devices and the cache. With --run, also every kernel on the device against
    /// the CPU, or with MODEL whole models
    #[command(
        after_help = "Examples:\n  kjit doctor --run\n  kjit doctor --run model.gguf --junit \
            verdicts.xml\n  kjit doctor --export bundle --arch gfx942\n  kjit doctor --bundle \
            bundle"
    )]
    Doctor(Doctor),
    /// Measure a GPU without a model and print a report: launch costs, rates, speeds, and a
    /// comparison of every kernel with the CPU. Takes about five minutes
    #[command(after_help = "Examples:\n  kjit probe > card.txt\n  kjit probe --quick --json")]
    Probe(Probe),
    /// Compile kernels into the cache. Needs no GPU
    #[command(
        after_help = "Examples:\n  kjit warm model.gguf --arch gfx1100\n  kjit warm model.gguf \
            --arch sm_90,sm_86 --json\n  \
                            kjit warm model.gguf --tune"
    )]
    Warm(Warm),
    /// Manage the cache of compiled kernels
    #[command(subcommand, after_help = "Example:\n  kjit cache stat")]
    Cache(Cache),
    /// Measure a model's speed, or with --kernels the speed of each kernel
    #[command(
        mut_arg("context", |a| a.help("Context size in tokens (default: \
            as many as -d, -p and -n need)")),
        after_help = "Examples:\n  kjit bench model.gguf -p 512 -n 128\n  kjit bench model.gguf \
            -n 128 -b 1,8,32\n  \
                            kjit bench --kernels --arch gfx1100 -o csv\n  \
                            kjit bench model.gguf --kernels --filter 'matvec|attend'\n  kjit \
                            bench model.gguf --kernels --tune"
    )]
    Bench(Bench),
    /// Serve models over HTTP: OpenAI's and Ollama's APIs, and a chat page
    #[command(after_help = "Examples:\n  kjit serve model.gguf\n  \
                            kjit serve small.gguf large.gguf --alias small --alias large\n  \
                            kjit serve model.gguf --host 0.0.0.0 --api-key-file keys.txt \
                            --max-sequences 16 -c 4096\n  \
                            kjit serve --worker-id w0 --model model.gguf --model-ref hf:org/name \
                            --hive-url http://hive:3000 --rocm-device 0")]
    Serve(Serve),
    /// List the running servers of this user: models, addresses, requests
    #[command(after_help = "Example:\n  kjit ps")]
    Ps(Json),
    /// Print a shell's completion script. For packagers
    #[command(after_help = "Example:\n  kjit completions bash > \
            /usr/share/bash-completion/completions/kjit")]
    Completions(Completions),
    /// Print the licences of the libraries in this program
    #[command(after_help = "Example:\n  kjit notices")]
    Notices,
    /// Print the manual page of kjit or of one command. For packagers
    #[command(after_help = "Examples:\n  kjit man > kjit.1\n  kjit man run > kjit-run.1")]
    Man(Man),
}
