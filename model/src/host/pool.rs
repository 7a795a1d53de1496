//! Threads that wait for work, for steps of a few microseconds.
//!
//! A step is a closure over task numbers; threads take the next number until none is left. The caller works
//! too, and when the numbers run out it *closes* the step and waits only for threads that are inside a task:
//! one that is asleep, or was put off its core by another program, holds up nobody. Waiting threads spin for
//! some microseconds (the next step of a model follows at once) and then sleep, so an idle pool costs
//! nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds of spinning before a thread sleeps: some 30 µs, longer than the serial parts between a model's
/// steps.
const SPINS: usize = 1500;

/// A step's work: called with the task's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// State of the step, in one word so that joining and closing cannot miss each other: the lowest bit says
/// that the step is open, the rest counts threads inside.
const OPEN: usize = 1;
const INSIDE: usize = 2;

struct Shared {
    state: AtomicUsize,
    /// Counts steps: a change wakes spinning threads.
    epoch: AtomicUsize,
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// The open step's closure; written only while the state is 0, read only by threads inside.
    work: std::cell::UnsafeCell<Option<*const Work<'static>>>,
    failed: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `work` is written by the one caller of `Pool::run` (which has `&mut Pool`) while no thread is
// inside (state 0), and read by threads that are inside; `state`'s acquire and release order the two. The
// closure behind the pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above: the pointer is used only under that protocol.
unsafe impl Send for Shared {}

/// A number of threads, the caller's included.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads − 1` threads; fewer if the system refuses some.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            state: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            work: std::cell::UnsafeCell::new(None),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let spawn = |i: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("kjit-cpu-{i}")).spawn(move || shared.serve()).ok()
        };
        let threads = (1..threads.max(1)).map_while(spawn).collect();
        Pool { shared, threads }
    }

    /// Threads that work, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work` with every number below `tasks`, each once, and returns when all are done.
    ///
    /// # Panics
    /// If a task panicked, on whatever thread.
    pub fn run(&mut self, tasks: usize, work: &Work<'_>) {
        if tasks <= 1 || self.threads.is_empty() {
            (0..tasks).for_each(work);
            return;
        }
        let s = &*self.shared;
        // SAFETY: only the lifetime changes. Nobody calls the closure after this function: it returns (or
        // unwinds) only when the step is closed and no thread is inside.
        let forever = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: the state is 0, so no thread is inside and none can enter; see `Shared`.
        unsafe { *s.work.get() = Some(forever) };
        s.next.store(0, Relaxed);
        s.tasks.store(tasks, Relaxed);
        s.state.store(OPEN, Release);
        s.epoch.fetch_add(1, SeqCst);
        if s.sleepers.load(SeqCst) > 0 {
            drop(s.lock.lock().unwrap_or_else(PoisonError::into_inner));
            s.wake.notify_all();
        }
        // Closes the step also when a task of this thread panics.
        let close = Close(s);
        s.work_off(work);
        drop(close);
        if s.failed.swap(false, Relaxed) {
            // The panic of the other thread goes on in this one, which waits for its result.
            std::panic::resume_unwind(Box::new("a task on another thread panicked"));
        }
    }
}

/// Closes the step and waits for those inside.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let s = self.0;
        s.state.fetch_and(!OPEN, AcqRel);
        let mut spins = 0;
        while s.state.load(Acquire) != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Shared {
    /// Takes tasks until none is left.
    fn work_off(&self, work: &Work<'_>) {
        let tasks = self.tasks.load(Relaxed);
        loop {
            let task = self.next.fetch_add(1, Relaxed);
            if task >= tasks {
                return;
            }
            work(task);
        }
    }

    /// What a thread of the pool does all its life.
    fn serve(&self) {
        let mut seen = 0;
        while let Some(epoch) = self.await_epoch(seen) {
            seen = epoch;
            let entered = self.state.fetch_update(AcqRel, Acquire, |s| (s & OPEN != 0).then_some(s + INSIDE));
            if entered.is_err() {
                continue; // over already
            }
            // SAFETY: this thread is inside an open step: the pointer was written before it opened, and the
            // closure behind it lives until the caller has seen this thread leave.
            let work = unsafe { (*self.work.get()).map(|w| &*w) };
            if let Some(work) = work {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.work_off(work)));
                if result.is_err() {
                    self.failed.store(true, Relaxed);
                }
            }
            self.state.fetch_sub(INSIDE, Release);
        }
    }

    /// The number of a step later than `seen`, or `None` at the end.
    fn await_epoch(&self, seen: usize) -> Option<usize> {
        for _ in 0..SPINS {
            let epoch = self.epoch.load(Acquire);
            if self.stop.load(Relaxed) {
                return None;
            }
            if epoch != seen {
                return Some(epoch);
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Announced before looking once more: either the caller sees a sleeper and wakes it, or this sees the
        // caller's step.
        self.sleepers.fetch_add(1, SeqCst);
        let epoch = loop {
            let epoch = self.epoch.load(SeqCst);
            if self.stop.load(SeqCst) {
                break None;
            }
            if epoch != seen {
                break Some(epoch);
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, SeqCst);
        epoch
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for t in self.threads.drain(..) {
            // A thread that panicked outside a task has nothing left to give back.
            let _ = t.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_exactly_once_in_each_of_many_steps() {
        let mut pool = Pool::new(3);
        for tasks in (0..400).chain([10_000]) {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|i| {
                counts[i].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{tasks} tasks");
        }
    }

    #[test]
    fn a_pool_that_slept_works_again() {
        let mut pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let sum = AtomicUsize::new(0);
            pool.run(100, &|i| {
                sum.fetch_add(i, Relaxed);
            });
            assert_eq!(sum.load(Relaxed), 4950);
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2);
        for _ in 0..20 {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.run(64, &|i| {
                    if i == 33 {
                        panic!("on purpose")
                    }
                });
            }));
            assert!(caught.is_err());
        }
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i| {
            sum.fetch_add(i, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 45);
    }
}
