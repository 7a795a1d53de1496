//! How a server is set up.

use crate::hive::Hive;
use crate::keys::{Keys, Origins};
use crate::tls::Tls;
use kjit_engine::Config;
use kjit_model::OpenOptions;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A model that is served.
#[derive(Debug, Clone)]
pub struct Served {
    /// Its file.
    pub path: PathBuf,
    /// What it is called by clients; the first is the one that answers name.
    pub names: Vec<String>,
    /// How it is opened: `sequences` is how many are answered at once.
    pub open: OpenOptions,
    /// Memory for keys and values that its sequences share, and how many of them there may be: on
    /// the CPU, where each takes memory as its tokens come.
    pub shared_memory: Option<(u64, usize)>,
    /// Keys and values in pages were asked for: what opens it without is refused.
    pub must_page: bool,
}

impl Served {
    /// What answers call it.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Whether clients may mean it by this name; Ollama's put `:latest` behind it.
    pub fn is(&self, name: &str) -> bool {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        self.names.iter().any(|known| known == name || known == bare)
    }
}

/// How a server is set up.
pub struct Options {
    /// The models: the first is opened at once, each other one when it is asked for. A request that
    /// names none means the first.
    pub models: Vec<Served>,
    /// A model that nobody asked for so long is closed; none: only where another needs its room.
    pub idle_unload: Option<Duration>,
    /// A request may say otherwise (Ollama's `keep_alive`).
    pub keep_alive: bool,
    /// The engine of a GPU.
    pub engine: Config,
    /// A chat template instead of the files'.
    pub template: Option<PathBuf>,
    /// Where to listen.
    pub host: IpAddr,
    /// 0: any that is free.
    pub port: u16,
    /// Connections are encrypted by this certificate.
    pub tls: Option<Tls>,
    /// Who is let in.
    pub keys: Keys,
    /// Kept beginnings of texts are shared by all keys; else a key goes on from its own alone.
    pub share_prefixes: bool,
    /// Control tokens that a user's or a tool's message spells are text.
    pub literal_user_text: bool,
    /// Fields that are not known refuse a request; else they have no effect, and are named.
    pub strict_fields: bool,
    /// Pages that are let in.
    pub origins: Origins,
    /// Listening elsewhere than on loopback without a key was asked for.
    pub allow_anyone: bool,
    /// Requests that wait.
    pub max_queue: usize,
    /// Tokens of a step; none: as many as suit the device.
    pub token_budget: Option<usize>,
    /// Whether tokens may be drafted from what a prompt and its answer repeat; none: on the CPU.
    pub lookup: Option<bool>,
    /// What connections and bodies may be like.
    pub limits: Limits,
    /// It is a worker of a fleet.
    pub worker: Option<Worker>,
    /// Lines about what it does, one call each.
    pub say: fn(&str),
}

/// What connections and bodies may be like.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once, half of them from one address. Where there are more, who waits longest
    /// for a request gives way.
    pub connections: usize,
    /// Bytes of a body.
    pub body: usize,
    /// Bytes of all bodies together, but for the first 64 KiB of each.
    pub bodies: usize,
    /// For the headers of a request, from their first byte on.
    pub headers: Duration,
    /// An idle connection is kept so long.
    pub idle: Duration,
    /// For a body.
    pub body_time: Duration,
    /// For a greeting of TLS.
    pub greeting: Duration,
    /// For a client to take bytes that are ready.
    pub write: Duration,
    /// For what runs when the server is told to stop.
    pub stop: Duration,
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
        }
    }
}

/// A worker of a fleet.
#[derive(Debug, Clone)]
pub struct Worker {
    /// What it is called there.
    pub id: String,
    /// What the fleet calls its model.
    pub model_ref: String,
    /// Where it announces itself.
    pub hive: Option<Hive>,
}

impl Options {
    /// Whether this may be served as it is.
    ///
    /// # Errors
    /// It would let everybody in, and nobody said so; or a name would mean two models.
    pub fn check(&self) -> Result<(), String> {
        for (i, model) in self.models.iter().enumerate() {
            let before = self.models.iter().take(i);
            if let Some(name) =
                model.names.iter().find(|name| before.clone().any(|other| other.is(name)))
            {
                return Err(format!(
                    "two models would be called '{name}': give each a name by --alias"
                ));
            }
        }
        if self.host.is_loopback() || !self.keys.is_empty() || self.allow_anyone {
            return Ok(());
        }
        Err(format!(
            "listening on {} without a key would let everybody in: give --api-key-file FILE, or \
             --allow-anyone if that is meant",
            self.host
        ))
    }
}
