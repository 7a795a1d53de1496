//! A thread pool for steps of a few microseconds.
//!
//! A step is a closure over task numbers. Each thread has a *share*: a range of task numbers with a
//! counter on its own cache line, so that taking a task causes no contention. A thread whose share
//! is empty takes tasks of other shares. A single shared counter would be slow: a step of 120 tasks
//! would move its cache line between cores 120 times, about 50 ns each (an estimate), while a task
//! takes 0.3 µs.
//!
//! The caller works as well. It takes tasks of all shares and waits only for tasks that are already
//! taken. So it does not wait for a thread that sleeps or has lost its core. A thread usually gets
//! the same rows of a matrix in each step. Waiting threads spin for some microseconds, because the
//! next step usually follows immediately. Then they sleep, so an idle pool uses no CPU time.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds of spinning before a thread sleeps: about 30 µs. The serial parts between the steps of a
/// model are shorter.
const SPINS: usize = 1500;

/// Number of steps after which all shares get the current step number. Otherwise, after 2³¹ steps
/// without a task, the number of a share would compare as newer than the current one.
const RENEWAL_STEPS: u32 = 1 << 30;

/// The work of a step. It is called with the number of a task.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// Padding to two cache lines: the line of the value and the adjacent line that the CPU prefetches.
#[repr(align(128))]
struct CacheLines<T>(T);

/// A step number and a count, packed into one word.
fn word(step: u32, count: u32) -> u64 {
    u64::from(step) << 32 | u64::from(count)
}

fn step_of(word: u64) -> u32 {
    (word >> 32) as u32
}

fn count_of(word: u64) -> u32 {
    word as u32
}

struct PoolShared {
    /// The step number and its number of tasks in one u64, so that they are read together. A change
    /// wakes spinning threads.
    step: CacheLines<AtomicU64>,
    /// For each thread: the last step in which a task of its share was taken, and the number of
    /// tasks taken.
    shares: Box<[CacheLines<AtomicU64>]>,
    /// Number of finished tasks of the step.
    done: CacheLines<AtomicUsize>,
    /// The closure of the step. It is written only between steps, and read only by threads with an
    /// unfinished task.
    work: std::cell::UnsafeCell<Option<*const Work<'static>>>,
    failed: AtomicBool,
    stop: AtomicBool,
    /// Rounds of spinning before a thread sleeps.
    patience: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: only the caller of `Pool::run`, which has `&mut Pool`, writes `work`, and only when all
// tasks of the previous step are done. Threads read it only after they took a task of this step,
// and the step does not end before that task is done. `step` (written after `work`, read before it)
// and `done` (the reverse) order these accesses. The closure behind the pointer is `Sync`.
unsafe impl Sync for PoolShared {}
// SAFETY: the pointer in `work` is used only under the protocol that the `Sync` implementation
// states.
unsafe impl Send for PoolShared {}

/// A pool of threads. The caller is one of them.
pub struct Pool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads − 1` threads, or fewer if the system refuses to start more.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(PoolShared {
            step: CacheLines(AtomicU64::new(0)),
            shares: (0..threads.max(1)).map(|_| CacheLines(AtomicU64::new(0))).collect(),
            done: CacheLines(AtomicUsize::new(0)),
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

    /// Threads spin for about half a millisecond before they sleep. This is used if steps alternate
    /// with steps of another device.
    pub fn spin_longer(&self) {
        self.shared.patience.store(16 * SPINS, Relaxed);
    }

    /// Number of working threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `work` once with every number below `tasks`, and returns when all are done.
    ///
    /// # Panics
    /// If a task panicked, on any thread. Other tasks may or may not have run.
    pub fn run(&mut self, tasks: usize, work: &Work<'_>) {
        let Some(count) = u32::try_from(tasks).ok().filter(|n| *n > 1 && !self.threads.is_empty())
        else {
            (0..tasks).for_each(work);
            return;
        };
        let s = &*self.shared;
        // SAFETY: only the lifetime changes. The closure is not called after this function returns
        // or unwinds: that happens only when every task is done, and no task can be taken twice.
        let forever = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work) };
        // SAFETY: all tasks of the previous step are done, and no task of this step can be taken
        // yet. So no thread reads `work`; see `PoolShared`.
        unsafe { *s.work.get() = Some(forever) };
        s.done.0.store(0, Relaxed);
        let step = step_of(s.step.0.load(Relaxed)).wrapping_add(1);
        if step.is_multiple_of(RENEWAL_STEPS) {
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
        let result = s.run_tasks(0, step, tasks);
        drop(close);
        // A panic of another thread is raised again in this one, which needs the result.
        if let Err(panic) = result {
            s.failed.store(false, Relaxed);
            resume_unwind(panic);
        }
        if s.failed.swap(false, Relaxed) {
            resume_unwind(Box::new("a task on another thread panicked"));
        }
    }
}

/// A guard that takes the remaining tasks without running them, and waits for tasks in progress.
struct Close<'a> {
    shared: &'a PoolShared,
    step: u32,
    tasks: usize,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        let s = self.shared;
        // Tasks remain only after a panic.
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

impl PoolShared {
    /// The first task of a share, and the number of its tasks.
    fn share(&self, i: usize, tasks: usize) -> (usize, u32) {
        let at = |i: usize| i * tasks / self.shares.len();
        // The number is at most `tasks`, which fits in a u32.
        (at(i), (at(i + 1) - at(i)) as u32)
    }

    /// Takes up to `most` tasks of a share. Returns the first task and the number of tasks; the
    /// number is 0 if no task is left or the step is over.
    ///
    /// A thread that is late by whole steps takes no task. When a step is over, all its tasks were
    /// taken. So the word of every share with tasks contains the number of that step or a later
    /// one; shares without tasks in that step are skipped. A wrong match would need a delay of 2³¹
    /// steps, which is hours.
    fn take(&self, i: usize, step: u32, tasks: usize, most: u32) -> (usize, u32) {
        let (first, len) = self.share(i, tasks);
        let Some(CacheLines(share)) = self.shares.get(i).filter(|_| len > 0) else {
            return (first, 0);
        };
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

    /// Runs tasks of the thread's share, then of other shares, until no task is left or one panics.
    fn run_tasks(&self, own: usize, step: u32, tasks: usize) -> std::thread::Result<()> {
        let n = self.shares.len();
        // If there is at most one task per thread, only the caller takes tasks of other shares: ten
        // threads that compete for the single task of a late thread would not help.
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
                // SAFETY: this thread has taken a task that is not done. The pointer was written
                // before the step became visible, and the closure lives until the caller has seen
                // all tasks done.
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

    /// The main loop of a pool thread.
    fn serve(&self, own: usize) {
        let mut seen = 0;
        while let Some(now) = self.await_step(seen) {
            seen = now;
            // A panic is reported by `failed`.
            let _ = self.run_tasks(own, step_of(now), count_of(now) as usize);
        }
    }

    /// Waits for a step after `seen`; `None` when the pool ends.
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
        // The thread registers as a sleeper before it looks again: either the caller sees the
        // sleeper and wakes it, or this thread sees the caller's step.
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
            // A thread that panicked outside a task has no result.
            let _ = t.join();
        }
    }
}

/// Minimum number of elements for running an elementwise operation on several threads.
pub(super) const SERIAL: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_runs_every_task_once_per_step() {
        for threads in [1, 2, 3, 7, 16] {
            let mut pool = Pool::new(threads);
            for tasks in (0..200).chain([10_000]) {
                assert_runs_each_task_once(&mut pool, tasks);
            }
        }
    }

    fn assert_runs_each_task_once(pool: &mut Pool, tasks: usize) {
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, &|i| {
            counts[i].fetch_add(1, Relaxed);
        });
        assert!(counts.iter().all(|c| c.load(Relaxed) == 1), "{tasks} tasks");
    }

    #[test]
    fn pool_step_counter_wraps_around() {
        for before in [u32::MAX - 50, RENEWAL_STEPS - 50, 3 * RENEWAL_STEPS - 50] {
            let mut pool = Pool::new(5);
            pool.shared.step.0.store(word(before, 0), SeqCst);
            // The last shares had no task for the longest possible time. Two tasks are in shares 2
            // and 4.
            for (share, ago) in
                pool.shared.shares.iter().zip([0, 1, 2, RENEWAL_STEPS, RENEWAL_STEPS])
            {
                share.0.store(word(before.wrapping_sub(ago), 1), SeqCst);
            }
            for step in 0..100 {
                assert_runs_each_task_once(&mut pool, 2 + usize::from(step > 60) * 11);
            }
        }
    }

    #[test]
    fn sleeping_pool_resumes_work() {
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
    fn task_panic_reaches_caller_and_pool_survives() {
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
