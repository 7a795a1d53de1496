//! Threads that advance constraints: they add a chosen token and compute the mask of the next token
//! while the device runs a step. A grammar can be slow at any token, so each request has its own
//! channel for replies, and slow constraints never occupy all threads.

use super::request::{Constraint, Failure};
use super::running::guarded;
use super::shared::Shared;
use crate::sample::TokenMask;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(super) type Boxed = Box<dyn Constraint>;
/// The mask of a constraint, or why it failed.
pub(super) type Mask = Result<TokenMask, Failure>;

/// An answer of a thread to a request.
pub(super) enum Reply {
    /// The token was added. `true`: the constraint is complete.
    Accepted(Result<bool, Failure>),
    /// Returns the constraint, with the mask of the next token and the time that both took.
    Mask { constraint: Boxed, mask: Mask, took: Duration },
}

/// The state that a request shares with the thread that computes its masks.
#[derive(Default)]
pub(super) struct Progress {
    /// Start of the work.
    pub started: OnceLock<Instant>,
    /// Whether no request waits for the result any more.
    pub gone: AtomicBool,
}

/// Work for a thread.
pub(super) struct Job {
    pub constraint: Boxed,
    /// The token to add first.
    pub token: Option<u32>,
    /// Whether this token is the last one, so that no mask follows.
    pub last: bool,
    /// Whether the constraint was slow before.
    pub slow: bool,
    pub replies: Sender<Reply>,
    pub progress: Arc<Progress>,
}

/// The threads. They end when this is dropped.
pub(super) struct Masks {
    queue: Arc<Queue>,
    threads: usize,
    most: usize,
}

struct Queue {
    lists: Mutex<Lists>,
    more: Condvar,
    shared: Arc<Shared>,
    /// Maximum number of threads that work on slow constraints.
    most_slow: usize,
}

#[derive(Default)]
struct Lists {
    quick: VecDeque<Job>,
    slow: VecDeque<Job>,
    slow_running: usize,
    idle: usize,
    closed: bool,
}

impl Masks {
    pub fn new(shared: Arc<Shared>) -> Masks {
        // At least one thread for each kind of constraint (quick and slow).
        let most = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        let queue =
            Queue { lists: Mutex::default(), more: Condvar::new(), shared, most_slow: most / 2 };
        Masks { queue: Arc::new(queue), threads: 0, most }
    }

    /// Gives work to the threads.
    ///
    /// # Errors
    /// The system cannot start any thread.
    pub fn ask(&mut self, job: Job) -> Result<(), Failure> {
        let mut lists = self.queue.lock();
        if job.slow { &mut lists.slow } else { &mut lists.quick }.push_back(job);
        let short = lists.idle < lists.quick.len() + lists.slow.len();
        drop(lists);
        self.queue.more.notify_one();
        if short && self.threads < self.most {
            let queue = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new().name("kjit-masks".to_owned());
            match thread.spawn(move || queue.work()) {
                Ok(_) => self.threads += 1,
                Err(e) if self.threads == 0 => {
                    return Err(Failure::Memory(format!("no thread for a constraint: {e}")));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Masks {
    fn drop(&mut self) {
        let mut lists = self.queue.lock();
        lists.closed = true;
        let left = (std::mem::take(&mut lists.quick), std::mem::take(&mut lists.slow));
        drop(lists);
        drop(left);
        self.queue.more.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        // A panic cannot leave this state inconsistent: only whole entries are moved.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next work; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut lists = self.lock();
        loop {
            if lists.closed {
                return None;
            }
            if let Some(job) = lists.quick.pop_front() {
                return Some(job);
            }
            if lists.slow_running < self.most_slow
                && let Some(job) = lists.slow.pop_front()
            {
                lists.slow_running += 1;
                return Some(job);
            }
            lists.idle += 1;
            lists = self.more.wait(lists).unwrap_or_else(PoisonError::into_inner);
            lists.idle -= 1;
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            let slow = job.slow;
            self.run(job);
            if slow {
                self.lock().slow_running -= 1;
                self.more.notify_one();
            }
        }
    }

    /// Adds the token and computes the mask. A panic becomes the request's failure.
    fn run(&self, job: Job) {
        let Job { mut constraint, token, last, replies, progress, .. } = job;
        let start = *progress.started.get_or_init(Instant::now);
        let gone = || progress.gone.load(Ordering::Relaxed);
        if gone() {
            return;
        }
        if let Some(token) = token {
            let accepted = guarded(|| constraint.accept(token))
                .and_then(|accepted| accepted.map_err(Failure::Constraint));
            let over = last || !matches!(accepted, Ok(false));
            self.reply(&replies, Reply::Accepted(accepted));
            if over || gone() {
                return;
            }
        }
        let mask = guarded(|| constraint.allowed())
            .and_then(|allowed| allowed.map_err(Failure::Constraint));
        self.reply(&replies, Reply::Mask { constraint, mask, took: start.elapsed() });
    }

    fn reply(&self, to: &Sender<Reply>, reply: Reply) {
        if to.send(reply).is_ok() {
            // Takes the lock, so that a worker that is about to wait is woken.
            drop(self.shared.lock());
            self.shared.wake();
        }
    }
}
