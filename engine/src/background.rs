//! Background compilation: kernels that are not needed yet are compiled while the caller continues
//! its work.

use crate::code_object::CodeObject;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::gate::Urgency;
use crate::key::Job;
use crate::lock::lock;
use crate::service::CompileOptions;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Jobs that are compiled in the background, in the given order, after all compiles that a caller
/// waits for. No device is used; the caller loads the results. If this is dropped, jobs that have
/// not started are skipped. Running jobs finish and are cached, unless the process ends first.
pub struct BackgroundCompiles {
    shared: Arc<QueueState>,
    jobs: usize,
}

struct QueueState {
    stop: AtomicBool,
    /// Number of finished jobs.
    done: AtomicUsize,
    /// The results. They are set after the last thread has ended; `None` for jobs that were not
    /// started.
    answers: Mutex<Option<Vec<Option<Result<CodeObject>>>>>,
    ended: Condvar,
}

impl Engine {
    /// Starts to compile jobs on background threads and returns.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses a thread.
    pub fn compile_in_background(&self, jobs: Vec<Job>) -> Result<BackgroundCompiles> {
        let shared = Arc::new(QueueState {
            stop: AtomicBool::new(false),
            done: AtomicUsize::new(0),
            answers: Mutex::default(),
            ended: Condvar::new(),
        });
        let compiles = BackgroundCompiles { shared: Arc::clone(&shared), jobs: jobs.len() };
        let engine = self.clone();
        let work = move || {
            let count = |_: usize, _: &Result<CodeObject>| {
                shared.done.fetch_add(1, Ordering::Relaxed);
            };
            let options = CompileOptions {
                urgency: Urgency::Background,
                stop: Some(&shared.stop),
                own: false,
            };
            let answers = engine.compile_with_options(&jobs, &options, &count);
            *lock(&shared.answers) = Some(answers);
            shared.ended.notify_all();
        };
        let thread = std::thread::Builder::new().name("kjit background compile".into()).spawn(work);
        thread.map_err(|e| Error::Io {
            path: "thread for background compiles".into(),
            why: e.to_string(),
        })?;
        Ok(compiles)
    }
}

impl BackgroundCompiles {
    /// The number of finished jobs, and of all jobs. It takes one atomic load.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.shared.done.load(Ordering::Relaxed), self.jobs)
    }

    /// Takes the results, one per job in order, if all jobs are finished. It works once and does
    /// not wait.
    #[must_use]
    pub fn take(&self) -> Option<Vec<Result<CodeObject>>> {
        let (done, all) = self.progress();
        if done < all {
            return None;
        }
        let mut answers = lock(&self.shared.answers);
        answers.take_if(|a| a.iter().all(Option::is_some))?.into_iter().collect()
    }

    /// Starts no more jobs, and waits at most this long for running ones, which are then in the
    /// cache. Returns the results. The result is `None` for jobs that were not started or not
    /// finished in time.
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

impl Drop for BackgroundCompiles {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}
