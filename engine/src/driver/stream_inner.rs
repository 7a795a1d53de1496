//! The driver's stream.

use super::api::Raw;
use super::device::Device;
use crate::error::Result;

/// The driver's stream. The memory of its pool also holds it.
pub(crate) struct StreamInner {
    pub(super) device: Device,
    pub(super) raw: Raw,
    pub(super) id: u64,
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // SAFETY: the last handle was dropped; the driver completes work that is still in the
        // stream.
        let _ = unsafe { self.device.raw().stream_destroy(self.raw) };
    }
}

impl StreamInner {
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn raw(&self) -> Raw {
        self.raw
    }

    /// Makes later work of this stream wait for all current work of `other`.
    pub fn wait_for(&self, other: &StreamInner) -> Result<()> {
        let event = self.device.event()?;
        // SAFETY: all are alive; a recorded event may be destroyed before it completes.
        self.device.ok(unsafe {
            self.device
                .raw()
                .event_record(event.raw(), other.raw)
                .and_then(|()| self.device.raw().stream_wait_event(self.raw, event.raw()))
        })
    }
}
