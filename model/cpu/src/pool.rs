//! Threads that wait for work, for steps of a few microseconds.
//!
//! A step is a closure over task numbers. Each thread has a *share*, a run of successive numbers
//! with a counter on a cache line of its own, so that taking a task disturbs nobody; it looks at
//! the shares of others when its own is empty. With one counter for all, a step of 120 tasks passes
//! one line between cores 120 times: by estimate, not measured, some 50 ns each, where a task takes
//! 0.3 µs. The caller works too, goes through all shares, and waits only for tasks that somebody
//! has taken: a thread that is asleep, or was put off its core by another program, holds up nobody.
//! The same thread has the same rows of a matrix in each step, as far as it is in time. Waiting
//! threads spin for some microseconds (the next step of a model follows at once) and then sleep, so
//! an idle pool costs nothing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds of spinning before a thread sleeps: some 30 µs, longer than the serial parts between a
/// model's steps.
const SPINS: usize = 1500;

/// Steps after which all shares are brought to the step's number: one that had no task for 2³¹ of
/// them would else look as if it were ahead.
const RENEWED: u32 = 1 << 30;

/// A step's work: called with the task's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// What has a cache line of its own, and the one that the processor fetches with it.
#[repr(align(128))]
struct Line<T>(T);

/// Two numbers in one word: which step, and how many of something in it.
fn word(step: u32, count: u32) -> u64 {
    u64::from(step) << 32 | u64::from(count)
}

fn step_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn count_of(word: u64) -> u32 {
    word as u32
}

struct Shared {
    /// The step's number and its tasks, in one word, so that nobody has one without the other. A
    /// change wakes spinning threads.
    step: Line<AtomicU64>,
    /// Of each thread: the last step in which somebody took a task of its share, and how many were
    /// taken.
    shares: Box<[Line<AtomicU64>]>,
    /// Tasks of the step that are done.
    done: Line<AtomicUsize>,
    /// The step's closure; written only between steps, read only by who has taken a task and not
    /// done it yet.
    work: std::cell::UnsafeCell<Option<*const Work<'static>>>,
    failed: AtomicBool,
    stop: AtomicBool,
    /// Rounds of spinning before a thread sleeps.
    patience: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `work` is written by the one caller of `Pool::run` (which has `&mut Pool`) while all
// tasks of the step before are done, and read by threads that have taken a task of this step, which
// is not over before that task is done. `step` (written after, read before) and `done` (the other
// way round) order the two. The closure behind the pointer is `Sync`.
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
            step: Line(AtomicU64::new(0)),
            shares: (0..threads.max(1)).map(|_| Line(AtomicU64::new(0))).collect(),
            done: Line(AtomicUsize::new(0)),
            work: std::cell::UnsafeCell::new(None),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            patience: AtomicUsize::new(SPINS),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let spawn = |i: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("kjit-cpu-{i}"))
                .spawn(move || shared.serve(i))
                .ok()
        };
        let threads = (1..threads.max(1)).map_while(spawn).collect();
        Pool { shared, threads }
    }

    /// Has threads spin for some half a millisecond before they sleep: for steps with another
    /// device's between them.
    pub fn be_patient(&self) {
        self.shared.patience.store(16 * SPINS, Relaxed);
    }

    /// Threads that work, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work` with every number below `tasks`, each once, and returns when all are done.
    ///
    /// # Panics
    /// If a task panicked, on whatever thread; each of the others may have run or not.
    pub fn run(&mut self, tasks: usize, work: &Work<'_>) {
        let Some(count) = u32::try_from(tasks).ok().filter(|n| *n > 1 && !self.threads.is_empty())
        else {
            (0..tasks).for_each(work);
            return;
        };
        let s = &*self.shared;
        // SAFETY: only the lifetime changes. Nobody calls the closure after this function: it
        // returns (or unwinds) only when every task is done, and none can be taken twice.
        let forever = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: all tasks of the step before are done, and none of this one can be taken yet; see
        // `Shared`.
        unsafe { *s.work.get() = Some(forever) };
        s.done.0.store(0, Relaxed);
        let step = step_of(s.step.0.load(Relaxed)).wrapping_add(1);
        if step.is_multiple_of(RENEWED) {
            s.shares
                .iter()
                .for_each(|share| share.0.store(word(step.wrapping_sub(1), u32::MAX), Release));
        }
        s.step.0.store(word(step, count), SeqCst);
        if s.sleepers.load(SeqCst) > 0 {
            drop(s.lock.lock().unwrap_or_else(PoisonError::into_inner));
            s.wake.notify_all();
        }
        let close = Close { shared: s, step, tasks };
        let result = s.work_off(0, step, tasks);
        drop(close);
        // A panic of another thread goes on in this one, which waits for its result.
        if let Err(panic) = result {
            s.failed.store(false, Relaxed);
            resume_unwind(panic);
        }
        if s.failed.swap(false, Relaxed) {
            resume_unwind(Box::new("a task on another thread panicked"));
        }
    }
}

/// Takes what nobody has taken, without doing it, and waits for what somebody has.
struct Close<'a> {
    shared: &'a Shared,
    step: u32,
    tasks: usize,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let s = self.shared;
        // Nothing is left but after a panic.
        let left =
            (0..s.shares.len()).map(|i| s.take_rest(i, self.step, self.tasks)).sum::<usize>();
        s.done.0.fetch_add(left, Release);
        let mut spins = 0;
        while s.done.0.load(Acquire) != self.tasks {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Shared {
    /// The first task of a share, and how many it has.
    fn share(&self, i: usize, tasks: usize) -> (usize, u32) {
        let at = |i: usize| i * tasks / self.shares.len();
        // No more than `tasks`, which is a u32.
        (at(i), (at(i + 1) - at(i)) as u32)
    }

    /// Takes up to `most` tasks of a share; the first and how many. None is left, or the step is
    /// over: 0.
    ///
    /// Who is late by whole steps takes nothing: in a step that is over, every share that has tasks
    /// was taken to its end, so its word says that step or a later one; and one that has none in
    /// that step is not looked at. To take one step for another it would have to be late by 2³¹ of
    /// them, which are hours.
    fn take(&self, i: usize, step: u32, tasks: usize, most: u32) -> (usize, u32) {
        let (first, len) = self.share(i, tasks);
        let Some(Line(share)) = self.shares.get(i).filter(|_| len > 0) else { return (first, 0) };
        let mut seen = share.load(Acquire);
        loop {
            let ahead = step_of(seen).wrapping_sub(step).cast_signed();
            let taken = if ahead == 0 { count_of(seen) } else { 0 };
            let n = most.min(len.saturating_sub(taken));
            if ahead > 0 || n == 0 {
                return (first, 0);
            }
            match share.compare_exchange_weak(seen, word(step, taken + n), AcqRel, Acquire) {
                Ok(_) => return (first + taken as usize, n),
                Err(now) => seen = now,
            }
        }
    }

    fn take_rest(&self, i: usize, step: u32, tasks: usize) -> usize {
        self.take(i, step, tasks, u32::MAX).1 as usize
    }

    /// Does tasks of the thread's share, then of others', until none is left; or until one panics.
    fn work_off(&self, own: usize, step: u32, tasks: usize) -> std::thread::Result<()> {
        let n = self.shares.len();
        // With a task or less for each thread only the caller looks at others' shares: who is still
        // to come for its one task is not helped by ten that ask for it.
        let shares = if own == 0 || tasks > n { n } else { 1 };
        let mut done = 0;
        let mut result = Ok(());
        'shares: for i in (own..n).chain(0..own).take(shares) {
            loop {
                let (task, taken) = self.take(i, step, tasks, 1);
                if taken == 0 {
                    break;
                }
                done += 1;
                // SAFETY: this thread has taken a task that is not done: the pointer was written
                // before the step was there to be seen, and the closure behind it lives until the
                // caller has seen it done.
                if let Some(work) = unsafe { (*self.work.get()).map(|w| &*w) } {
                    result = catch_unwind(AssertUnwindSafe(|| work(task)));
                    if result.is_err() {
                        break 'shares;
                    }
                }
            }
        }
        if result.is_err() {
            self.failed.store(true, Relaxed);
        }
        if done > 0 {
            self.done.0.fetch_add(done, Release);
        }
        result
    }

    /// What a thread of the pool does all its life.
    fn serve(&self, own: usize) {
        let mut seen = 0;
        while let Some(now) = self.await_step(seen) {
            seen = now;
            // A panic is told by `failed`.
            let _ = self.work_off(own, step_of(now), count_of(now) as usize);
        }
    }

    /// A later step than `seen`, or `None` at the end.
    fn await_step(&self, seen: u64) -> Option<u64> {
        for _ in 0..self.patience.load(Relaxed) {
            let step = self.step.0.load(Acquire);
            if self.stop.load(Relaxed) {
                return None;
            }
            if step != seen {
                return Some(step);
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Announced before looking once more: either the caller sees a sleeper and wakes it, or
        // this sees the caller's step.
        self.sleepers.fetch_add(1, SeqCst);
        let step = loop {
            let step = self.step.0.load(SeqCst);
            if self.stop.load(SeqCst) {
                break None;
            }
            if step != seen {
                break Some(step);
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, SeqCst);
        step
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
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
        for threads in [1, 2, 3, 7, 16] {
            let mut pool = Pool::new(threads);
            for tasks in (0..200).chain([10_000]) {
                each_once(&mut pool, tasks);
            }
        }
    }

    fn each_once(pool: &mut Pool, tasks: usize) {
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, &|i| {
            counts[i].fetch_add(1, Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{tasks} tasks");
    }

    #[test]
    fn numbers_of_steps_may_begin_anew() {
        for before in [u32::MAX - 50, RENEWED - 50, 3 * RENEWED - 50] {
            let mut pool = Pool::new(5);
            pool.shared.step.0.store(word(before, 0), SeqCst);
            // The last shares had no task for as long as they may: two tasks are in shares 2 and 4.
            for (share, ago) in pool.shared.shares.iter().zip([0, 1, 2, RENEWED, RENEWED]) {
                share.0.store(word(before.wrapping_sub(ago), 1), SeqCst);
            }
            for step in 0..100 {
                each_once(&mut pool, 2 + usize::from(step > 60) * 11);
            }
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
