//! Separates calls that would break a capture from captures of a device.
//!
//! During a capture the driver refuses a free, a module unload or a device-wide wait from any
//! thread, and the capture is lost ("operation failed due to a previous error during capture"). So
//! these calls run between captures: immediately, or after the last capture that is in progress. A
//! capture begins after running calls have ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Maximum time that a capture waits before it begins. A running call may itself wait for a kernel
/// of this device, and that kernel for a launch of this thread. After this time the capture begins
/// anyway and may be lost.
const LONGEST: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct CaptureState {
    /// Number of active captures.
    captures: usize,
    /// Number of running calls.
    working: usize,
    /// Work to run after the captures.
    later: Vec<Work>,
}

/// The active captures of a device, and deferred work.
#[derive(Default)]
pub(crate) struct Captures {
    state: Mutex<CaptureState>,
    ended: Condvar,
}

/// The captures of each device of this process, by label. The driver has one state per device,
/// regardless of how many engines opened it.
static ALL: Mutex<BTreeMap<String, Weak<Captures>>> = Mutex::new(BTreeMap::new());

impl Captures {
    /// The captures of a device, shared by all engines of the process.
    pub fn of(device: &str) -> Arc<Captures> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = all.get(device).and_then(Weak::upgrade) {
            return open;
        }
        let new = Arc::new(Captures::default());
        all.insert(device.to_owned(), Arc::downgrade(&new));
        new
    }

    fn state(&self) -> MutexGuard<'_, CaptureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` now, or after the active captures. `work` may defer more work, but must not
    /// capture.
    pub fn outside(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.captures > 0 {
            state.later.push(Box::new(work));
            return;
        }
        state.working += 1;
        drop(state);
        let _working = CallGuard(self);
        work();
    }

    /// Begins a capture after running work that would break it has ended.
    pub fn begin(&self) {
        let state = self.state();
        let waited = self.ended.wait_timeout_while(state, LONGEST, |s| s.working > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.captures += 1;
    }

    /// Ends a capture and runs the deferred work.
    pub fn end(&self) {
        let mut state = self.state();
        state.captures = state.captures.saturating_sub(1);
        if state.captures > 0 || state.later.is_empty() {
            return;
        }
        let due = std::mem::take(&mut state.later);
        state.working += 1;
        drop(state);
        let _working = CallGuard(self);
        for work in due {
            work();
        }
    }
}

/// A guard for a running call.
struct CallGuard<'a>(&'a Captures);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.state().working -= 1;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn work_runs_immediately_or_after_last_capture() {
        let (captures, done) = (Captures::default(), Arc::new(AtomicUsize::new(0)));
        let one = || {
            let done = Arc::clone(&done);
            move || _ = done.fetch_add(1, Ordering::SeqCst)
        };
        captures.outside(one());
        assert_eq!(done.load(Ordering::SeqCst), 1);
        captures.begin();
        captures.begin();
        captures.outside(one());
        captures.end();
        assert_eq!(done.load(Ordering::SeqCst), 1);
        captures.end();
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn second_handle_of_a_device_shares_captures() {
        let (one, again, other) =
            (Captures::of("test:0"), Captures::of("test:0"), Captures::of("test:1"));
        assert!(Arc::ptr_eq(&one, &again) && !Arc::ptr_eq(&one, &other));
        let done = Arc::new(AtomicUsize::new(0));
        one.begin();
        for captures in [&again, &other] {
            let done = Arc::clone(&done);
            captures.outside(move || _ = done.fetch_add(1, Ordering::SeqCst));
        }
        assert_eq!(done.load(Ordering::SeqCst), 1);
        one.end();
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn work_can_queue_more_work() {
        let (captures, (tell, told)) = (Arc::new(Captures::default()), channel());
        let inner = Arc::clone(&captures);
        captures.outside(move || inner.outside(move || tell.send(1).unwrap()));
        assert_eq!(told.try_recv(), Ok(1));
    }

    /// A device-wide wait that had started before another thread began a capture broke that
    /// capture.
    #[test]
    fn capture_begins_after_running_work_ends() {
        let captures = Arc::new(Captures::default());
        let ((begun, has_begun), (go, gone)) = (channel(), channel::<()>());
        let (order, ordered) = channel();
        let (working, first) = (Arc::clone(&captures), order.clone());
        let worker = std::thread::spawn(move || {
            working.outside(move || {
                begun.send(()).unwrap();
                gone.recv().unwrap();
                first.send("work").unwrap();
            });
        });
        has_begun.recv().unwrap();
        let recording = Arc::clone(&captures);
        let recorder = std::thread::spawn(move || {
            recording.begin();
            order.send("capture").unwrap();
            recording.end();
        });
        // Enough time for the capture to begin too early.
        std::thread::sleep(Duration::from_millis(50));
        assert!(ordered.try_recv().is_err());
        go.send(()).unwrap();
        worker.join().unwrap();
        recorder.join().unwrap();
        assert_eq!(ordered.iter().take(2).collect::<Vec<_>>(), ["work", "capture"]);
    }
}
