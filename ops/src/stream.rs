//! Streams and events. Work in a stream runs in order; streams of one device run side by side. A
//! tensor may be used in any stream: reads of another stream's tensor wait for it on the device.
//!
//! A thread's work goes to the stream that it entered last, or to the device's own stream. Tensors
//! are lazy, so the end of [`Stream::run`] computes those that were made in it and still live.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::Lane;
use crate::node::{Node, Op};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

/// A queue of work on a device. Clones are the same stream. The CPU's has no queue: its work has
/// ended when the call returns.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    /// `None`: the device's own stream, or the CPU's.
    lane: Option<Arc<Lane>>,
}

/// A stream that a thread has entered.
struct Entered {
    stream: Stream,
    /// The nodes of its device that were made since.
    made: Vec<Weak<Node>>,
}

/// Whether any thread ever entered a stream: most programs never do, and pay one load.
static ENTERED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static STREAMS: RefCell<Vec<Entered>> = const { RefCell::new(Vec::new()) };
}

/// The lane of the stream of a device that this thread entered last; `None` for the device's own.
pub(crate) fn current(device: usize) -> Option<Arc<Lane>> {
    if !ENTERED.load(Ordering::Relaxed) {
        return None;
    }
    STREAMS.with_borrow(|all| {
        all.iter().rev().find(|e| e.stream.device.id() == device)?.stream.lane.clone()
    })
}

/// Notes a new node for the stream that this thread is in.
pub(crate) fn note(node: &Arc<Node>) {
    if !ENTERED.load(Ordering::Relaxed) {
        return;
    }
    STREAMS.with_borrow_mut(|all| {
        let own = all.iter_mut().rev().find(|e| e.stream.device == node.device);
        let Some(Entered { made, .. }) = own else { return };
        made.push(Arc::downgrade(node));
        // A long block forgets what has ended.
        if made.len() >= 1024 && made.len().is_power_of_two() {
            made.retain(|n| n.upgrade().is_some_and(|n| n.value().is_none()));
        }
    });
}

impl Stream {
    /// A stream beside the device's own. `urgent`: its kernels go before those of other streams.
    ///
    /// # Errors
    /// [`Error::Engine`] if the driver makes no stream.
    pub fn new(device: &Device, urgent: bool) -> Result<Stream> {
        let lane = match device {
            Device::Cpu => None,
            Device::Gpu(gpu) => Some(gpu.take_lane(urgent)?),
        };
        Ok(Stream { device: device.clone(), lane })
    }

    /// The stream in which this thread's work on a device goes.
    #[must_use]
    pub fn current(device: &Device) -> Stream {
        Stream { device: device.clone(), lane: current(device.id()) }
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn raw(&self) -> Option<&kjit_engine::Stream> {
        match (&self.lane, &self.device) {
            (Some(lane), _) => Some(&lane.stream),
            (None, Device::Gpu(gpu)) => Some(gpu.stream()),
            (None, Device::Cpu) => None,
        }
    }

    /// The driver's handle (`CUstream`, `hipStream_t`); 0 for the CPU.
    #[must_use]
    pub fn handle(&self) -> usize {
        self.raw().map_or(0, kjit_engine::Stream::handle)
    }

    /// Makes it this thread's stream until [`Stream::leave`].
    pub fn enter(&self) {
        ENTERED.store(true, Ordering::Relaxed);
        let entered = Entered { stream: self.clone(), made: Vec::new() };
        STREAMS.with_borrow_mut(|all| all.push(entered));
    }

    /// Ends the last [`Stream::enter`] of this stream in this thread. With `compute`, tensors of
    /// its device that were made since, and that still live, are computed in it first.
    ///
    /// # Errors
    /// Errors of the computation, after which the stream has been left; [`Error::Value`] if the
    /// thread has not entered it.
    pub fn leave(&self, compute: bool) -> Result<()> {
        let done = if compute { self.flush() } else { Ok(()) };
        let left = STREAMS.with_borrow_mut(|all| {
            let at = all.iter().rposition(|e| e.stream == *self)?;
            Some(all.remove(at))
        });
        match left {
            Some(_) => done,
            None => Err(Error::value("Stream", "this thread has not entered the stream")),
        }
    }

    /// Calls a function in this stream, and computes the tensors of its device that it made.
    ///
    /// # Errors
    /// The function's errors; errors of the computation.
    pub fn run<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.enter();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let left = self.leave(matches!(result, Ok(Ok(_))));
        let value = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        left.map(|()| value)
    }

    /// Computes the tensors that this thread made since it entered this stream, if it did.
    fn flush(&self) -> Result<()> {
        let made = STREAMS.with_borrow_mut(|all| {
            let own = all.iter_mut().rev().find(|e| e.stream == *self);
            own.map(|e| std::mem::take(&mut e.made)).unwrap_or_default()
        });
        // The last results first: what only they read is computed with them.
        for node in made.into_iter().rev().filter_map(|node| node.upgrade()) {
            let apart = node.def().is_some_and(|d| !matches!(d.op, Op::Constant(_) | Op::Iota));
            if apart {
                crate::eval::force(&node)?;
            }
        }
        Ok(())
    }

    /// Waits for all work in the stream.
    ///
    /// # Errors
    /// [`Error::Engine`], also for a fault of an earlier kernel; [`Error::Index`] for an index out
    /// of range; errors of computing the tensors that this thread made in it.
    pub fn synchronize(&self) -> Result<()> {
        self.flush()?;
        match (self.raw(), &self.device) {
            (Some(raw), Device::Gpu(gpu)) => {
                raw.synchronize()?;
                gpu.check_indices()
            }
            _ => Ok(()),
        }
    }

    /// Whether all work in the stream has ended.
    ///
    /// # Errors
    /// As [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        self.flush()?;
        Ok(self.raw().map_or(Ok(true), kjit_engine::Stream::is_idle)?)
    }

    /// Makes later work of this stream wait for an event; the host does not wait. An event that was
    /// never recorded has nothing to wait for.
    ///
    /// # Errors
    /// [`Error::Devices`] for an event of another device; [`Error::Engine`].
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        Device::same("wait_event", &self.device, &event.device)?;
        self.flush()?;
        let point = event.lock().clone();
        if let (Some(raw), Some(Point::Device(point))) = (self.raw(), point) {
            raw.wait(&point)?;
        }
        Ok(())
    }

    /// Makes later work of this stream wait for the current work of another stream of its device.
    ///
    /// # Errors
    /// As [`Stream::wait_event`].
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        let event = Event::new(&other.device, false);
        event.record(other)?;
        self.wait_event(&event)
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        self.device == other.device && self.handle() == other.handle()
    }
}

impl Eq for Stream {}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({}, {:#x})", self.device, self.handle())
    }
}

/// The place of an event.
#[derive(Clone)]
enum Point {
    Device(kjit_engine::Event),
    /// The CPU's work had ended at this time.
    Host(Instant),
}

/// A point in a stream: streams wait for it, and two of them measure the time between.
pub struct Event {
    device: Device,
    timed: bool,
    point: Mutex<Option<Point>>,
}

impl Event {
    /// An event that is not recorded yet. Only a `timed` one can measure; others cost less.
    #[must_use]
    pub fn new(device: &Device, timed: bool) -> Event {
        Event { device: device.clone(), timed, point: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Point>> {
        self.point.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Places it at the current end of a stream of its device, instead of where it was.
    ///
    /// # Errors
    /// [`Error::Devices`] for a stream of another device; [`Error::Engine`]; errors of computing
    /// the tensors that this thread made in the stream.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        Device::same("record", &self.device, &stream.device)?;
        stream.flush()?;
        let point = match (stream.raw(), &self.device) {
            (Some(raw), Device::Gpu(gpu)) => {
                // A new one: streams may still wait for the last place.
                let event = gpu.event(self.timed)?;
                raw.record(&event)?;
                Point::Device(event)
            }
            _ => Point::Host(Instant::now()),
        };
        *self.lock() = Some(point);
        Ok(())
    }

    /// Waits until the work before the event has ended. Returns at once if it was never recorded.
    ///
    /// # Errors
    /// [`Error::Engine`], also for a fault of an earlier kernel.
    pub fn synchronize(&self) -> Result<()> {
        let point = self.lock().clone();
        if let Some(Point::Device(event)) = point {
            event.synchronize()?;
        }
        Ok(())
    }

    /// Whether the work before the event has ended; true if it was never recorded.
    ///
    /// # Errors
    /// As [`Event::synchronize`].
    pub fn is_done(&self) -> Result<bool> {
        match &*self.lock() {
            Some(Point::Device(event)) => Ok(event.is_done()?),
            _ => Ok(true),
        }
    }

    /// Milliseconds from this event to a later one. Waits for both.
    ///
    /// # Errors
    /// [`Error::Devices`]; [`Error::Value`] if one was not recorded or not made for timing;
    /// [`Error::Engine`].
    pub fn milliseconds_until(&self, end: &Event) -> Result<f64> {
        const OP: &str = "elapsed_time";
        Device::same(OP, &self.device, &end.device)?;
        // One after the other: both may be one event.
        let a = self.lock().clone();
        let b = end.lock().clone();
        if !(self.timed && end.timed) {
            return Err(Error::value(OP, "both events need timing: Event(timing=True)"));
        }
        match (a, b) {
            (Some(Point::Device(a)), Some(Point::Device(b))) => {
                a.synchronize()?;
                b.synchronize()?;
                Ok(f64::from(b.milliseconds_since(&a)?))
            }
            (Some(Point::Host(a)), Some(Point::Host(b))) => {
                let (later, sign) = if b >= a { (b - a, 1.0) } else { (a - b, -1.0) };
                Ok(sign * later.as_secs_f64() * 1e3)
            }
            _ => Err(Error::value(OP, "both events must be recorded first")),
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({})", self.device)
    }
}
