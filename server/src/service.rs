//! What all requests share: the models, and what is counted.

use crate::bodies::Bodies;
use crate::caller::Caller;
use crate::desk::Desk;
use crate::generation::refused;
use crate::metrics::Metrics;
use crate::models::{Keep, Lease, Models, Seen};
use crate::openai::responses::kept::Kept;
use crate::openai::unix_time;
use crate::options::{Options, Served};
use crate::refusal::Refusal;
use kjit_model::cancel::Cancel;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So long a request is prepared at most: what is bounded by its size takes far less.
const PATIENCE: Duration = Duration::from_secs(30);

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
    /// Requests that are prepared.
    pub desk: Arc<Desk>,
    /// Responses that conversations can go on from.
    pub kept: Arc<Kept>,
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
            desk: Arc::default(),
            kept: Arc::default(),
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
        self.options
            .models
            .iter()
            .enumerate()
            .filter_map(|(at, served)| Some((served, self.models.seen(at)?)))
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

    /// The model at a place, loaded if it was not, and how long it stays then, if the request says
    /// so. Whatever else may be wrong with the request is looked at before.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub async fn model(&self, at: usize, keep: Option<Keep>) -> Result<Lease, Refusal> {
        let keep = keep.filter(|_| self.options.keep_alive);
        self.models.get(at, self.options.max_queue, keep).await
    }

    /// Does the work that a request of this model takes before it can wait for an answer, when it
    /// is its turn. It counts as waiting until then. What is done is told when nobody waits for it
    /// any more.
    ///
    /// # Errors
    /// Too many wait; it takes too long; what `work` says.
    pub async fn prepare<T: Send + 'static>(
        &self,
        loaded: &Lease,
        caller: &Caller,
        work: impl FnOnce(&Cancel) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        loaded.scheduler.may_come(self.desk.waiting()).map_err(|why| refused(&why, ""))?;
        let lost = || Refusal::internal("nothing is prepared any more");
        let place = self.desk.place(caller).await.ok_or_else(lost)?;
        let left = Left(Cancel::default());
        let cancel = left.0.clone();
        let done = self.work(move || {
            let made = work(&cancel);
            // The thread is free now, however long somebody waited for it.
            drop(place);
            made
        });
        match tokio::time::timeout(PATIENCE, done).await {
            Ok(made) => made?,
            Err(_) => {
                let seconds = PATIENCE.as_secs();
                let why = format!(
                    "to read its prompt and schemas takes longer than {seconds} s: make them \
                     smaller"
                );
                Err(Refusal::unavailable(10, why))
            }
        }
    }

    /// Does work that takes a while on a thread for such.
    ///
    /// # Errors
    /// It panicked.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Refusal::internal("an internal fault while this was prepared"))
    }
}

/// Says, when it is dropped, that nobody waits any more.
struct Left(Cancel);

impl Drop for Left {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
