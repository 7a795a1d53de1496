//! An opened device, which creates streams, buffers and modules.

use super::api::{FaultKind, RawDevice, Try};
use super::captures::Captures;
use super::counters::{Counters, Counts};
use super::info::DeviceInfo;
use crate::arch::Target;
use crate::error::{Error, Result};
use crate::trace::Trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An open device. Cheap to clone. It closes after its last stream, buffer or module is dropped.
#[derive(Clone)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub raw: Arc<dyn RawDevice>,
    pub info: DeviceInfo,
    pub target: Target,
    pub label: String,
    pub counters: Counters,
    pub trace: Option<Trace>,
    next_stream: AtomicU64,
    /// Active captures, and work that must wait for their end.
    captures: Arc<Captures>,
}

/// Whether a device was abandoned, or work of a library was aborted.
pub(super) static LEFT: AtomicBool = AtomicBool::new(false);

/// Ends the process immediately with this exit code if a device was abandoned or work of a library
/// was aborted ([`Device::leave`], [`Collective::give_up`](crate::Collective::give_up)); otherwise
/// does nothing. Exit handlers of drivers and libraries need objects that are still in use. With
/// NCCL
/// 2.28 a rank that had reported its error ended with a segmentation fault (the cause is inferred).
/// The caller must have written all output.
pub fn exit_if_abandoned(code: u8) {
    if LEFT.load(Ordering::Relaxed) {
        // SAFETY: _exit takes a number and runs no further code of this process.
        unsafe { libc::_exit(i32::from(code)) }
    }
}

impl Device {
    pub(crate) fn new(
        raw: Arc<dyn RawDevice>,
        info: DeviceInfo,
        target: Target,
        trace: Option<Trace>,
    ) -> Device {
        let label = info.label();
        let captures = Captures::of(&label);
        let inner = Inner {
            raw,
            info,
            target,
            label,
            counters: Counters::default(),
            trace,
            next_stream: AtomicU64::new(1),
            captures,
        };
        Device { inner: Arc::new(inner) }
    }

    /// The properties that the driver reports.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The compilation target.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.inner.target
    }

    /// Name of the device: `cuda:0`, `rocm:1`.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    /// Free and total bytes of device memory.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.ok(self.inner.raw.memory())
    }

    /// The counters of the device's operations.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.counters.now()
    }

    /// The trace of the device, if there is one.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.inner.trace.as_ref()
    }

    /// Whether both handles are the same opened device.
    #[must_use]
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Enables access of this device's kernels and copies to memory of `other`, a device of the
    /// same vendor. Returns `false` if the hardware or the driver does not support it.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Buffer`] for devices of two vendors.
    pub fn reach(&self, other: &Device) -> Result<bool> {
        if self.target().vendor() != other.target().vendor() {
            return Err(Error::Buffer(format!(
                "{} and {} share no memory",
                self.label(),
                other.label()
            )));
        }
        self.ok(self.inner.raw.reach(other.inner.info.ordinal))
    }

    /// Abandons everything on the device until the process ends. Use it for a device whose work
    /// never ends: freeing memory would wait for that work. Later calls fail, and dropped objects
    /// are not freed.
    pub fn leave(&self) {
        LEFT.store(true, Ordering::Relaxed);
        self.inner.raw.leave();
        // Closing the device would wait as well.
        std::mem::forget(self.clone());
    }

    pub(crate) fn raw(&self) -> &dyn RawDevice {
        &*self.inner.raw
    }

    /// Converts a result of the driver to a result of the engine.
    pub(crate) fn ok<T>(&self, answer: Try<T>) -> Result<T> {
        answer.map_err(|fault| fault.on(self.label()))
    }

    /// Converts the result of an allocation. The error for lack of memory states the requested and
    /// the free bytes.
    pub(crate) fn allocated<T>(&self, answer: Try<T>, asked: u64, what: &str) -> Result<T> {
        answer.map_err(|fault| match fault.kind {
            FaultKind::OutOfMemory => self.out_of_memory(asked, what),
            _ => fault.on(self.label()),
        })
    }

    pub(crate) fn out_of_memory(&self, asked: u64, what: &str) -> Error {
        let (free, total) = self.inner.raw.memory().unwrap_or((0, self.inner.info.memory_total));
        Error::OutOfMemory {
            device: self.label().to_owned(),
            what: what.to_owned(),
            asked,
            free,
            total,
        }
    }

    pub(crate) fn stream_id(&self) -> u64 {
        self.inner.next_stream.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs `f` now, or after the active captures. Frees and events would break a capture.
    pub(crate) fn outside_capture(&self, f: impl FnOnce() + Send + 'static) {
        self.inner.captures.outside(f);
    }

    pub(crate) fn capture_began(&self) {
        self.inner.captures.begin();
    }

    pub(crate) fn capture_ended(&self) {
        self.inner.captures.end();
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} {})", self.label(), self.inner.info.name)
    }
}
