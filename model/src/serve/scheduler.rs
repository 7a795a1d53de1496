//! The handle that others hold: takes requests, says how things are, stops.

use super::Reopen;
use super::request::{Failure, Refused, Request};
use super::running::Job;
use super::status::{State, Status};
use super::waiting::Waiting;
use super::worker::{Worker, facts};
use crate::gpu::PageCount;
use crate::session::Session;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Log probabilities of so many tokens are given at most.
pub(super) const MOST_LOGPROBS: usize = 20;

/// How a [`Scheduler`] works.
pub struct SchedulerOptions {
    /// Requests that wait at most; those that are being answered are not among them.
    pub max_queue: usize,
    /// Tokens of a step; none: as many as suit the device. A token of each answer goes in any case;
    /// what is left is for prompts. More is better for prompts, and every answer waits for it.
    pub token_budget: Option<usize>,
    /// Tokens of all sequences that the session holds at most; none: as many as its slots have room
    /// for. No fewer than a context. On the CPU memory is taken as tokens come, so this bounds it;
    /// where it is used up, the youngest sequence is put back and computed again.
    pub held_tokens: Option<usize>,
    /// Whether sequences that ended stay while there is room, for prompts that begin as they do.
    pub reuse: bool,
    /// Opens the session again after a fault; none: the scheduler ends then.
    pub reopen: Option<Reopen>,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        SchedulerOptions {
            max_queue: 256,
            token_budget: None,
            held_tokens: None,
            reuse: true,
            reopen: None,
        }
    }
}

/// What a model makes of a text: a vector, or why not.
pub(super) type VectorSink = Box<dyn FnOnce(Result<Vec<f32>, Failure>) + Send>;

/// A vector that is asked for.
pub(super) struct Embed {
    pub tokens: Vec<u32>,
    pub sink: VectorSink,
}

/// What the handles and the worker share. Nobody holds the lock for longer than a look.
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// Something came, or was cancelled, or it is time to stop.
    wake: Condvar,
    /// The worker is gone.
    gone: Condvar,
    /// Something came since the worker last looked: it may be in a loop that only looks here.
    news: AtomicBool,
}

/// What does not change while a model is served.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub arch: String,
    pub encoder: bool,
    pub context: usize,
    pub n_vocab: usize,
    pub slots: usize,
    pub bytes_per_token: u64,
    /// Tokens that end a turn.
    pub end_ids: Vec<u32>,
}

pub(super) struct Inner {
    pub waiting: Waiting,
    pub embeds: VecDeque<Embed>,
    /// Until when what there is may take.
    pub stop: Option<Instant>,
    /// Why nothing is taken any more.
    pub ended: Option<Refused>,
    /// Why the session must be opened again although it does not know it.
    pub renew: Option<String>,
    /// The worker has left.
    pub gone: bool,
    pub facts: Facts,
    /// Mean seconds from start to end of the last requests.
    pub usual: f64,
    pub status: Status,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked with the lock held had only moved things about.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something happens, or so long.
    pub fn wait<'a>(&self, inner: MutexGuard<'a, Inner>, most: Duration) -> MutexGuard<'a, Inner> {
        self.wake.wait_timeout(inner, most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Something came that the worker should see.
    pub fn wake(&self) {
        self.news.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// Whether something came since [`Shared::heard`].
    pub fn news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// The worker looks, with the lock held.
    pub fn heard(&self) {
        self.news.store(false, Ordering::Relaxed);
    }

    /// Shows how things are.
    pub fn show(&self, seen: &Status, usual: f64) {
        let mut inner = self.lock();
        inner.usual = usual;
        let state = match (seen.state, inner.status.state) {
            (_, State::Ended) => State::Ended,
            (State::Ready | State::Short, State::Stopping) => State::Stopping,
            (state, _) => state,
        };
        // What the handles count is theirs.
        let (taken, refused) = (inner.status.taken, inner.status.refused);
        inner.status = Status { state, taken, refused, ..seen.clone() };
    }

    /// Nothing is taken any more; what waits is given back, to be told so without the lock.
    pub fn close(&self, why: Refused) -> (Vec<Job>, VecDeque<Embed>) {
        let mut inner = self.lock();
        inner.ended = Some(why);
        inner.status.state = State::Ended;
        (inner.waiting.drain(|_| true), std::mem::take(&mut inner.embeds))
    }

    /// The worker leaves.
    pub fn leave(&self) {
        self.lock().gone = true;
        self.gone.notify_all();
    }
}

/// Stops the worker when the last handle goes.
struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().stop = Some(Instant::now());
        self.0.wake();
    }
}

/// A session on a thread of its own, asked by many. Clones are handles of the same; when the last
/// one is dropped, it stops.
#[derive(Clone)]
pub struct Scheduler {
    handle: Arc<Handle>,
}

impl Scheduler {
    /// Gives the session, which has no sequences yet, a thread.
    ///
    /// # Errors
    /// The system's, if it has no thread to give.
    pub fn start(session: Session, options: SchedulerOptions) -> std::io::Result<Scheduler> {
        let facts = facts(&session);
        let status = Status {
            max_queue: options.max_queue,
            slots: facts.slots,
            context: facts.context,
            room: room_of(&session, &facts).min(options.held_tokens.unwrap_or(usize::MAX)),
            pages: session.pages(),
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

    /// Takes a request, unless there is a reason not to. Its sink has had no event when this
    /// returns an error.
    ///
    /// # Errors
    /// [`Refused`] says which reason.
    pub fn submit(&self, request: Request) -> Result<Answer, Refused> {
        let shared = &self.handle.0;
        let cancelled = Arc::new(AtomicBool::new(false));
        let mut inner = shared.lock();
        let facts = &inner.facts;
        if facts.encoder {
            return Err(Refused::Encoder { arch: facts.arch.clone() });
        }
        check(facts, &request.tokens)?;
        if let Some(asked) = request.logprobs.filter(|n| *n > MOST_LOGPROBS) {
            return Err(Refused::Logprobs { asked, most: MOST_LOGPROBS });
        }
        room(&mut inner, 0)?;
        let job = Job::new(request, &inner.facts.end_ids, Arc::clone(&cancelled));
        inner.waiting.push(job);
        inner.status.taken += 1;
        drop(inner);
        shared.wake();
        Ok(Answer { cancelled, shared: Arc::clone(shared), attached: true })
    }

    /// Whether one more could wait, beside so many who are about to come: whoever works for it
    /// before asks this first.
    ///
    /// # Errors
    /// As [`Scheduler::submit`], as far as it is known without the request.
    pub fn may_come(&self, before: usize) -> Result<(), Refused> {
        room(&mut self.handle.0.lock(), before)
    }

    /// An encoder's vector of a text, as the model pools it, not normalised.
    ///
    /// # Errors
    /// [`Refused`] says why it is not taken; `sink` is not called then.
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
        check(facts, &tokens)?;
        room(&mut inner, 0)?;
        inner.embeds.push_back(Embed { tokens, sink: Box::new(sink) });
        inner.status.taken += 1;
        drop(inner);
        shared.wake();
        Ok(())
    }

    /// How things are.
    pub fn status(&self) -> Status {
        let inner = self.handle.0.lock();
        Status { waiting: inner.waiting.len() + inner.embeds.len(), ..inner.status.clone() }
    }

    /// Has the session opened again, as after a fault: what it has on its device was lost to
    /// somebody else's. Those that are being answered fail.
    pub fn renew(&self, why: &str) {
        self.handle.0.lock().renew = Some(why.to_owned());
        self.handle.0.wake();
    }

    /// Takes nothing any more, finishes what was taken, and waits for that, so long at most: what
    /// is not done then fails with [`Failure::Stopped`]. True: everything was finished. It blocks:
    /// not for an async thread.
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

/// Tokens that fit in all sequences together, those that are kept among them.
fn room_of(session: &Session, facts: &Facts) -> usize {
    let in_slots = facts.slots.saturating_mul(facts.context);
    // What is kept in pages takes no slot.
    session.pages().map_or(in_slots, |pages| pages.total * PageCount::POSITIONS)
}

/// Whether a text can be fed at all.
fn check(facts: &Facts, tokens: &[u32]) -> Result<(), Refused> {
    let (n_vocab, context) = (facts.n_vocab, facts.context);
    if tokens.is_empty() {
        return Err(Refused::NoTokens);
    }
    if tokens.len() > context {
        return Err(Refused::Context { tokens: tokens.len(), context });
    }
    match tokens.iter().find(|&&id| id as usize >= n_vocab) {
        Some(&id) => Err(Refused::Token { id, n_vocab }),
        None => Ok(()),
    }
}

/// Whether another request can wait, beside so many that are not here yet.
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
    // One leaves the queue whenever one of those that run is done.
    let each = inner.usual / inner.facts.slots.max(1) as f64;
    Err(Refused::QueueFull { waiting, retry_after: Duration::from_secs_f64(each.clamp(1.0, 60.0)) })
}

/// An answer on its way. To drop it cancels it.
pub struct Answer {
    cancelled: Arc<AtomicBool>,
    shared: Arc<Shared>,
    attached: bool,
}

impl Answer {
    /// Ends it at once: after the step at hand. [`super::Event::Done`] with
    /// [`super::Reason::Cancelled`] comes, unless it has ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // With the lock, so that a worker that is about to wait has seen it, or is woken.
        drop(self.shared.lock());
        self.shared.wake();
    }

    /// Lets it go on without this handle.
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
