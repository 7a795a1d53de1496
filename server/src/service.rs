//! What all requests share: the models, and what is counted.

use crate::bodies::Bodies;
use crate::metrics::Metrics;
use crate::models::{Keep, Lease, Models, Seen};
use crate::openai::unix_time;
use crate::options::{Options, Served};
use crate::refusal::Refusal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What all requests share.
pub struct Service {
    /// How it is set up.
    pub options: Options,
    /// What is counted.
    pub metrics: Metrics,
    /// Bodies of requests.
    pub bodies: Bodies,
    /// When it was started.
    pub started: Instant,
    /// The same in seconds since 1970.
    pub started_unix: u64,
    /// Which models are loaded.
    pub models: Models,
    stopping: AtomicBool,
}

impl Service {
    /// Without a model yet.
    pub fn new(options: Options) -> Service {
        Service {
            models: Models::new(options.models.len()),
            options,
            metrics: Metrics::default(),
            bodies: Bodies::default(),
            started: Instant::now(),
            started_unix: unix_time(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Nothing new is taken from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.models.stop();
    }

    /// Whether nothing new is taken.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// All models, each as it is.
    pub fn all(&self) -> impl Iterator<Item = (&Served, Seen)> {
        self.options.models.iter().enumerate().filter_map(|(at, served)| Some((served, self.models.seen(at)?)))
    }

    /// The place of the model that a request means: where it names none, the first.
    ///
    /// # Errors
    /// None is called so.
    pub fn place(&self, name: Option<&str>) -> Result<usize, Refusal> {
        let Some(name) = name else { return Ok(0) };
        self.options.models.iter().position(|served| served.is(name)).ok_or_else(|| {
            let all: Vec<&str> = self.options.models.iter().map(Served::name).collect();
            Refusal::no_model(name, &all)
        })
    }

    /// The model that a request means, as it is.
    ///
    /// # Errors
    /// None is called so.
    pub fn meant(&self, name: Option<&str>) -> Result<(&Served, Seen), Refusal> {
        let at = self.place(name)?;
        let served = self.options.models.get(at);
        served.zip(self.models.seen(at)).ok_or_else(|| Refusal::internal("no model is served"))
    }

    /// The model at a place, loaded if it was not, and how long it stays then, if the request says so. Whatever else may
    /// be wrong with the request is looked at before.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub async fn model(&self, at: usize, keep: Option<Keep>) -> Result<Lease, Refusal> {
        let keep = keep.filter(|_| self.options.keep_alive);
        self.models.get(at, self.options.max_queue, keep).await
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
