//! State that all requests share: models and counts.

use crate::body_budget::BodyBudget;
use crate::caller::Caller;
use crate::clock::unix_time;
use crate::counts::Metrics;
use crate::generation::refused;
use crate::models::{KeepAlive, Lease, ModelStatus, Models};
use crate::openai::responses::response_store::ResponseStore;
use crate::options::{Options, Served};
use crate::preparation::PreparationQueue;
use crate::refusal::Refusal;
use crate::traces::Tracer;
use kjit_model::cancel::Cancel;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time limit for preparing a request. Work in proportion to the size of the request takes far
/// less.
const PREPARATION_TIMEOUT: Duration = Duration::from_secs(30);

/// State that all requests share.
pub struct Service {
    /// Options.
    pub options: Options,
    /// Counts.
    pub metrics: Metrics,
    /// BodyBudget that are being read or used.
    pub bodies: BodyBudget,
    /// Start of the server.
    pub started: Instant,
    /// Start of the server in seconds since 1970.
    pub started_unix: u64,
    /// Models, loaded or not.
    pub models: Models,
    /// Requests that are being prepared.
    pub preparation: Arc<PreparationQueue>,
    /// Stored responses, from which conversations can continue.
    pub kept: Arc<ResponseStore>,
    /// Sends spans, if they are wanted.
    pub tracer: Option<Tracer>,
    draining: AtomicBool,
    stopping: AtomicBool,
}

impl Service {
    /// A service without a loaded model.
    pub fn new(options: Options) -> Service {
        Service {
            models: Models::new(options.models.len()),
            options,
            metrics: Metrics::default(),
            bodies: BodyBudget::default(),
            started: Instant::now(),
            started_unix: unix_time(),
            preparation: Arc::default(),
            kept: Arc::default(),
            tracer: None,
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    /// Sets the server's state to not ready, so that routers send no more requests. Requests that
    /// still arrive are answered.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether routers should send no more requests.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed) || self.stopping()
    }

    /// Refuses new requests from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.models.stop();
    }

    /// Whether new requests are refused.
    pub fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// All models with their states.
    pub fn all(&self) -> impl Iterator<Item = (&Served, ModelStatus)> {
        self.options
            .models
            .iter()
            .enumerate()
            .filter_map(|(at, served)| Some((served, self.models.seen(at)?)))
    }

    /// Index of the model that a request names, or of the first model. Models with an adapter come
    /// after all models: [`Service::parts`] separates them.
    ///
    /// # Errors
    /// No model has this name.
    pub fn place(&self, name: Option<&str>) -> Result<usize, Refusal> {
        let Some(name) = name else { return Ok(0) };
        let models = &self.options.models;
        let with_adapter = || {
            let mut all = models.iter().enumerate();
            all.find_map(|(at, served)| Some(models.len() * (1 + served.adapter(name)?) + at))
        };
        let found = models.iter().position(|served| served.is(name)).or_else(with_adapter);
        found.ok_or_else(|| {
            let all: Vec<&str> = self.options.models.iter().map(Served::name).collect();
            Refusal::no_model(name, &all)
        })
    }

    /// The model's index, and its adapter's index, of an index of [`Service::place`].
    pub fn parts(&self, at: usize) -> (usize, Option<usize>) {
        let n = self.options.models.len().max(1);
        (at % n, (at / n).checked_sub(1))
    }

    /// The model that a request names, or the first model, with its state.
    ///
    /// # Errors
    /// No model has this name.
    pub fn meant(&self, name: Option<&str>) -> Result<(&Served, ModelStatus), Refusal> {
        let (at, _) = self.parts(self.place(name)?);
        let served = self.options.models.get(at);
        served.zip(self.models.seen(at)).ok_or_else(|| Refusal::internal("no model is served"))
    }

    /// The model with this index. It is loaded if necessary. `keep` is how long it stays loaded, if
    /// the request sets it. All other checks of a request come before this call.
    ///
    /// # Errors
    /// The model cannot be loaded.
    pub async fn model(&self, at: usize, keep: Option<KeepAlive>) -> Result<Lease, Refusal> {
        let keep = keep.filter(|_| self.options.keep_alive);
        let (at, adapter) = self.parts(at);
        let lease = self.models.get(at, self.options.max_queue, keep).await?;
        Ok(match adapter {
            Some(adapter) => lease.with_adapter(adapter)?,
            None => lease,
        })
    }

    /// Runs the work that a request needs before it is queued, when the caller gets a slot. The
    /// request counts as waiting until then. `work` can check whether its client has disconnected.
    ///
    /// # Errors
    /// Too many requests wait, the work takes too long, or `work` failed.
    pub async fn prepare<T: Send + 'static>(
        &self,
        loaded: &Lease,
        caller: &Caller,
        work: impl FnOnce(&Cancel) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        loaded.scheduler.has_room(self.preparation.waiting()).map_err(|why| refused(&why, ""))?;
        let lost = || Refusal::internal("nothing is prepared any more");
        let place = self.preparation.place(caller).await.ok_or_else(lost)?;
        let left = CancelOnDrop(Cancel::default());
        let cancel = left.0.clone();
        let done = self.work(move || {
            let made = work(&cancel);
            // The thread is free now: other requests need no longer wait for it.
            drop(place);
            made
        });
        match tokio::time::timeout(PREPARATION_TIMEOUT, done).await {
            Ok(made) => made?,
            Err(_) => {
                let seconds = PREPARATION_TIMEOUT.as_secs();
                let why = format!(
                    "reading its prompt and schemas takes longer than {seconds} s: \
                     use a shorter prompt or smaller schemas"
                );
                Err(Refusal::unavailable(10, why))
            }
        }
    }

    /// Runs long work on a blocking thread.
    ///
    /// # Errors
    /// The work panicked.
    pub async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| Refusal::internal("an internal fault while this was prepared"))
    }
}

/// Cancels the work when it is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
