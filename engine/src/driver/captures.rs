//! What must not happen while anything of a device is recorded.
//!
//! A free, a module's end, a wait for the whole device: the driver refuses them during a capture,
//! whichever thread asks, and the capture is lost ("operation failed due to a previous error during
//! capture"). So they are done between captures: at once where there is none, else when the last
//! one under way has ended; and a capture begins when what is being done has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long a capture waits at its beginning: what is done meanwhile may itself wait for a kernel
/// of this device, and that for what this thread is about to launch. Then the capture begins, and
/// may be lost.
const LONGEST: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// Captures under way.
    captures: usize,
    /// Pieces of work that are being done.
    working: usize,
    /// Work for when the captures have ended.
    later: Vec<Work>,
}

/// Captures of a device under way, and what waits for their end.
#[derive(Default)]
pub(crate) struct Captures {
    state: Mutex<State>,
    ended: Condvar,
}

/// Those of each device of this process, by its label: the driver has one state of a device,
/// however many engines opened it.
static ALL: Mutex<BTreeMap<String, Weak<Captures>>> = Mutex::new(BTreeMap::new());

impl Captures {
    /// Those of a device, shared by all of the process that have it open.
    pub fn of(device: &str) -> Arc<Captures> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = all.get(device).and_then(Weak::upgrade) {
            return open;
        }
        let new = Arc::new(Captures::default());
        all.insert(device.to_owned(), Arc::downgrade(&new));
        new
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it now, or when the captures under way have ended. In it more may be asked for, but
    /// nothing recorded.
    pub fn outside(&self, work: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        if state.captures > 0 {
            state.later.push(Box::new(work));
            return;
        }
        state.working += 1;
        drop(state);
        let _working = Working(self);
        work();
    }

    /// A capture begins, as soon as nothing is done that would break it.
    pub fn begin(&self) {
        let state = self.state();
        let waited = self.ended.wait_timeout_while(state, LONGEST, |s| s.working > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.captures += 1;
    }

    /// A capture has ended: what waited for that is done here.
    pub fn end(&self) {
        let mut state = self.state();
        state.captures = state.captures.saturating_sub(1);
        if state.captures > 0 || state.later.is_empty() {
            return;
        }
        let due = std::mem::take(&mut state.later);
        state.working += 1;
        drop(state);
        let _working = Working(self);
        for work in due {
            work();
        }
    }
}

/// A piece of work that is being done, until it is dropped.
struct Working<'a>(&'a Captures);

impl Drop for Working<'_> {
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
    fn work_is_done_at_once_or_behind_the_last_capture() {
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
    fn who_opens_a_device_once_more_waits_for_the_same_captures() {
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
    fn work_may_ask_for_more() {
        let (captures, (tell, told)) = (Arc::new(Captures::default()), channel());
        let inner = Arc::clone(&captures);
        captures.outside(move || inner.outside(move || tell.send(1).unwrap()));
        assert_eq!(told.try_recv(), Ok(1));
    }

    /// A wait for the whole device that had begun when another thread began to record broke what
    /// that recorded.
    #[test]
    fn a_capture_begins_when_what_is_done_has_ended() {
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
        // Time for the capture to begin too early.
        std::thread::sleep(Duration::from_millis(50));
        assert!(ordered.try_recv().is_err());
        go.send(()).unwrap();
        worker.join().unwrap();
        recorder.join().unwrap();
        assert_eq!(ordered.iter().take(2).collect::<Vec<_>>(), ["work", "capture"]);
    }
}
