//! The handle of the scheduler: submits requests, reports the status, stops the worker.

use super::adapters::{distinct, names};
use super::request::{Failure, Refused, Request};
use super::running::ActiveRequest;
use super::shared::{Embed, Facts, Inner, SchedulerOptions, Shared};
use super::status::{State, Status};
use super::waiting::Waiting;
use super::worker::{Worker, facts};
use crate::exec::ImageRows;
use crate::gpu::PageCount;
use crate::session::Session;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of log probabilities for a token.
pub(super) const MAX_LOGPROBS: usize = 20;

/// Stops the worker when the last handle is dropped.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().stop = Some(Instant::now());
        self.0.wake();
    }
}

/// Runs a session in a separate thread for many callers. Clones are handles of the same scheduler.
/// It stops when the last handle is dropped.
#[derive(Clone)]
pub struct Scheduler {
    handle: Arc<Handle>,
}

impl Scheduler {
    /// Starts a scheduler. The session must have no sequences.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(session: Session, options: SchedulerOptions) -> std::io::Result<Scheduler> {
        let facts = facts(&session);
        let status = Status {
            max_queue: options.max_queue,
            slots: facts.slots,
            context: facts.context,
            room: room_of(&session, &facts).min(options.held_tokens.unwrap_or(usize::MAX)),
            pages: session.pages(),
            adapter_slots: facts.adapter_slots,
            bytes_per_token: facts.bytes_per_token,
            ..Status::default()
        };
        let inner = Inner {
            waiting: Waiting::default(),
            embeds: VecDeque::new(),
            stop: None,
            ended: None,
            renew: None,
            gone: false,
            facts,
            usual: 1.0,
            longest_mask: options.longest_mask,
            status,
        };
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            gone: Condvar::new(),
            news: AtomicBool::new(false),
        });
        let worker = Worker::new(session, options, Arc::clone(&shared));
        std::thread::Builder::new()
            .name("kjit-scheduler".to_owned())
            .spawn(move || worker.run())?;
        Ok(Scheduler { handle: Arc::new(Handle(shared)) })
    }

    /// Submits a request. If this returns an error, the sink was not called.
    ///
    /// # Errors
    /// [`Refused`] has the reason.
    pub fn submit(&self, request: Request) -> Result<Answer, Refused> {
        let shared = &self.handle.0;
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut inner = shared.lock();
        let facts = &inner.facts;
        if facts.encoder {
            return Err(Refused::Encoder { arch: facts.arch.clone() });
        }
        check(facts, &request.tokens, &request.images)?;
        if let Some(asked) = request.logprobs.filter(|n| *n > MAX_LOGPROBS) {
            return Err(Refused::Logprobs { asked, most: MAX_LOGPROBS });
        }
        let given = request.adapters.as_ref().map(Vec::len);
        let adapters = facts.adapters.len();
        if let Some(given) = given.filter(|given| *given != adapters) {
            return Err(Refused::Adapters { given, adapters });
        }
        let (given, slots) = (distinct([&request.loaded_adapters]), facts.adapter_slots);
        if given > slots {
            return Err(Refused::AdapterSlots { given, slots });
        }
        room(&mut inner, 0)?;
        let job = ActiveRequest::new(
            request,
            &inner.facts.end_ids,
            inner.longest_mask,
            Arc::clone(&cancelled),
        );
        inner.waiting.push(job);
        inner.status.taken += 1;
        drop(inner);
        shared.wake();
        Ok(Answer { cancelled, shared: Arc::clone(shared), attached: true })
    }

    /// Checks whether the queue has capacity for one more request, in addition to `before` requests
    /// that are being prepared. Callers check this before they do work for a request.
    ///
    /// # Errors
    /// Errors of [`Scheduler::submit`] that do not depend on the request.
    pub fn has_room(&self, before: usize) -> Result<(), Refused> {
        room(&mut self.handle.0.lock(), before)
    }

    /// Requests the embedding of a text. It is pooled as the model specifies, and not normalised.
    ///
    /// # Errors
    /// [`Refused`] has the reason; `sink` is not called in this case.
    pub fn embed(
        &self,
        tokens: Vec<u32>,
        sink: impl FnOnce(Result<Vec<f32>, Failure>) + Send + 'static,
    ) -> Result<(), Refused> {
        let shared = &self.handle.0;
        let mut inner = shared.lock();
        let facts = &inner.facts;
        if !facts.encoder {
            return Err(Refused::NoEncoder { arch: facts.arch.clone() });
        }
        check(facts, &tokens, &[])?;
        room(&mut inner, 0)?;
        inner.embeds.push_back(Embed { tokens, sink: Box::new(sink) });
        inner.status.taken += 1;
        drop(inner);
        shared.wake();
        Ok(())
    }

    /// The current status.
    pub fn status(&self) -> Status {
        let inner = self.handle.0.lock();
        let waiting_adapters = names(inner.waiting.iter(), &inner.facts.adapters);
        let waiting = inner.waiting.len() + inner.embeds.len();
        Status { waiting, waiting_adapters, ..inner.status.clone() }
    }

    /// Reopens the session as after a fault. Used if another session lost the device. Running
    /// requests fail.
    pub fn renew(&self, why: &str) {
        self.handle.0.lock().renew = Some(why.to_owned());
        self.handle.0.wake();
    }

    /// Accepts no more requests, and waits up to `deadline` for the accepted ones. Requests that
    /// are not finished then fail with [`Failure::Stopped`]. Returns whether all finished. It
    /// blocks, so do not call it in an async thread.
    pub fn stop(&self, deadline: Duration) -> bool {
        let shared = &self.handle.0;
        let until = Instant::now() + deadline;
        let mut inner = shared.lock();
        let until = inner.stop.map_or(until, |earlier| earlier.min(until));
        inner.stop = Some(until);
        if inner.status.state != State::Ended {
            inner.status.state = State::Stopping;
        }
        shared.wake();
        while !inner.gone {
            inner = shared.gone.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        Instant::now() < until
    }
}

/// Number of tokens that fit in all sequences, including cached ones.
fn room_of(session: &Session, facts: &Facts) -> usize {
    let in_slots = facts.slots.saturating_mul(facts.context);
    // Cached prefixes are in pages and take no slot.
    session.pages().map_or(in_slots, |pages| pages.total * PageCount::POSITIONS)
}

/// Checks a text against the context, the vocabulary and the images that are given with it.
fn check(facts: &Facts, tokens: &[u32], images: &[Arc<ImageRows>]) -> Result<(), Refused> {
    let (n_vocab, context) = (facts.n_vocab, facts.context);
    if tokens.is_empty() {
        return Err(Refused::NoTokens);
    }
    if tokens.len() > context {
        return Err(Refused::Context { tokens: tokens.len(), context });
    }
    let shown = |id: u32| images.iter().any(|image| image.ids().contains(&id));
    match tokens.iter().find(|&&id| id as usize >= n_vocab && !shown(id)) {
        Some(&id) => Err(Refused::Token { id, n_vocab }),
        None => Ok(()),
    }
}

/// Whether the queue has capacity for one more request, in addition to `before`.
fn room(inner: &mut Inner, before: usize) -> Result<(), Refused> {
    if let Some(why) = &inner.ended {
        return Err(why.clone());
    }
    if inner.stop.is_some() {
        return Err(Refused::Stopping);
    }
    let waiting = inner.waiting.len() + inner.embeds.len() + before;
    if waiting < inner.status.max_queue {
        return Ok(());
    }
    inner.status.refused += 1;
    // A waiting request leaves the queue whenever a running one ends.
    let each = inner.usual / inner.facts.slots.max(1) as f64;
    Err(Refused::QueueFull { waiting, retry_after: Duration::from_secs_f64(each.clamp(1.0, 60.0)) })
}

/// A running answer. Dropping it cancels it.
pub struct Answer {
    cancelled: Arc<AtomicBool>,
    shared: Arc<Shared>,
    attached: bool,
}

impl Answer {
    /// Cancels the answer after the current step. [`super::Event::Done`] with
    /// [`super::Reason::Cancelled`] follows, unless the answer has ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Takes the lock, so that a worker that is about to wait either sees the flag or is woken.
        drop(self.shared.lock());
        self.shared.wake();
    }

    /// Lets the answer continue without this handle.
    pub fn detach(mut self) {
        self.attached = false;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.attached {
            self.cancel();
        }
    }
}
