//! Who else computes on the devices of a model that several compute together.
//!
//! A token's one launch takes all of a device, and in its midst waits for its like on the others.
//! Two models of a process on the same devices could have one's launch on the first device and the
//! other's on the second: each would wait for what cannot begin. (Launches that add up rows are
//! small, and lie beside each other.) So a model has one launch for a token as long as no other of
//! the process computes together on any of its devices; from then on its tokens are launches, from
//! the next one on where it is in the midst of an answer.

use super::GpuRunner;
use kjit_engine::{Device, Stream};
use kjit_exec::SessionError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// How long a model that is opened waits for another to leave its one launch: it does between two
/// tokens, but whoever takes these may be slow, or be the one who opens.
const PATIENCE: Duration = Duration::from_secs(20);

/// A model on several devices.
pub(super) struct Sole {
    /// Labels: two engines of a process have two handles of one device.
    devices: Vec<String>,
    /// Those that its launches go through, once it is open.
    streams: OnceLock<Vec<Stream>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Another is on one of its devices, or was.
    shared: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Calls that put launches there.
    calls: usize,
    /// Devices on which a token is one launch.
    whole: usize,
}

/// A call that puts launches there.
pub(super) struct Busy(Arc<Sole>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.lock().calls -= 1;
        self.0.changed.notify_all();
    }
}

/// All of the process.
static ALL: Mutex<Vec<Weak<Sole>>> = Mutex::new(vec![]);

impl Sole {
    /// A model that is going to compute on these devices. What others have under way there is
    /// waited for.
    ///
    /// # Errors
    /// Another one that does not leave its one launch.
    pub fn on(devices: &[Device]) -> Result<Arc<Sole>, SessionError> {
        let devices = devices.iter().map(|d| d.label().to_owned()).collect();
        let (streams, state) = (OnceLock::new(), Mutex::default());
        let (changed, shared) = (Condvar::new(), AtomicBool::new(false));
        let sole = Arc::new(Sole { devices, streams, state, changed, shared });
        let beside: Vec<Arc<Sole>> = {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|one| one.strong_count() > 0);
            let beside =
                all.iter().filter_map(Weak::upgrade).filter(|one| one.meets(&sole)).collect();
            all.push(Arc::downgrade(&sole));
            beside
        };
        for one in &beside {
            one.shared.store(true, Ordering::Release);
            sole.shared.store(true, Ordering::Release);
        }
        for one in &beside {
            let waits = |state: &mut State| state.calls > 0 && state.whole > 0;
            let waited = one.changed.wait_timeout_while(one.lock(), PATIENCE, waits);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.calls > 0 && state.whole > 0 {
                return Err(SessionError::Device(format!(
                    "another model of this process computes on {}, and waits for whoever takes \
                     its tokens: open this one \
                     between two answers, or leave --persistent off",
                    one.devices.join(", ")
                )));
            }
            // What it ran ahead of its last answer ends by itself, while no call begins: one may
            // record, and a stream that is waited for meanwhile records nothing. In a call each
            // device has waited for its own before it left.
            if state.calls == 0 {
                // A device that was lost says so to its own model.
                one.streams
                    .get()
                    .into_iter()
                    .flatten()
                    .for_each(|stream| drop(stream.synchronize()));
            }
            drop(state);
        }
        Ok(sole)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meets(&self, other: &Sole) -> bool {
        self.devices.iter().any(|mine| other.devices.contains(mine))
    }

    /// It is open, launches through these, and a token is one launch on so many.
    pub fn opened(&self, streams: &[Stream], whole: usize) {
        let _ = self.streams.set(streams.to_vec());
        self.lock().whole = whole;
    }

    /// A call puts launches there until the guard goes.
    pub fn begin(self: &Arc<Sole>) -> Busy {
        self.lock().calls += 1;
        Busy(Arc::clone(self))
    }

    /// Whether another is on its devices, or was.
    pub fn shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    fn left(&self) {
        let mut state = self.lock();
        state.whole = state.whole.saturating_sub(1);
        self.changed.notify_all();
    }
}

impl GpuRunner {
    /// Between two tokens: whether they become launches here, since another model is on one of the
    /// devices. (The others that compute this one may do so a token later: sums are the same
    /// meetings either way.)
    pub(super) fn leave_one_launch(&mut self) -> Result<bool, SessionError> {
        let Some(sole) = self.sole.clone() else { return Ok(false) };
        if self.resident.persistent.is_empty() || !sole.shared() {
            return Ok(false);
        }
        self.launch_tokens()?;
        sole.left();
        Ok(true)
    }
}
