//! The state that a scheduler shares with its worker.

use super::Reopen;
use super::SavedPages;
use super::block_events::BlockSink;
use super::request::{Failure, Refused};
use super::running::ActiveRequest;
use super::status::{State, Status};
use super::waiting::Waiting;
use crate::NonExhaustive;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The usual limit of the time between two tokens of an answer.
const LATENCY_TARGET: Duration = Duration::from_millis(50);

/// Options of a [`Scheduler`](super::Scheduler).
pub struct SchedulerOptions {
    /// Maximum number of waiting requests. Requests that are being answered are not counted.
    pub max_queue: usize,
    /// Maximum number of tokens in a step; `None`: the default of the device. Every running answer
    /// gets one token in any case; the rest is for prompts. A larger budget speeds up prompts and
    /// delays every answer.
    pub token_budget: Option<usize>,
    /// Used on a GPU without a `token_budget`: a step has the largest number of prompt tokens with
    /// which the time between two tokens of an answer stays below this, but at least 512.
    pub latency_target: Duration,
    /// Maximum number of tokens in all sequences, at least one context; `None`: the tokens of all
    /// slots. It limits memory on the CPU, where sequences allocate while they grow. When it is
    /// reached, the newest sequence is preempted and recomputed later.
    pub held_tokens: Option<usize>,
    /// Whether ended sequences are retained for prompts with the same prefix, while there is enough
    /// memory.
    pub reuse: bool,
    /// Maximum time of a request's constraint for one token. A request whose constraint takes
    /// longer fails; other requests do not wait for it.
    pub longest_mask: Duration,
    /// Reopens the session after a fault. `None`: the scheduler ends after a fault.
    pub reopen: Option<Reopen>,
    /// Stores pages of ended sequences on disk. Models with recurrent states, several devices, and
    /// a GPU without pages of keys and values save nothing ([`Session::page_format`]).
    ///
    /// [`Session::page_format`]: crate::Session::page_format
    pub saved_pages: Option<SavedPages>,
    /// Receives changes of the cached blocks.
    pub block_events: Option<BlockSink>,
    #[doc(hidden)]
    pub _more: NonExhaustive,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            max_queue: 256,
            token_budget: None,
            latency_target: LATENCY_TARGET,
            held_tokens: None,
            reuse: true,
            longest_mask: Duration::from_secs(10),
            reopen: None,
            saved_pages: None,
            block_events: None,
            _more: NonExhaustive::default(),
        }
    }
}

/// Receives an embedding or its failure.
pub(super) type VectorSink = Box<dyn FnOnce(Result<Vec<f32>, Failure>) + Send>;

/// A request for an embedding.
pub(super) struct Embed {
    pub tokens: Vec<u32>,
    pub sink: VectorSink,
}

/// State shared by handles and worker. The lock is held only for short accesses.
pub(super) struct Shared {
    pub(super) inner: Mutex<Inner>,
    /// Wakes the worker because of a request, a cancellation, a mask, or a stop.
    pub(super) wake: Condvar,
    /// Signals that the worker has ended.
    pub(super) gone: Condvar,
    /// Set if [`Shared::wake`] was called since the worker last held the lock. A decoding loop
    /// polls only this flag.
    pub(super) news: AtomicBool,
}

/// Facts about a model that do not change while the session is open.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub arch: String,
    pub encoder: bool,
    /// Names of the adapters that the model was opened with.
    pub adapters: Vec<String>,
    /// Places for adapters that are loaded later.
    pub adapter_slots: usize,
    pub context: usize,
    pub n_vocab: usize,
    pub slots: usize,
    pub bytes_per_token: u64,
    /// Tokens that end an assistant's message.
    pub end_ids: Vec<u32>,
}

pub(super) struct Inner {
    pub waiting: Waiting,
    pub embeds: VecDeque<Embed>,
    /// The deadline of a stop.
    pub stop: Option<Instant>,
    /// The reason why no more requests are accepted.
    pub ended: Option<Refused>,
    /// The reason to reopen the session, if another part of the program requires it.
    pub renew: Option<String>,
    /// Whether the worker has ended.
    pub gone: bool,
    pub facts: Facts,
    /// Mean seconds from start to end of recent requests.
    pub usual: f64,
    /// Maximum time of a constraint for one token.
    pub longest_mask: Duration,
    pub status: Status,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        // If a thread panics while it holds the lock, the data stay valid: entries are only moved.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a wake-up, at most `most`.
    pub fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, most: Duration) -> MutexGuard<'a, Inner> {
        self.wake.wait_timeout(inner, most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the worker.
    pub fn wake(&self) {
        self.news.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// Whether [`Shared::wake`] was called since [`Shared::heard`].
    pub fn news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Clears the flag and returns it. The worker calls this with the lock held.
    pub fn heard(&self) -> bool {
        self.news.swap(false, Ordering::Relaxed)
    }

    /// Publishes the worker's status.
    pub fn show(&self, seen: &Status, usual: f64) {
        let mut inner = self.lock();
        inner.usual = usual;
        let state = match (seen.state, inner.status.state) {
            (_, State::Ended) => State::Ended,
            (State::Ready | State::Short, State::Stopping) => State::Stopping,
            (state, _) => state,
        };
        // The handles count these two values.
        let (taken, refused) = (inner.status.taken, inner.status.refused);
        inner.status = Status { state, taken, refused, ..seen.clone() };
    }

    /// Stops accepting requests. Returns the waiting ones; their sinks must be called without the
    /// lock.
    pub fn close(&self, why: Refused) -> (Vec<ActiveRequest>, VecDeque<Embed>) {
        let mut inner = self.lock();
        inner.ended = Some(why);
        inner.status.state = State::Ended;
        (inner.waiting.drain(|_| true), std::mem::take(&mut inner.embeds))
    }

    /// Marks the worker as ended.
    pub fn leave(&self) {
        self.lock().gone = true;
        self.gone.notify_all();
    }
}
