//! Limits parallel compiles over all callers. Urgent compiles, whose callers wait, run before
//! background compiles.

use crate::lock::lock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The urgency of a compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A caller waits for the result.
    Now,
    /// A background compile.
    Background,
}

/// The limiter of parallel compiles.
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

struct GateState {
    free: usize,
    /// Number of urgent jobs that have not started. Background jobs wait until it is 0.
    urgent: usize,
}

/// The jobs of one call. Urgent jobs are counted from the start of the call, so that no background
/// job starts while they are looked up.
pub(crate) struct CompileBatch<'a> {
    gate: &'a Gate,
    urgency: Urgency,
    left: AtomicUsize,
}

/// Permission to compile, returned on drop.
pub(crate) struct CompilePermit<'a>(&'a Gate);

impl Gate {
    pub fn new(room: usize) -> Gate {
        Gate {
            state: Mutex::new(GateState { free: room.max(1), urgent: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Registers the jobs of a call. Urgent jobs count from now on.
    pub fn register(&self, urgency: Urgency, jobs: usize) -> CompileBatch<'_> {
        let left = if urgency == Urgency::Now { jobs } else { 0 };
        lock(&self.state).urgent += left;
        CompileBatch { gate: self, urgency, left: AtomicUsize::new(left) }
    }
}

impl<'a> CompileBatch<'a> {
    /// Removes a job that was found in the cache.
    pub fn skip(&self) {
        self.count_one(&mut lock(&self.gate.state));
        self.gate.changed.notify_all();
    }

    /// Waits for permission to compile.
    pub fn acquire(&self) -> CompilePermit<'a> {
        let mut state = lock(&self.gate.state);
        while state.free == 0 || (self.urgency == Urgency::Background && state.urgent > 0) {
            state = self.gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.free -= 1;
        self.count_one(&mut state);
        // This may have been the last urgent job: background jobs may run now.
        self.gate.changed.notify_all();
        CompilePermit(self.gate)
    }

    fn count_one(&self, state: &mut MutexGuard<'_, GateState>) {
        let counted = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok();
        state.urgent -= usize::from(counted);
    }
}

impl Drop for CompileBatch<'_> {
    fn drop(&mut self) {
        lock(&self.gate.state).urgent -= *self.left.get_mut();
        self.gate.changed.notify_all();
    }
}

impl Drop for CompilePermit<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).free += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn free_and_urgent(gate: &Gate) -> (usize, usize) {
        let state = lock(&gate.state);
        (state.free, state.urgent)
    }

    #[test]
    fn gate_admits_at_most_its_capacity() {
        let gate = Gate::new(3);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for n in 0..24 {
                let (gate, inside, most) = (&gate, &inside, &most);
                scope.spawn(move || {
                    let line = gate
                        .register(if n % 2 == 0 { Urgency::Now } else { Urgency::Background }, 1);
                    let _pass = line.acquire();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(most.into_inner(), 3);
        assert_eq!(free_and_urgent(&gate), (3, 0));
    }

    #[test]
    fn urgent_jobs_run_before_background_jobs() {
        let gate = Gate::new(1);
        let order = Mutex::new(Vec::new());
        // Three urgent jobs have not even been looked up: no background job may start.
        let urgent = gate.register(Urgency::Now, 4);
        std::thread::scope(|scope| {
            let (gate, order, urgent) = (&gate, &order, &urgent);
            for _ in 0..3 {
                scope.spawn(move || {
                    let _pass = gate.register(Urgency::Background, 1).acquire();
                    order.lock().unwrap().push("background");
                });
            }
            std::thread::sleep(Duration::from_millis(30));
            // One of them is found in the cache.
            urgent.skip();
            for _ in 0..3 {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(10));
                    let _pass = urgent.acquire();
                    order.lock().unwrap().push("now");
                });
            }
        });
        assert_eq!(
            order.into_inner().unwrap(),
            ["now", "now", "now", "background", "background", "background"]
        );
    }

    #[test]
    fn dropped_jobs_do_not_block_the_gate() {
        let gate = Gate::new(1);
        drop(gate.register(Urgency::Now, 5));
        drop(gate.register(Urgency::Background, 1).acquire());
        assert_eq!(free_and_urgent(&gate), (1, 0));
    }
}
