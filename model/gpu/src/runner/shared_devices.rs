//! The devices of a tensor split, and other models that use them.

use kjit_engine::{Device, Stream};
use kjit_exec::SessionError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Time limit of opening a model while another model still uses its persistent kernel. That model
/// stops using it between two tokens, but the receiver of its tokens may be slow, or may be the
/// caller that opens this model.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// A tensor-split model of this process.
pub(super) struct SharedDevices {
    /// Device labels: two engines of a process have two handles of one device.
    devices: Vec<String>,
    /// The streams of its launches, after opening.
    streams: OnceLock<Vec<Stream>>,
    state: Mutex<SharingState>,
    changed: Condvar,
    /// Whether another model is or was on one of its devices.
    pub(super) shared: AtomicBool,
}

#[derive(Default)]
pub(super) struct SharingState {
    /// Running calls that issue launches.
    calls: usize,
    /// Devices that use the persistent kernel.
    whole: usize,
}

/// Marks a running call.
pub(super) struct Busy(Arc<SharedDevices>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.lock().calls -= 1;
        self.0.changed.notify_all();
    }
}

/// All tensor-split models of the process.
pub(super) static ALL: Mutex<Vec<Weak<SharedDevices>>> = Mutex::new(vec![]);

impl SharedDevices {
    /// Registers a model on these devices, after waiting for work of other models there.
    ///
    /// # Errors
    /// Another model does not stop using its persistent kernel.
    pub fn on(devices: &[Device]) -> Result<Arc<SharedDevices>, SessionError> {
        let devices = devices.iter().map(|d| d.label().to_owned()).collect();
        let (streams, state) = (OnceLock::new(), Mutex::default());
        let (changed, shared) = (Condvar::new(), AtomicBool::new(false));
        let sole = Arc::new(SharedDevices { devices, streams, state, changed, shared });
        let beside: Vec<Arc<SharedDevices>> = {
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
            let waits = |state: &mut SharingState| state.calls > 0 && state.whole > 0;
            let waited = one.changed.wait_timeout_while(one.lock(), OPEN_TIMEOUT, waits);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.calls > 0 && state.whole > 0 {
                return Err(SessionError::Device(format!(
                    "another model of this process computes on {}, and waits for the receiver \
                     of its tokens: open this one between two answers, or give --persistent off",
                    one.devices.join(", ")
                )));
            }
            // If no call is running, this waits for the launched steps. During a call, work may be
            // captured, and a stream that captures must not be waited for. But during a call each
            // device has waited for its own steps before it stopped using the kernel.
            if state.calls == 0 {
                // The model of the device reports a loss.
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

    fn lock(&self) -> MutexGuard<'_, SharingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meets(&self, other: &SharedDevices) -> bool {
        self.devices.iter().any(|mine| other.devices.contains(mine))
    }

    /// Records that the model is open: its streams, and the devices that use the persistent kernel.
    pub fn opened(&self, streams: &[Stream], whole: usize) {
        let _ = self.streams.set(streams.to_vec());
        self.lock().whole = whole;
    }

    /// Marks a running call until the guard is dropped.
    pub fn begin(self: &Arc<SharedDevices>) -> Busy {
        self.lock().calls += 1;
        Busy(Arc::clone(self))
    }

    /// Whether another model is or was on its devices.
    pub fn shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }

    pub(super) fn left(&self) {
        let mut state = self.lock();
        state.whole = state.whole.saturating_sub(1);
        self.changed.notify_all();
    }
}
