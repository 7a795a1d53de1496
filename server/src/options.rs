//! Options of a server.

use crate::adapters::AdapterStore;
use crate::hive::Hive;
use crate::keys::{Keys, Origins};
use crate::kv_events::KvEvents;
use crate::tls::Tls;
use crate::traces::TraceExport;
use kjit_engine::Config;
use kjit_model::session::{AdapterFile, LoadedAdapter, ScaledAdapter};
use kjit_model::{NonExhaustive, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A model to serve.
#[derive(Debug, Clone)]
pub struct Served {
    /// Path of the file.
    pub path: PathBuf,
    /// Names for clients. The first one is used in answers.
    pub names: Vec<String>,
    /// Options for opening the model. `sequences` is the number of concurrent answers.
    pub open: OpenOptions,
    /// The adapters of `open`, in the same order. Clients name the model with one of them
    /// `MODEL:ADAPTER`.
    pub adapters: Vec<ServedAdapter>,
    /// Adapters that are loaded and unloaded while the server runs, if `open` has places for them.
    pub store: Option<Arc<AdapterStore>>,
    /// Memory for keys and values that all sequences share, and the maximum number of sequences.
    /// Used on the CPU, where sequences take memory as they grow.
    pub shared_memory: Option<(u64, usize)>,
    /// The encoder of the model's images: an `mmproj` file.
    pub mmproj: Option<PathBuf>,
    /// Whether the model is served for text if it cannot be used with this encoder.
    pub mmproj_is_optional: bool,
    /// Whether keys and values must be paged. Opening fails if they cannot be.
    pub must_page: bool,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Served {
    /// A model with default options.
    pub fn new(path: impl Into<PathBuf>, names: Vec<String>) -> Served {
        Served {
            path: path.into(),
            names,
            open: OpenOptions::default(),
            adapters: vec![],
            store: None,
            shared_memory: None,
            mmproj: None,
            mmproj_is_optional: false,
            must_page: false,
            _more: NonExhaustive::default(),
        }
    }

    /// Gives the model `slots` places for LoRA adapters of at most this rank, which are loaded
    /// while the server runs. At most `most` of them are in host memory. `files` are loaded now.
    ///
    /// # Errors
    /// One line that describes the fault of a file.
    pub fn with_adapter_store(
        mut self,
        (slots, rank, most): (usize, usize, usize),
        files: &[AdapterFile],
    ) -> Result<Served, String> {
        self.open.adapter_slots = Some((slots, rank));
        let store = AdapterStore::new(most);
        for file in files {
            let adapter = LoadedAdapter::open(&self.path, &file.path, &self.open);
            let adapter = adapter.map_err(|error| error.to_string())?;
            let one = ScaledAdapter { name: adapter_name(file), adapter, scale: file.scale };
            store.add(one, false).map_err(|refusal| refusal.message().to_owned())?;
        }
        self.store = Some(Arc::new(store));
        Ok(self)
    }

    /// Adds LoRA adapters. Requests to the model alone do not use them, whatever their scale.
    #[must_use]
    pub fn with_adapters(mut self, files: &[AdapterFile]) -> Served {
        for file in files {
            let name = adapter_name(file);
            self.open.adapters.push(AdapterFile {
                path: file.path.clone(),
                name: Some(name.clone()),
                scale: 0.0,
            });
            self.adapters.push(ServedAdapter { name, scale: file.scale });
        }
        self
    }

    /// Name of the model in answers.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Index of the adapter that this name of the model with an adapter means, or its id in
    /// [`Served::store`]. Adapters in the store are also known by their own names, as in vLLM.
    pub fn adapter(&self, name: &str) -> Option<usize> {
        if let Some(store) = &self.store {
            let of_model = name.rsplit_once(':').filter(|(model, _)| self.is(model));
            return store.find(of_model.map_or(name, |(_, adapter)| adapter));
        }
        let (model, adapter) = name.rsplit_once(':')?;
        self.adapters.iter().position(|one| one.name == adapter).filter(|_| self.is(model))
    }

    /// Whether the model has this name. Ollama's clients append `:latest`.
    pub fn is(&self, name: &str) -> bool {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        self.names.iter().any(|known| known == name || known == bare)
    }
}

/// The name of an adapter for clients.
fn adapter_name(file: &AdapterFile) -> String {
    let stem = if file.path.is_dir() { file.path.file_name() } else { file.path.file_stem() };
    let usual = || stem.unwrap_or_default().to_string_lossy().into_owned();
    file.name.clone().unwrap_or_else(usual)
}

/// A LoRA adapter of a served model.
#[derive(Debug, Clone, PartialEq)]
pub struct ServedAdapter {
    /// The name for clients.
    pub name: String,
    /// The scale in requests that name it.
    pub scale: f32,
}

/// Options of a server.
pub struct Options {
    /// The models. The first model is loaded at startup, the others on their first request. A
    /// request without a model name uses the first.
    pub models: Vec<Served>,
    /// Time without a request until a model is unloaded. `None`: only when another model needs its
    /// memory.
    pub idle_unload: Option<Duration>,
    /// Whether a request may change that time (Ollama's `keep_alive`).
    pub keep_alive: bool,
    /// Engine options for GPUs.
    pub engine: Config,
    /// Chat template that replaces the templates in model files.
    pub template: Option<PathBuf>,
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0: any free one.
    pub port: u16,
    /// Certificate. Enables HTTPS.
    pub tls: Option<Tls>,
    /// Accepted API keys.
    pub keys: Keys,
    /// Whether cached prefixes are shared by all keys. If false, each key has separate prefixes.
    pub share_prefixes: bool,
    /// Control tokens in messages of users and tools are treated as text.
    pub literal_user_text: bool,
    /// Whether images may be fetched from public addresses.
    pub allow_fetch: bool,
    /// Whether unknown fields refuse a request. If false, they are ignored and listed in a header.
    pub strict_fields: bool,
    /// Accepted origins of web pages.
    pub origins: Origins,
    /// Whether anyone on other machines may use the server without a key.
    pub allow_anyone: bool,
    /// Maximum number of waiting requests.
    pub max_queue: usize,
    /// Maximum tokens of a step. `None`: chosen for the device.
    pub token_budget: Option<usize>,
    /// Without a `token_budget` on a GPU: the time between two tokens of an answer that pieces of
    /// prompts may cause.
    pub latency_target: Duration,
    /// Whether tokens may be drafted from repeated n-grams. `None`: on the CPU only.
    pub lookup: Option<bool>,
    /// Limits of connections and bodies.
    pub limits: Limits,
    /// Settings of a fleet worker, if the server is one.
    pub worker: Option<Worker>,
    /// Folders for the socket by which [`crate::running`] finds this server. The first usable one
    /// is taken. Empty: no socket.
    pub sockets: Vec<PathBuf>,
    /// Folder for keys and values of ended conversations, and its size limit in bytes. `None`: they
    /// are in memory only.
    pub saved_pages: Option<(PathBuf, u64)>,
    /// Publishes the changes of cached blocks. For one model.
    pub kv_events: Option<Arc<KvEvents>>,
    /// Where spans of answers are sent (OpenTelemetry).
    pub traces: Option<TraceExport>,
    /// Maximum tokens of the reasoning, if a request does not set it. `None`: no limit.
    pub reasoning_budget: Option<usize>,
    /// Prints a log line of the server.
    pub say: fn(&str),
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

/// Limits of connections and bodies.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of connections, half of them from one address. One more connection closes the
    /// connection that has been idle longest.
    pub connections: usize,
    /// Maximum bytes of a body.
    pub body: usize,
    /// Maximum bytes of all bodies together, not counting the first 64 KiB of each.
    pub bodies: usize,
    /// Time limit of the request headers, from their first byte.
    pub headers: Duration,
    /// Time until an idle connection is closed.
    pub idle: Duration,
    /// Time limit of a body.
    pub body_time: Duration,
    /// Time limit of a TLS handshake.
    pub greeting: Duration,
    /// Time limit for a client to read bytes that are ready.
    pub write: Duration,
    /// Time for running requests to finish when the server stops.
    pub stop: Duration,
    /// Time between SIGTERM and the stop. In this time the server is not ready, so that routers
    /// notice, but it still answers.
    pub drain: Duration,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 2048,
            body: 8 << 20,
            bodies: 128 << 20,
            headers: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            body_time: Duration::from_secs(30),
            greeting: Duration::from_secs(10),
            write: Duration::from_secs(30),
            stop: Duration::from_secs(30),
            drain: Duration::ZERO,
            _more: NonExhaustive::default(),
        }
    }
}

/// A worker of a fleet.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Name of the worker in the fleet.
    pub id: String,
    /// Name of the model in the fleet.
    pub model_ref: String,
    /// The hive to which the worker announces itself.
    pub hive: Option<Hive>,
}

impl Options {
    /// A server of these models on 127.0.0.1, any free port, without keys, that prints nothing.
    pub fn new(models: Vec<Served>) -> Options {
        Options {
            models,
            idle_unload: None,
            keep_alive: true,
            engine: Config::new(),
            template: None,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            tls: None,
            keys: Keys::default(),
            share_prefixes: false,
            literal_user_text: false,
            allow_fetch: false,
            strict_fields: false,
            origins: Origins { named: vec![], loopback: true },
            allow_anyone: false,
            max_queue: 256,
            token_budget: None,
            latency_target: Duration::from_millis(50),
            lookup: None,
            limits: Limits::default(),
            worker: None,
            sockets: vec![],
            saved_pages: None,
            kv_events: None,
            traces: None,
            reasoning_budget: None,
            say: |_| (),
            _more: NonExhaustive::default(),
        }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// Anyone could use the server and no option allows that, or two models have the same name.
    pub fn check(&self) -> Result<(), String> {
        for (i, model) in self.models.iter().enumerate() {
            let before = self.models.iter().take(i);
            if let Some(name) =
                model.names.iter().find(|name| before.clone().any(|other| other.is(name)))
            {
                return Err(format!(
                    "two models have the name '{name}': give each a name with --alias"
                ));
            }
        }
        for model in &self.models {
            for (i, adapter) in model.adapters.iter().enumerate() {
                if model.adapters.iter().take(i).any(|other| other.name == adapter.name) {
                    return Err(format!(
                        "two adapters of '{}' have the name '{}': rename one of the files",
                        model.name(),
                        adapter.name
                    ));
                }
            }
        }
        if self.host.is_loopback() || !self.keys.is_empty() || self.allow_anyone {
            return Ok(());
        }
        Err(format!(
            "without a key, everyone who can reach {} could use the server: \
             give --api-key-file FILE, or --allow-anyone to allow this",
            self.host
        ))
    }
}
