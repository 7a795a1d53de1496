//! Events: points in streams for ordering and timing.

use super::api::Raw;
use super::counters::add;
use super::device::Device;
use crate::error::Result;
use std::sync::Arc;

/// A point in a stream. Cheap to clone.
#[derive(Clone)]
pub struct Event {
    inner: Arc<Inner>,
}

struct Inner {
    device: Device,
    raw: Raw,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: we own the event; a recorded event may be destroyed before it completes.
        let _ = unsafe { self.device.raw().event_destroy(self.raw) };
    }
}

impl Device {
    /// Creates an event for ordering only. It is cheaper than an event with a time.
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub fn event(&self) -> Result<Event> {
        self.make_event(false)
    }

    /// Creates an event that also records the device's time.
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub fn timed_event(&self) -> Result<Event> {
        self.make_event(true)
    }

    fn make_event(&self, timed: bool) -> Result<Event> {
        let raw = self.ok(self.raw().event(timed))?;
        Ok(Event { inner: Arc::new(Inner { device: self.clone(), raw }) })
    }
}

impl Event {
    pub(crate) fn raw(&self) -> Raw {
        self.inner.raw
    }

    pub(crate) fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether the device has completed the event. `true` if it was never recorded.
    ///
    /// # Errors
    /// [`crate::Error::Driver`], also for errors of earlier kernels.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is alive as long as self.
        self.inner.device.ok(unsafe { self.inner.device.raw().event_done(self.inner.raw) })
    }

    /// Blocks the host until the device has completed the event. It counts as a synchronisation.
    ///
    /// # Errors
    /// See [`Event::is_done`].
    pub fn synchronize(&self) -> Result<()> {
        add(&self.inner.device.inner.counters.synchronisations, 1);
        // SAFETY: the event is alive as long as self.
        self.inner.device.ok(unsafe { self.inner.device.raw().event_wait_host(self.inner.raw) })
    }

    /// Milliseconds from `earlier` to this event. Both must be timed and completed.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] if one of the events is not timed, not recorded or not completed.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32> {
        // SAFETY: both events are alive, since they are borrowed.
        self.inner
            .device
            .ok(unsafe { self.inner.device.raw().event_elapsed(earlier.inner.raw, self.inner.raw) })
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({})", self.inner.device.label())
    }
}
