//! Streams: what is put in one runs in order; nothing waits unless it is told to.

use super::api::{Fault, FaultKind, Raw};
use super::counters::add;
use super::device::Device;
use super::event::Event;
use super::memory::Memory;
use super::module::Kernel;
use super::pinned::PinnedMemory;
use crate::args::{self, Arg};
use crate::error::{Error, Result};
use crate::geometry::Geometry;
use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An order of work on a device. Cheap to clone: the clones are the same stream.
#[derive(Clone)]
pub struct Stream {
    inner: Arc<StreamInner>,
}

pub(crate) struct StreamInner {
    device: Device,
    raw: Raw,
    id: u64,
    state: Mutex<State>,
}

/// What a capture gathers, to be kept alive by the graph.
#[derive(Default)]
pub(crate) struct Kept {
    pub memory: Vec<Arc<Memory>>,
    pub pinned: Vec<Arc<PinnedMemory>>,
    pub others: Vec<Arc<dyn Any + Send + Sync>>,
}

#[derive(Default)]
struct State {
    /// Set while this stream is being recorded.
    capture: Option<Arc<Mutex<Kept>>>,
    /// Argument bytes of the launch under way: reused, so that a launch allocates nothing.
    bytes: Vec<u8>,
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // SAFETY: the last handle is gone; the driver lets work that is in the stream run to its
        // end.
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

    /// Makes this stream go on only after what `other` has now.
    pub fn wait_for(&self, other: &StreamInner) -> Result<()> {
        let event = self.device.event()?;
        // SAFETY: all alive; a recorded event may be destroyed before it is reached.
        self.device.ok(unsafe {
            self.device
                .raw()
                .event_record(event.raw(), other.raw)
                .and_then(|()| self.device.raw().stream_wait_event(self.raw, event.raw()))
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_capture(&self, capture: Option<Arc<Mutex<Kept>>>) {
        self.lock().capture = capture;
    }

    pub fn is_capturing(&self) -> bool {
        self.lock().capture.is_some()
    }
}

impl Device {
    /// A new stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn stream(&self) -> Result<Stream> {
        self.make_stream(0)
    }

    /// A stream whose kernels are scheduled before those of others.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn urgent_stream(&self) -> Result<Stream> {
        self.make_stream(1)
    }

    fn make_stream(&self, urgency: u32) -> Result<Stream> {
        let raw = self.ok(self.raw().stream(urgency))?;
        let inner = StreamInner {
            device: self.clone(),
            raw,
            id: self.stream_id(),
            state: Mutex::default(),
        };
        Ok(Stream { inner: Arc::new(inner) })
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} #{})", self.device().label(), self.inner.id)
    }
}

/// A piece of work that uses memory, about to go into a stream: orders it after other streams' work
/// where a pool needs that, holds host access off, and afterwards leaves a mark behind.
pub(super) struct Use<'a> {
    stream: &'a Arc<StreamInner>,
    capture: Option<Arc<Mutex<Kept>>>,
    pinned: Vec<(&'a Arc<PinnedMemory>, MutexGuard<'a, super::pinned::Pending>)>,
}

impl<'a> Use<'a> {
    pub(super) fn of(
        stream: &'a Arc<StreamInner>,
        memory: impl Iterator<Item = &'a Arc<Memory>> + Clone,
        pinned: impl Iterator<Item = &'a Arc<PinnedMemory>>,
    ) -> Result<Use<'a>> {
        let capture = stream.lock().capture.clone();
        if let Some(kept) = &capture {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.pinned.extend(pinned.map(Arc::clone));
            for m in memory {
                kept.memory.push(Arc::clone(m));
                kept.pinned.extend(m.pinned().map(Arc::clone));
            }
            drop(kept);
            return Ok(Use { stream, capture, pinned: Vec::new() });
        }
        for home in memory.clone().filter_map(|m| m.home()) {
            home.used_by(stream)?;
        }
        // One lock each, in one order everywhere.
        let mut all: Vec<&Arc<PinnedMemory>> =
            pinned.chain(memory.filter_map(|m| m.pinned())).collect();
        all.sort_by_key(|p| Arc::as_ptr(p) as usize);
        all.dedup_by_key(|p| Arc::as_ptr(p) as usize);
        let pinned = all.into_iter().map(|p| (p, p.pending())).collect();
        Ok(Use { stream, capture, pinned })
    }

    /// Has the graph that is being captured keep something alive; whether there is one.
    pub(super) fn keep(&self, what: impl FnOnce() -> Arc<dyn Any + Send + Sync>) -> bool {
        if let Some(kept) = &self.capture {
            kept.lock().unwrap_or_else(PoisonError::into_inner).others.push(what());
        }
        self.capture.is_some()
    }

    /// The work is in the stream.
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

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    pub(super) fn here(&self, other: &Device, what: &str) -> Result<()> {
        if other.same(self.device()) {
            return Ok(());
        }
        Err(Error::Buffer(format!(
            "{what} is on {}, the stream on {}",
            other.label(),
            self.device().label()
        )))
    }

    /// Puts a launch into the stream. Checked are the arguments' number, sizes and kinds against
    /// the code object's own list, the geometry against the kernel's and the device's limits, and
    /// that buffers are this device's. They are kept until the launch, and a graph that captured
    /// it, are over.
    ///
    /// # Safety
    /// The kernel's code runs as it is. With this geometry and these arguments, and with what the
    /// buffers hold by then, it
    /// - reads and writes nothing but the buffers that it is given, within their bounds, and its
    ///   own memory,
    /// - leaves no value in them that their type does not have, and touches nothing that the host
    ///   or another stream touches meanwhile without an order between,
    /// - does what its code object says: its arguments have the types and the order of `args`,
    ///   where the list says sizes alone (NVIDIA's).
    ///
    /// Nothing of that can be seen from outside of the code; a device's memory protection knows
    /// pages of a process, not buffers. [`CheckedKernel`](crate::CheckedKernel) makes the promise
    /// once for all launches of a kernel.
    ///
    /// # Errors
    /// [`Error::Launch`], before anything is sent, when arguments or geometry do not fit what the
    /// code object and the device say; [`Error::Driver`] for what the driver refuses.
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
        let used = Use::of(&self.inner, memory, std::iter::empty())?;
        used.keep(|| kernel.keep());
        let info = kernel.info();
        let mut state = self.inner.lock();
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
        // SAFETY: one pointer for each argument of the code object's list, each to as many bytes as
        // it says (`pack` made the block that long); function and stream are alive; buffers are
        // kept by the caller now and by their own drop rules (driver: free waits, pool: stream
        // order, pinned: events, graph: kept) afterwards.
        let sent =
            unsafe { self.device().raw().launch(kernel.raw(), &shape, list, self.inner.raw) };
        drop(state);
        sent.map_err(|fault| self.refused(fault, &info.name, &shape))?;
        add(&self.device().inner.counters.launches, 1);
        used.done()
    }

    /// Why a launch was refused: something wrong with it, or a kernel before it that has ended the
    /// device.
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

    /// Geometry against what kernel and device can take.
    fn check(&self, kernel: &Kernel, shape: &Geometry) -> Result<()> {
        let info = kernel.info();
        let fail = |why: String| Err(Error::Launch { kernel: info.name.clone(), why });
        self.here(kernel.device(), "the kernel")?;
        let arch = self.device().target().arch();
        let most = u64::from(info.max_threads.unwrap_or(u32::MAX).min(arch.max_threads));
        if shape.threads() == 0 || shape.blocks() == 0 {
            return fail(format!("an empty grid or block: {:?} of {:?}", shape.grid, shape.block));
        }
        if shape.threads() > most {
            return fail(format!("{} threads a block, it takes {most} at most", shape.threads()));
        }
        let shared = u64::from(shape.shared) + u64::from(info.shared);
        if shared > u64::from(arch.shared_per_block) {
            return fail(format!(
                "{shared} bytes of shared memory a block, the device has {}",
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
                    "a cooperative grid of {} blocks; {all} fit the device at once ({each} on \
                     each of {} units)",
                    shape.blocks(),
                    self.device().info().units
                ));
            }
        }
        Ok(())
    }

    /// Puts the event at the stream's present end.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Buffer`] for an event of another device.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.here(event.device(), "the event")?;
        self.keep_event(event);
        // SAFETY: both alive.
        self.device().ok(unsafe { self.device().raw().event_record(event.raw(), self.inner.raw) })
    }

    /// What comes next in this stream starts after the event; the host does not wait.
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.here(event.device(), "the event")?;
        self.keep_event(event);
        // SAFETY: both alive.
        self.device()
            .ok(unsafe { self.device().raw().stream_wait_event(self.inner.raw, event.raw()) })
    }

    fn keep_event(&self, event: &Event) {
        if let Some(kept) = &self.inner.lock().capture {
            kept.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .others
                .push(Arc::new(event.clone()));
        }
    }

    /// Makes the host wait for all that is in the stream. Counted.
    ///
    /// # Errors
    /// [`Error::Driver`]: also what an earlier kernel did wrong.
    pub fn synchronize(&self) -> Result<()> {
        add(&self.device().inner.counters.synchronisations, 1);
        // SAFETY: alive.
        self.device().ok(unsafe { self.device().raw().stream_wait_host(self.inner.raw) })
    }

    /// Whether what is put into it is recorded now.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.inner.is_capturing()
    }

    /// Whether all that is in the stream is done.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: alive.
        self.device().ok(unsafe { self.device().raw().stream_idle(self.inner.raw) })
    }

    pub(super) fn not_capturing(&self, what: &str) -> Result<()> {
        if self.inner.is_capturing() {
            return Err(Error::Buffer(format!("{what} cannot be part of a captured graph")));
        }
        Ok(())
    }
}
