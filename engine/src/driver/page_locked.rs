//! Page-locked host memory that is freed when it is dropped.

use super::api::Raw;
use super::device::Device;
use super::event::Event;
use crate::error::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The events after the last use by each stream.
#[derive(Default)]
pub(crate) struct Pending(Vec<(u64, Event)>);

impl Pending {
    /// Records that the stream uses the memory up to this point. Each stream has one event, which
    /// is reused.
    pub fn note(&mut self, device: &Device, stream: Raw, id: u64) -> Result<()> {
        let event = match self.0.iter().find(|(of, _)| *of == id) {
            Some((_, event)) => event,
            None => {
                self.0.push((id, device.event()?));
                match self.0.last() {
                    Some((_, event)) => event,
                    None => return Ok(()),
                }
            }
        };
        // SAFETY: event and stream are alive; a stream that uses the memory is not capturing here
        // (see `Stream::used`).
        device.ok(unsafe { device.raw().event_record(event.raw(), stream) })
    }

    /// Waits for all events.
    pub fn wait(&mut self) -> Result<()> {
        for (_, event) in &self.0 {
            if !event.is_done()? {
                event.synchronize()?;
            }
        }
        Ok(())
    }
}

/// Page-locked memory.
pub struct PinnedMemory {
    pub(super) device: Device,
    pub(super) at: *mut u8,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) pending: Mutex<Pending>,
}

// SAFETY: this value owns the memory; host access goes through the lock.
unsafe impl Send for PinnedMemory {}

// SAFETY: host access goes through the lock, so references can be shared between threads.
unsafe impl Sync for PinnedMemory {}

impl std::fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedMemory({} bytes)", self.bytes)
    }
}

impl PinnedMemory {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // If waiting fails, the context is lost and no device writes to the memory.
        let _ = self.pending().wait();
        let (device, at) = (self.device.clone(), self.at as usize);
        self.device.outside_capture(move || {
            // SAFETY: the last owner is being dropped, and no stream uses the memory any more.
            let _ = unsafe { device.raw().free_host(at as *mut u8) };
        });
    }
}
