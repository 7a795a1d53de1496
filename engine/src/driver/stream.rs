//! Streams: queues of work. Work in a stream runs in order; streams wait for each other only on
//! request.

use super::api::{Fault, FaultKind};
use super::counters::add;
use super::device::Device;
use super::event::Event;
use super::memory::Memory;
use super::module::Kernel;
use super::page_locked::PinnedMemory;
use super::stream_inner::StreamInner;
use crate::args::{self, Arg};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A queue of work on a device. Cheap to clone: clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
    state: Arc<Mutex<StreamState>>,
}

/// The objects that a captured graph must keep alive.
#[derive(Default)]
pub(crate) struct CapturedObjects {
    pub memory: Vec<Arc<Memory>>,
    pub pinned: Vec<Arc<PinnedMemory>>,
    pub others: Vec<Arc<dyn Any + Send + Sync>>,
}

#[derive(Default)]
struct StreamState {
    /// Set while this stream is capturing.
    capture: Option<Arc<Mutex<CapturedObjects>>>,
    /// Argument bytes of the current launch, reused so that a launch does not allocate.
    bytes: Vec<u8>,
}

impl Device {
    /// A new stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn stream(&self) -> Result<Stream> {
        self.make_stream(0)
    }

    /// A stream whose kernels have priority over kernels of other streams.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn urgent_stream(&self) -> Result<Stream> {
        self.make_stream(1)
    }

    fn make_stream(&self, urgency: u32) -> Result<Stream> {
        let raw = self.ok(self.raw().stream(urgency))?;
        let inner = StreamInner { device: self.clone(), raw, id: self.stream_id() };
        Ok(Stream { inner: Arc::new(inner), state: Arc::default() })
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} #{})", self.device().label(), self.inner.id)
    }
}

/// An operation on memory that is about to be enqueued. It orders the operation after the work of
/// other streams if a pool needs that, excludes host access, and afterwards records the end.
pub(super) struct MemoryUse<'a> {
    stream: &'a StreamInner,
    capture: Option<Arc<Mutex<CapturedObjects>>>,
    pinned: Vec<(&'a Arc<PinnedMemory>, MutexGuard<'a, super::page_locked::Pending>)>,
}

impl<'a> MemoryUse<'a> {
    pub(super) fn of(
        stream: &'a Stream,
        memory: impl Iterator<Item = &'a Arc<Memory>> + Clone,
        pinned: impl Iterator<Item = &'a Arc<PinnedMemory>>,
    ) -> Result<MemoryUse<'a>> {
        let capture = stream.lock().capture.clone();
        if let Some(kept) = &capture {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.pinned.extend(pinned.map(Arc::clone));
            for m in memory {
                kept.memory.push(Arc::clone(m));
                kept.pinned.extend(m.pinned().map(Arc::clone));
            }
            drop(kept);
            return Ok(MemoryUse { stream: stream.inner(), capture, pinned: Vec::new() });
        }
        for home in memory.clone().filter_map(|m| m.home()) {
            home.used_by(stream.inner())?;
        }
        // Takes each lock once, in a global order.
        let mut all: Vec<&Arc<PinnedMemory>> =
            pinned.chain(memory.filter_map(|m| m.pinned())).collect();
        all.sort_by_key(|p| Arc::as_ptr(p) as usize);
        all.dedup_by_key(|p| Arc::as_ptr(p) as usize);
        let pinned = all.into_iter().map(|p| (p, p.pending())).collect();
        Ok(MemoryUse { stream: stream.inner(), capture, pinned })
    }

    /// Keeps an object alive for the graph under capture. Returns whether there is such a graph.
    pub(super) fn keep(&self, what: impl FnOnce() -> Arc<dyn Any + Send + Sync>) -> bool {
        if let Some(kept) = &self.capture {
            kept.lock().unwrap_or_else(PoisonError::into_inner).others.push(what());
        }
        self.capture.is_some()
    }

    /// Marks the work as enqueued.
    pub(super) fn done(self) -> Result<()> {
        debug_assert!(self.capture.is_none() || self.pinned.is_empty());
        for (memory, mut pending) in self.pinned {
            pending.note(memory.device(), self.stream.raw, self.stream.id)?;
        }
        Ok(())
    }
}

impl Stream {
    pub(crate) fn inner(&self) -> &Arc<StreamInner> {
        &self.inner
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_capture(&self, capture: Option<Arc<Mutex<CapturedObjects>>>) {
        self.lock().capture = capture;
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The driver's handle (`CUstream`, `hipStream_t`), for other libraries. It is valid while a
    /// clone of this stream exists.
    #[must_use]
    pub fn handle(&self) -> usize {
        self.inner.raw.0
    }

    pub(super) fn here(&self, other: &Device, what: &str) -> Result<()> {
        if other.same(self.device()) {
            return Ok(());
        }
        Err(Error::Buffer(format!(
            "{what} is on {}, but the stream is on {}",
            other.label(),
            self.device().label()
        )))
    }

    /// Enqueues a launch. It checks three things: the number, sizes and kinds of the arguments
    /// against the code object; the geometry against the limits of kernel and device; that the
    /// buffers belong to this device. The buffers stay alive until the launch, and any graph that
    /// captured it, are done.
    ///
    /// # Safety
    /// The kernel's code runs unchecked. With this geometry, these arguments, and the contents of
    /// the buffers at that time, the kernel must
    /// - read and write only the buffers that it is given, within their bounds, and its own memory;
    /// - leave no value in them that is invalid for their type, and touch nothing that the host or
    ///   another stream accesses concurrently without ordering;
    /// - match its code object. If the code object states only the sizes of the arguments (NVIDIA),
    ///   they must have the types and the order of `args`.
    ///
    /// The engine cannot check this: a device protects the memory pages of a process, not single
    /// buffers. A [`CheckedKernel`](crate::CheckedKernel) states it once for all launches of a
    /// kernel.
    ///
    /// # Errors
    /// [`Error::Launch`] if arguments or geometry do not match the code object or the device
    /// (nothing is enqueued then); [`Error::Driver`] if the driver refuses.
    pub unsafe fn launch(&self, kernel: &Kernel, shape: &Geometry, args: &[Arg<'_>]) -> Result<()> {
        self.check(kernel, shape)?;
        let memory = args.iter().filter_map(Arg::memory);
        for m in memory.clone().filter(|m| !m.is_for(self.device())) {
            self.here(m.device(), "an argument")?;
        }
        let shape = Geometry {
            dependent: shape.dependent && self.device().target().arch().has("pdl"),
            ..*shape
        };
        let used = MemoryUse::of(self, memory, std::iter::empty())?;
        used.keep(|| kernel.keep());
        let info = kernel.info();
        let mut state = self.lock();
        args::pack(info, args, &mut state.bytes)?;
        let base = state.bytes.as_mut_ptr();
        const MOST: usize = 128;
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST];
        let count = info.args.len();
        let Some(list) = pointers.get_mut(..count) else {
            return Err(Error::Launch {
                kernel: info.name.clone(),
                why: format!("more than {MOST} arguments"),
            });
        };
        for (pointer, arg) in list.iter_mut().zip(&info.args) {
            *pointer = base.wrapping_add(arg.offset as usize).cast();
        }
        // SAFETY: `list` has one pointer for each argument of the code object. Each points to as
        // many bytes as declared (`pack` sized the block). Function and stream are alive. The
        // caller keeps the buffers alive now; afterwards their drop waits (driver: free waits;
        // pool: stream order; page-locked: events; graph: owned by it).
        let sent =
            unsafe { self.device().raw().launch(kernel.raw(), &shape, list, self.inner.raw) };
        drop(state);
        sent.map_err(|fault| self.refused(fault, &info.name, &shape))?;
        add(&self.device().inner.counters.launches, 1);
        used.done()
    }

    /// The reason for a refused launch: an error of the launch, or an earlier kernel after which
    /// the device is lost.
    fn refused(&self, fault: Fault, kernel: &str, shape: &Geometry) -> Error {
        let lost =
            if fault.kind == FaultKind::Lost { self.device().raw().wait_all().err() } else { None };
        match lost {
            Some(lost) if lost.kind == FaultKind::Lost => lost.on(self.device().label()),
            _ => Error::Launch {
                kernel: kernel.to_owned(),
                why: format!("{} (code {}) for {shape:?}", fault.says, fault.code),
            },
        }
    }

    /// Checks the geometry against the limits of kernel and device.
    fn check(&self, kernel: &Kernel, shape: &Geometry) -> Result<()> {
        let info = kernel.info();
        let fail = |why: String| Err(Error::Launch { kernel: info.name.clone(), why });
        self.here(kernel.device(), "the kernel")?;
        let arch = self.device().target().arch();
        let most = u64::from(info.max_threads.unwrap_or(u32::MAX).min(arch.max_threads));
        if shape.threads() == 0 || shape.blocks() == 0 {
            return fail(format!(
                "the grid or block is empty: grid {:?}, block {:?}",
                shape.grid, shape.block
            ));
        }
        if shape.threads() > most {
            return fail(format!(
                "{} threads per block, but the kernel supports at most {most}",
                shape.threads()
            ));
        }
        let shared = u64::from(shape.shared) + u64::from(info.shared);
        if shared > u64::from(arch.shared_per_block) {
            return fail(format!(
                "{shared} bytes of shared memory per block, but the device has {}",
                arch.shared_per_block
            ));
        }
        kernel.allow_shared(shape.shared)?;
        if shape.cooperative {
            let threads = u32::try_from(shape.threads()).unwrap_or(u32::MAX);
            let each = kernel.resident_blocks(threads, shape.shared)?;
            let all = u64::from(each) * u64::from(self.device().info().units);
            if !self.device().info().cooperative || shape.blocks() > all {
                return fail(format!(
                    "a cooperative grid of {} blocks is too large: {all} blocks can be resident ({each} on each of {} units)",
                    shape.blocks(),
                    self.device().info().units
                ));
            }
        }
        Ok(())
    }

    /// Records the event at the current end of the stream.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Buffer`] if the event belongs to a different device.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.here(event.device(), "the event")?;
        self.keep_event(event);
        // SAFETY: event and stream are alive.
        self.device().ok(unsafe { self.device().raw().event_record(event.raw(), self.inner.raw) })
    }

    /// Makes later work of this stream wait for the event. The host does not wait.
    ///
    /// # Errors
    /// See [`Stream::record`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.here(event.device(), "the event")?;
        self.keep_event(event);
        // SAFETY: event and stream are alive.
        self.device()
            .ok(unsafe { self.device().raw().stream_wait_event(self.inner.raw, event.raw()) })
    }

    fn keep_event(&self, event: &Event) {
        if let Some(kept) = &self.lock().capture {
            kept.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .others
                .push(Arc::new(event.clone()));
        }
    }

    /// Blocks the host until all work in the stream is done. It counts as a synchronisation.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors of earlier kernels.
    pub fn synchronize(&self) -> Result<()> {
        add(&self.device().inner.counters.synchronisations, 1);
        // SAFETY: the stream is alive as long as self.
        self.device().ok(unsafe { self.device().raw().stream_wait_host(self.inner.raw) })
    }

    /// Whether the stream is capturing.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.lock().capture.is_some()
    }

    /// Whether all work in the stream is done.
    ///
    /// # Errors
    /// See [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as self.
        self.device().ok(unsafe { self.device().raw().stream_idle(self.inner.raw) })
    }

    pub(super) fn not_capturing(&self, what: &str) -> Result<()> {
        if self.is_capturing() {
            return Err(Error::Buffer(format!("{what} cannot be part of a captured graph")));
        }
        Ok(())
    }
}
