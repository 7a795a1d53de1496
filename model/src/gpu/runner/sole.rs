//! Who else computes on the devices of a model that several compute together.
//!
//! A token's one launch takes all of a device, and in its midst waits for its like on the others. Two models of a process
//! on the same devices could have one's launch on the first device and the other's on the second: each would wait for what
//! cannot begin. (Launches that add up rows are small, and lie beside each other.) So a model has one launch for a token as
//! long as no other of the process computes together on any of its devices; from then on its tokens are launches.

use kjit_engine::{Device, Stream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A model on several devices.
pub(super) struct Sole {
    /// Labels: two engines of a process have two handles of one device.
    devices: Vec<String>,
    /// Those that its launches go through, once it is open.
    streams: OnceLock<Vec<Stream>>,
    /// Held while a call puts launches there.
    busy: Mutex<()>,
    /// Another is on one of its devices, or was.
    shared: AtomicBool,
}

/// All of the process.
static ALL: Mutex<Vec<Weak<Sole>>> = Mutex::new(vec![]);

impl Sole {
    /// A model that is going to be opened on these devices. What others on them have under way is waited for.
    pub fn on(devices: &[Device]) -> Arc<Sole> {
        let (streams, busy) = (OnceLock::new(), Mutex::new(()));
        let shared = AtomicBool::new(false);
        let devices: Vec<String> = devices.iter().map(|d| d.label().to_owned()).collect();
        let sole = Arc::new(Sole { devices, streams, busy, shared });
        let beside: Vec<Arc<Sole>> = {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|one| one.strong_count() > 0);
            let beside = all.iter().filter_map(Weak::upgrade).filter(|one| one.meets(&sole)).collect();
            all.push(Arc::downgrade(&sole));
            beside
        };
        for one in &beside {
            one.shared.store(true, Ordering::Release);
            sole.shared.store(true, Ordering::Release);
            // What it puts there from its next call on is launches.
            let _ended = one.begin();
            // A device that was lost says so to its own model.
            one.streams.get().into_iter().flatten().for_each(|stream| drop(stream.synchronize()));
        }
        sole
    }

    fn meets(&self, other: &Sole) -> bool {
        self.devices.iter().any(|mine| other.devices.contains(mine))
    }

    /// It is open, and launches through these.
    pub fn opened(&self, streams: &[Stream]) {
        let _ = self.streams.set(streams.to_vec());
    }

    /// A call puts launches there until the guard goes.
    pub fn begin(&self) -> MutexGuard<'_, ()> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another is on its devices, or was.
    pub fn shared(&self) -> bool {
        self.shared.load(Ordering::Acquire)
    }
}
