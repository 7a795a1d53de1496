//! What all requests share: the models as far as they are there, and what is counted.

use crate::loaded::Loaded;
use crate::metrics::Metrics;
use crate::openai::unix_time;
use crate::options::{Options, Served};
use crate::refusal::Refusal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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
    /// The models, in the options' order, each from when it is there on.
    loaded: Vec<OnceLock<Arc<Loaded>>>,
    stopping: AtomicBool,
}

impl Service {
    /// Without a model yet.
    pub fn new(options: Options) -> Service {
        Service {
            loaded: options.models.iter().map(|_| OnceLock::new()).collect(),
            options,
            metrics: Metrics::default(),
            started: Instant::now(),
            started_unix: unix_time(),
            stopping: AtomicBool::new(false),
        }
    }

    /// The model at this place of the options is there.
    pub fn set_loaded(&self, at: usize, loaded: Arc<Loaded>) {
        if let Some(place) = self.loaded.get(at) {
            let _ = place.set(loaded);
        }
    }

    /// Nothing new is taken from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether nothing new is taken.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// All models, and whether they are there.
    pub fn models(&self) -> impl Iterator<Item = (&Served, Option<&Arc<Loaded>>)> {
        self.options.models.iter().zip(self.loaded.iter().map(OnceLock::get))
    }

    /// Those that are there.
    pub fn loaded(&self) -> impl Iterator<Item = &Arc<Loaded>> {
        self.loaded.iter().filter_map(OnceLock::get)
    }

    /// The model that a request means, and whether it is there: where it names none, the first.
    ///
    /// # Errors
    /// None is called so.
    pub fn meant(&self, name: Option<&str>) -> Result<(&Served, Option<&Arc<Loaded>>), Refusal> {
        let mut models = self.models();
        match name {
            Some(name) => models.find(|(served, _)| served.is(name)).ok_or_else(|| {
                let all: Vec<&str> = self.options.models.iter().map(Served::name).collect();
                Refusal::no_model(name, &all)
            }),
            None => models.next().ok_or_else(|| Refusal::internal("no model is served")),
        }
    }

    /// The same, which must be there.
    ///
    /// # Errors
    /// None is called so, or it is being loaded.
    pub fn model(&self, name: Option<&str>) -> Result<Arc<Loaded>, Refusal> {
        let (_, loaded) = self.meant(name)?;
        loaded.cloned().ok_or_else(|| Refusal::unavailable(2, "the model is being loaded"))
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
