//! The command line of `kjit serve`.

use super::values::Size;
use super::{Setup, Switch, positive};
use crate::model::ModelName;
use clap::{Args, ValueHint};
use kjit_server::{Hive, origin};
use std::path::PathBuf;
use std::time::Duration;

/// Seconds that one of several models stays loaded when nobody asks for it.
const IDLE: u64 = 300;

/// `kjit serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The models, each a file, a folder or hf:ORG/REPO:QUANT; of several the first is loaded at
    /// the start, each other one when a request asks for it
    #[arg(
        value_name = "MODEL",
        required_unless_present = "model_file",
        value_parser = ModelName::parser(),
        value_hint = ValueHint::FilePath
    )]
    pub models: Vec<ModelName>,
    /// The model, as workers of a fleet are told it
    #[arg(
        long = "model",
        value_name = "MODEL",
        conflicts_with = "models",
        value_parser = ModelName::parser(),
        value_hint = ValueHint::FilePath
    )]
    pub model_file: Option<ModelName>,
    /// Where to listen: this machine alone unless said otherwise
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: String,
    /// The port (0: any that is free)
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub port: u16,
    /// A file with API keys, one a line: nobody is let in without one
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// A certificate in PEM, with those that vouch for it behind it: connections are encrypted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Let everybody in who can reach the address, without a key
    #[arg(long)]
    pub allow_anyone: bool,
    /// Let pages of this origin in (`https://app.example`); may be given several times
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    pub cors: Vec<String>,
    /// What clients call the model (default: the file's name); may be given several times. With
    /// several models: one for each, in their order
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// Requests that a model answers at once, each with a context of its own (default: 4)
    #[arg(long, value_name = "N", value_parser = sequences, allow_negative_numbers = true)]
    pub max_sequences: Option<usize>,
    /// Memory for keys and values of each model: as many sequences as fit, 64 at most. On the CPU
    /// they share it by their tokens
    #[arg(long, value_name = "SIZE")]
    kv_memory: Option<Size>,
    /// On one GPU: keys and values in pages that all sequences share, those that begin alike the
    /// same ones; a sequence takes as many as its tokens need. The memory for all is --kv-memory,
    /// else a context for each sequence (default: on where the model can)
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub kv_pages: Option<Switch>,
    /// All API keys go on from the same kept beginnings of texts: who asks can then tell, by counts
    /// and times, what others asked
    #[arg(long)]
    pub share_prefixes: bool,
    /// Read control tokens (`<|im_end|>`) in messages of users and tools as plain text, so that no
    /// message can end its turn or open another one
    #[arg(long)]
    pub literal_user_text: bool,
    /// Refuse requests with unknown fields (default: ignore the fields and name them in a header)
    #[arg(long)]
    pub strict_fields: bool,
    /// Requests that wait for a model; more are sent away with 429
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub max_queue: usize,
    /// Tokens of a step: one of each answer, and prompts in pieces of what is left (default: as
    /// suits the device)
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub token_budget: Option<usize>,
    /// Draft tokens from what a prompt and its answer repeat, and run them together; it stops by
    /// itself where that does not pay (default: on with the CPU, off with GPUs)
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub lookup: Option<Switch>,
    /// Connections at once, half of them from one address; more close the one that waits longest
    /// for a request
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub max_connections: usize,
    /// Size of a request's body
    #[arg(long, default_value = "8MiB", value_name = "SIZE")]
    max_body: Size,
    /// Seconds that an idle connection is kept, and at most for a request's headers, which have 30
    #[arg(long, default_value_t = 75, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub idle_timeout: u64,
    /// Seconds after which a model that nobody asked for is unloaded, and loaded again when
    /// somebody does (0: never, whatever keep_alive of Ollama's clients says; default: 300 with
    /// several models, never with one)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    pub idle_unload: Option<u64>,
    /// Seconds for what runs when the server is told to stop
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub stop_timeout: u64,
    /// A chat template (Jinja) instead of the model's; for one model
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Be a worker of a fleet, called so; it has one model
    #[arg(long, value_name = "ID", requires = "model_ref", value_parser = worker_id)]
    pub worker_id: Option<String>,
    /// What the fleet calls the model
    #[arg(long, value_name = "REF", requires = "worker_id")]
    pub model_ref: Option<String>,
    /// Where the worker announces itself, when something changes and every 10 s
    #[arg(long, value_name = "URL", requires = "worker_id")]
    pub hive_url: Option<Hive>,
    /// The AMD GPU of that number, as --device rocm:N
    #[arg(long, value_name = "N", conflicts_with = "cuda_device")]
    pub rocm_device: Option<u16>,
    /// The NVIDIA GPU of that number, as --device cuda:N
    #[arg(long, value_name = "N")]
    pub cuda_device: Option<u16>,
    #[command(flatten)]
    pub setup: Setup,
}

impl Serve {
    /// How long a model stays loaded that nobody asks for; none: for ever.
    pub fn idle_unload(&self) -> Option<Duration> {
        let usual = if self.models.len() > 1 { IDLE } else { 0 };
        Some(self.idle_unload.unwrap_or(usual))
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs)
    }

    /// Bytes for keys and values.
    pub fn kv_memory(&self) -> Option<u64> {
        self.kv_memory.map(|size| size.0)
    }

    /// Bytes of a body.
    pub fn max_body(&self) -> usize {
        usize::try_from(self.max_body.0).unwrap_or(usize::MAX)
    }
}

fn sequences(s: &str) -> Result<usize, String> {
    s.parse()
        .ok()
        .filter(|n| (1..=64).contains(n))
        .ok_or_else(|| "give a whole number from 1 to 64".to_string())
}

/// It is part of an address.
fn worker_id(s: &str) -> Result<String, String> {
    let good = (1..=64).contains(&s.len())
        && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if good {
        Ok(s.to_owned())
    } else {
        Err("give 1 to 64 letters, digits, '-', '_' or '.'".to_owned())
    }
}
