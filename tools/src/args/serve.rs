//! The command line of `kjit serve`.

use super::values::Size;
use super::{Setup, Switch, positive};
use crate::model::ModelName;
use clap::{Args, ValueHint};
use kjit_server::{Endpoint, Hive, KvEvents, TraceExport, origin};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Default of --idle-unload with several models.
const DEFAULT_IDLE_UNLOAD: u64 = 300;

/// `kjit serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Models, each a GGUF file, a folder of safetensors, or a name on the hub (hf:ORG/REPO:QUANT).
    /// With several models, the first is loaded at startup, the others on their first request
    #[arg(
        value_name = "MODEL",
        required_unless_present = "model_file",
        value_parser = ModelName::parser(),
        value_hint = ValueHint::FilePath
    )]
    pub models: Vec<ModelName>,
    /// Model, as MODEL. For workers of a fleet
    #[arg(
        long = "model",
        value_name = "MODEL",
        conflicts_with = "models",
        value_parser = ModelName::parser(),
        value_hint = ValueHint::FilePath
    )]
    pub model_file: Option<ModelName>,
    /// Address to listen on. The default accepts connections from this machine only
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: String,
    /// Port to listen on. 0 chooses a free port
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub port: u16,
    /// File of API keys, one per line. Requests without one of these keys are refused
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// TLS certificate chain in PEM. Enables HTTPS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Allow access without a key from other machines. Everyone who can reach the address can use
    /// the server
    #[arg(long)]
    pub allow_anyone: bool,
    /// Web origin whose pages may send requests, such as `https://app.example`. May be given
    /// several times
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub cors: Vec<String>,
    /// Model name for clients. May be given several times. With several models, give one name per
    /// model, in the order of the models (default: the file's name)
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Maximum number of concurrent sequences per model, each with its own context (default: 4)
    #[arg(long, value_name = "N", value_parser = sequences, allow_negative_numbers = true)]
    pub max_sequences: Option<usize>,
    /// Folder for keys and values of conversations, so that they continue after a restart. Each API
    /// key finds only its own
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub slot_save_path: Option<PathBuf>,
    /// Size limit of the folder of --slot-save-path; the least recently used pages are removed
    #[arg(long, value_name = "SIZE", default_value = "8GiB", requires = "slot_save_path")]
    slot_save_size: Size,
    /// LoRA adapters on the device at once. /v1/load_lora_adapter then loads adapters while the
    /// server runs, and --lora at its start; more of them wait in host memory
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_loras: Option<usize>,
    /// The largest rank of an adapter of --max-loras
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive, requires = "max_loras")]
    pub max_lora_rank: usize,
    /// The most LoRA adapters of --max-loras in host memory
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive, requires = "max_loras")]
    pub max_cpu_loras: usize,
    /// Memory for keys and values per model. Allows as many sequences as fit, at most 64 unless
    /// --max-sequences says more; on the CPU the sequences share it by their tokens
    #[arg(long, value_name = "SIZE")]
    kv_memory: Option<Size>,
    /// Paged keys and values, on one GPU. Sequences with the same prefix share its pages, and a
    /// sequence takes only the pages that it fills. The pages take --kv-memory, or the memory of
    /// one context per sequence (default: on if the model supports it)
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub kv_pages: Option<Switch>,
    /// Share cached prefixes among all API keys. A client can then infer from token counts and
    /// times what other clients sent
    #[arg(long)]
    pub share_prefixes: bool,
    /// Read control tokens (`<|im_end|>`) in messages of users and tools as plain text, so that a
    /// message cannot end itself or begin a new message
    #[arg(long)]
    pub literal_user_text: bool,
    /// Refuse requests with unknown fields (default: ignore the fields and name them in a header)
    #[arg(long)]
    pub strict_fields: bool,
    /// Maximum number of waiting requests per model; more are refused with 429
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub max_queue: usize,
    /// Tokens per step: one for each answer, the rest for chunks of prompts (default: depends on
    /// the device)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub token_budget: Option<usize>,
    /// Target for the milliseconds between two tokens of an answer while prompts are computed on a
    /// GPU. Limits the prompt tokens per step, but not below 512. Not with --token-budget
    #[arg(long, default_value_t = 50, value_name = "MS", value_parser = positive, allow_negative_numbers = true)]
    pub latency_target: usize,
    /// Draft tokens from n-grams that repeat in the prompt and the answer, and verify them in one
    /// step. Drafting stops if it is not faster (default: on with the CPU, off with GPUs)
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub lookup: Option<Switch>,
    /// Maximum number of connections. One address may have half of them. At the limit, a new
    /// connection closes the one that has been idle longest
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub max_connections: usize,
    /// Maximum size of a request's body
    #[arg(long, default_value = "8MiB", value_name = "SIZE")]
    max_body: Size,
    /// Seconds until an idle connection is closed. Also the time limit for a request's headers,
    /// which is at most 30 s
    #[arg(long, default_value_t = 75, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: u64,
    /// Seconds without a request until a model is unloaded; the next request loads it again. 0
    /// means never, even if an Ollama client's keep_alive requests it (default: 300 with several
    /// models, never with one)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub idle_unload: Option<u64>,
    /// Seconds for running requests to finish when the server gets a signal to stop
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub stop_timeout: u64,
    /// Seconds between SIGTERM and the stop. In this time /health answers 503, so that routers
    /// remove the server, but requests are still answered
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub drain_delay: u64,
    /// Maximum number of reasoning tokens of an answer, unless a request sets it; 0 means no
    /// reasoning (default: no limit)
    #[arg(long, value_name = "N")]
    pub reasoning_budget: Option<usize>,
    /// Publish which blocks of keys and values are cached, as vLLM does (ZeroMQ PUB), for routers:
    /// `tcp://ADDRESS:PORT`. Everyone who can reach the address reads the token ids of all prompts.
    /// For one model only
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_events: Option<Endpoint>,
    /// Repeat missed batches of --kv-events on this address (ZeroMQ ROUTER)
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    pub kv_events_replay: Option<Endpoint>,
    /// Topic of --kv-events
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kv_events")]
    pub kv_events_topic: String,
    /// Send a span for each answer to this OpenTelemetry collector (OTLP over HTTP, JSON). A URL
    /// without a path gets /v1/traces. OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_HEADERS apply
    #[arg(long, value_name = "URL", value_parser = TraceExport::new)]
    pub otlp_traces_endpoint: Option<TraceExport>,
    /// Chat template (Jinja) that replaces the model's. For one model only
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Encoder of the model's images: its mmproj file (GGUF). For one model only. Default: the one
    /// in the model's repository on the hub, if it has one
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
    /// Neither fetch nor use encoders of images in repositories of models
    #[arg(long, conflicts_with = "mmproj")]
    pub no_mmproj: bool,
    /// Fetch images that requests name by http or https URLs, from public addresses only (default:
    /// data URLs only)
    #[arg(long)]
    pub allow_fetch: bool,
    /// Name of this worker in a fleet. A worker has one model
    #[arg(long, value_name = "ID", requires = "model_ref", value_parser = worker_id)]
    pub worker_id: Option<String>,
    /// Model name in the fleet
    #[arg(long, value_name = "REF", requires = "worker_id")]
    pub model_ref: Option<String>,
    /// URL to which the worker announces itself, on every change and every 10 s
    #[arg(long, value_name = "URL", requires = "worker_id")]
    pub hive_url: Option<Hive>,
    /// Number of an AMD GPU (the N of rocm:N)
    #[arg(long, value_name = "N", conflicts_with = "cuda_device")]
    pub rocm_device: Option<u16>,
    /// Number of an NVIDIA GPU (the N of cuda:N)
    #[arg(long, value_name = "N")]
    pub cuda_device: Option<u16>,
    #[command(flatten)]
    pub setup: Setup,
}

impl Serve {
    /// Folder for keys and values, and its size limit in bytes.
    pub fn saved_pages(&self) -> Option<(PathBuf, u64)> {
        self.slot_save_path.clone().map(|path| (path, self.slot_save_size.0))
    }

    /// The publisher of KV events.
    pub fn kv_events(&self) -> Option<Arc<KvEvents>> {
        let (replay, topic) = (self.kv_events_replay, self.kv_events_topic.clone());
        self.kv_events.map(|endpoint| Arc::new(KvEvents::new(endpoint, replay, topic)))
    }

    /// Time without a request until a model is unloaded. `None`: never.
    pub fn idle_unload(&self) -> Option<Duration> {
        let usual = if self.models.len() > 1 { DEFAULT_IDLE_UNLOAD } else { 0 };
        Some(self.idle_unload.unwrap_or(usual))
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs)
    }

    /// Value of --kv-memory in bytes.
    pub fn kv_memory(&self) -> Option<u64> {
        self.kv_memory.map(|size| size.0)
    }

    /// Value of --max-body in bytes.
    pub fn max_body(&self) -> usize {
        usize::try_from(self.max_body.0).unwrap_or(usize::MAX)
    }
}

fn sequences(s: &str) -> Result<usize, String> {
    s.parse()
        .ok()
        .filter(|n| (1..=256).contains(n))
        .ok_or_else(|| "give a whole number from 1 to 256".to_string())
}

/// Checks a worker's name, which becomes part of a URL.
fn worker_id(s: &str) -> Result<String, String> {
    let good = (1..=64).contains(&s.len())
        && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if good {
        Ok(s.to_owned())
    } else {
        Err("give 1 to 64 letters, digits, '-', '_' or '.'".to_owned())
    }
}
