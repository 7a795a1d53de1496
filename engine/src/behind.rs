//! Compiling behind the work: what is not needed yet is made while the caller goes on with what it
//! has.

use crate::code_object::CodeObject;
use crate::engine::{Engine, lock};
use crate::error::{Error, Result};
use crate::gate::Urgency;
use crate::key::Job;
use crate::service::Asked;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Jobs that are compiled while the caller goes on, in the order given, after everything that
/// somebody waits for. Nothing of a device is touched: loading is the caller's, at a moment of its
/// choice. Dropped: what has not begun is left, what has begun is finished and kept in the cache
/// unless the process ends first.
pub struct Behind {
    shared: Arc<Shared>,
    jobs: usize,
}

struct Shared {
    stop: AtomicBool,
    /// Jobs that have their answer.
    done: AtomicUsize,
    /// The answers, once the last lane has ended; none for what was not begun.
    answers: Mutex<Option<Vec<Option<Result<CodeObject>>>>>,
    ended: Condvar,
}

impl Engine {
    /// Begins to compile jobs on threads of their own, and returns.
    ///
    /// # Errors
    /// [`Error::Io`] when the system gives no thread.
    pub fn compile_behind(&self, jobs: Vec<Job>) -> Result<Behind> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            answers: Mutex::default(),
            ended: Condvar::new(),
        });
        let behind = Behind { shared: Arc::clone(&shared), jobs: jobs.len() };
        let engine = self.clone();
        let work = move || {
            let count = |_: usize, _: &Result<CodeObject>| {
                shared.done.fetch_add(1, Ordering::Relaxed);
            };
            let asked = Asked { urgency: Urgency::Behind, stop: Some(&shared.stop), own: false };
            let answers = engine.compile_asked(&jobs, &asked, &count);
            *lock(&shared.answers) = Some(answers);
            shared.ended.notify_all();
        };
        let thread = std::thread::Builder::new().name("kjit compiles behind".into()).spawn(work);
        thread
            .map_err(|e| Error::Io { path: "a thread that compiles".into(), why: e.to_string() })?;
        Ok(behind)
    }
}

impl Behind {
    /// How many jobs have an answer, and of how many. Costs one load.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.shared.done.load(Ordering::Relaxed), self.jobs)
    }

    /// Takes the answers, one for each job in order, if all are there; once. Does not wait.
    #[must_use]
    pub fn take(&self) -> Option<Vec<Result<CodeObject>>> {
        let (done, all) = self.progress();
        if done < all {
            return None;
        }
        let mut answers = lock(&self.shared.answers);
        answers.take_if(|a| a.iter().all(Option::is_some))?.into_iter().collect()
    }

    /// Begins nothing more, and waits so long at most for what has begun: it is in the cache then.
    /// The answers that there are; none for a job that was not begun or not ended in time.
    #[must_use]
    pub fn finish(self, at_most: Duration) -> Vec<Option<Result<CodeObject>>> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + at_most;
        let mut answers = lock(&self.shared.answers);
        loop {
            if let Some(answers) = answers.take() {
                return answers;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return vec![None; self.jobs];
            }
            answers = self
                .shared
                .ended
                .wait_timeout(answers, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}
