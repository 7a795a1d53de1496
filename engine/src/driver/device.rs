//! An opened device: where streams, buffers and modules come from.

use super::api::{FaultKind, RawDevice, Try};
use super::captures::Captures;
use super::counters::{Counters, Counts};
use super::info::DeviceInfo;
use crate::arch::Target;
use crate::error::{Error, Result};
use crate::trace::Trace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A device that is open. Cheap to clone; it closes when the last stream, buffer or module of it is
/// gone.
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
    /// Captures under way, and what must not touch the driver while one is: frees would break it.
    captures: Arc<Captures>,
}

/// A device was left, or a library's work given up.
pub(super) static LEFT: AtomicBool = AtomicBool::new(false);

/// Ends the process with this exit code, at once, if a device was left or a library's work given up
/// ([`Device::leave`], [`Collective::give_up`](crate::Collective::give_up)); else does nothing.
/// What drivers and libraries do at a process's end wants what is still at work there: with NCCL
/// 2.28 a rank that had said its error ended with a segmentation fault (that this is why is
/// inferred). Whoever calls it has written all that is to be written.
pub fn end_if_left(code: u8) {
    if LEFT.load(Ordering::Relaxed) {
        // SAFETY: _exit takes a number and runs nothing of this process any more.
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

    /// What the driver says of it.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// What to compile for.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.inner.target
    }

    /// `cuda:0`, `rocm:1`.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    /// Free and total bytes of device memory now.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.ok(self.inner.raw.memory())
    }

    /// What it was asked to do so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.counters.now()
    }

    /// The trace that it feeds, if any.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.inner.trace.as_ref()
    }

    /// Whether two handles are the same opened device.
    #[must_use]
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Lets kernels and copies of this device use memory of `other`, a device of the same vendor;
    /// false when the hardware (or the engine's driver for it) offers no such way.
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

    /// Leaves all that is on it as it is, to the end of the process: for a device whose work does
    /// not end, since whatever gives memory back waits for that. Every later call of it fails, and
    /// what is dropped stays where it is.
    pub fn leave(&self) {
        LEFT.store(true, Ordering::Relaxed);
        self.inner.raw.leave();
        // Closing it would wait as well.
        std::mem::forget(self.clone());
    }

    pub(crate) fn raw(&self) -> &dyn RawDevice {
        &*self.inner.raw
    }

    /// A driver's answer as the engine's.
    pub(crate) fn ok<T>(&self, answer: Try<T>) -> Result<T> {
        answer.map_err(|fault| fault.on(self.label()))
    }

    /// The answer to an allocation: out of memory says what was asked and what is free.
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

    /// Runs `f` now, or when the captures under way have ended: a free or an event in the middle
    /// would break them.
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
