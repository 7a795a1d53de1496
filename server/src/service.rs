//! What all requests share: the model, or why it is not there, and what is counted.

use crate::loaded::Loaded;
use crate::metrics::Metrics;
use crate::openai::unix_time;
use crate::options::Options;
use crate::refusal::Refusal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// What all requests share.
pub struct Service {
    /// How it is set up.
    pub options: Options,
    /// What is counted.
    pub metrics: Metrics,
    /// When it was started.
    pub started: Instant,
    /// The same in seconds since 1970.
    pub started_unix: u64,
    loaded: RwLock<Option<Arc<Loaded>>>,
    stopping: AtomicBool,
}

impl Service {
    /// Without a model yet.
    pub fn new(options: Options) -> Service {
        Service {
            options,
            metrics: Metrics::default(),
            started: Instant::now(),
            started_unix: unix_time(),
            loaded: RwLock::new(None),
            stopping: AtomicBool::new(false),
        }
    }

    /// The model is there.
    pub fn set_loaded(&self, loaded: Arc<Loaded>) {
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
    }

    /// Nothing new is taken from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether nothing new is taken.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The model.
    ///
    /// # Errors
    /// It is being loaded.
    pub fn loaded(&self) -> Result<Arc<Loaded>, Refusal> {
        let loaded = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| Refusal::unavailable(2, "the model is being loaded"))
    }

    /// What the model is called.
    pub fn name(&self) -> &str {
        self.options.names.first().map_or("model", String::as_str)
    }

    /// Whether a model that a request names is the one that is served; Ollama's clients put `:latest` behind
    /// it.
    ///
    /// # Errors
    /// It is not.
    pub fn check_model(&self, name: &str) -> Result<(), Refusal> {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        match self.options.names.iter().any(|known| known == name || known == bare) {
            true => Ok(()),
            false => Err(Refusal::no_model(name, self.name())),
        }
    }

    /// Does work that takes a while on a thread for such.
    ///
    /// # Errors
    /// It panicked.
    pub async fn work<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Refusal::internal("an internal fault while this was prepared"))
    }
}
