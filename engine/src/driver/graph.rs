//! Captured graphs: work that is recorded once and replayed with one call.

use super::api::Raw;
use super::counters::add;
use super::device::Device;
use super::stream::{CapturedObjects, Stream};
use super::stream_inner::StreamInner;
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Work captured from a stream. It keeps the buffers, page-locked memory and modules that it uses
/// alive.
pub struct Graph {
    device: Device,
    exec: Raw,
    nodes: usize,
    kept: CapturedObjects,
    /// The stream of the last replay. Drop waits for it.
    last: Mutex<Option<Arc<StreamInner>>>,
}

/// A captured graph that is not executable yet.
struct CapturedGraph {
    device: Device,
    raw: Raw,
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: we own the graph; its executables do not need it.
        let _ = unsafe { self.device.raw().graph_destroy(self.raw) };
    }
}

/// Ends a capture if `f` fails or panics.
struct Capture<'a> {
    stream: &'a Stream,
    others: &'a [&'a Stream],
    open: bool,
}

impl Capture<'_> {
    fn end(&mut self) -> Result<CapturedGraph> {
        self.open = false;
        let device = self.stream.device();
        // SAFETY: capture began on this stream.
        let ended = unsafe { device.raw().capture_end(self.stream.inner().raw()) };
        for stream in std::iter::once(&self.stream).chain(self.others) {
            stream.set_capture(None);
        }
        device.capture_ended();
        Ok(CapturedGraph { device: device.clone(), raw: device.ok(ended)? })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.open {
            let _ = self.end();
        }
    }
}

impl Stream {
    /// Captures the operations that `f` enqueues in this stream; they do not run. Launches, copies
    /// within the device or with page-locked memory, and events can be captured; waits cannot.
    /// Other threads may continue to work.
    ///
    /// The graph keeps buffers of another stream's pool alive, but it does not order their use
    /// against that stream. Use an arena, or the pool of this stream.
    ///
    /// # Errors
    /// The error of `f`; [`Error::Driver`] if something cannot be captured.
    pub fn capture(&self, f: impl FnOnce() -> Result<()>) -> Result<Graph> {
        self.capture_across(&[], f)
    }

    /// Like [`Stream::capture`], with further streams that `f` forks to and joins by events.
    ///
    /// # Errors
    /// See [`Stream::capture`].
    pub fn capture_across(
        &self,
        others: &[&Stream],
        f: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        let (recorded, kept) = self.record_graph(others, f)?;
        let device = self.device();
        // SAFETY: the graph is alive.
        let nodes = device.ok(unsafe { device.raw().graph_nodes(recorded.raw) })?;
        // SAFETY: the graph is alive.
        let exec = device.ok(unsafe { device.raw().graph_instantiate(recorded.raw) })?;
        let graph = Graph { device: device.clone(), exec, nodes, kept, last: Mutex::new(None) };
        // SAFETY: executable and stream are alive. The upload only speeds up the first replay.
        device.ok(unsafe { device.raw().graph_upload(exec, self.inner().raw()) })?;
        add(&device.inner.counters.captures, 1);
        Ok(graph)
    }

    fn record_graph(
        &self,
        others: &[&Stream],
        f: impl FnOnce() -> Result<()>,
    ) -> Result<(CapturedGraph, CapturedObjects)> {
        let device = self.device();
        if self.is_capturing() {
            return Err(Error::Buffer("the stream is being captured already".to_owned()));
        }
        device.capture_began();
        // SAFETY: the stream is alive.
        if let Err(fault) = unsafe { device.raw().capture_begin(self.inner().raw()) } {
            device.capture_ended();
            return Err(fault.on(device.label()));
        }
        let kept = Arc::new(Mutex::new(CapturedObjects::default()));
        for stream in std::iter::once(&self).chain(others) {
            stream.set_capture(Some(Arc::clone(&kept)));
        }
        let mut capture = Capture { stream: self, others, open: true };
        let done = f();
        let ended = capture.end();
        done?;
        let recorded = ended?;
        let mut kept = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        kept.memory.sort_by_key(|m| Arc::as_ptr(m) as usize);
        kept.memory.dedup_by_key(|m| Arc::as_ptr(m) as usize);
        kept.pinned.sort_by_key(|m| Arc::as_ptr(m) as usize);
        kept.pinned.dedup_by_key(|m| Arc::as_ptr(m) as usize);
        kept.others.sort_by_key(|m| Arc::as_ptr(m).cast::<u8>() as usize);
        kept.others.dedup_by_key(|m| Arc::as_ptr(m).cast::<u8>() as usize);
        Ok((recorded, kept))
    }

    /// Enqueues one replay of the graph. It does not allocate or wait.
    ///
    /// # Errors
    /// [`Error::Driver`]; [`Error::Buffer`] if the graph belongs to a different device.
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        if !graph.device.same(self.device()) {
            let (of, on) = (graph.device.label(), self.device().label());
            return Err(Error::Buffer(format!("the graph is of {of}, the stream on {on}")));
        }
        for home in graph.kept.memory.iter().filter_map(|m| m.home()) {
            home.used_by(self.inner())?;
        }
        let device = self.device();
        {
            let mut last = graph.last.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: executable and stream are alive; the graph keeps everything that it uses.
            device.ok(unsafe { device.raw().graph_launch(graph.exec, self.inner().raw()) })?;
            if last.as_ref().is_none_or(|s| s.id() != self.inner().id()) {
                // Two streams may have replays in progress. The newer replay must run after the
                // older one, so that the wait in Drop covers both.
                if let Some(before) = last.take() {
                    self.inner().wait_for(&before)?;
                }
                *last = Some(Arc::clone(self.inner()));
            }
        }
        for pinned in &graph.kept.pinned {
            pinned.pending().note(device, self.inner().raw(), self.inner().id())?;
        }
        add(&device.inner.counters.replays, 1);
        Ok(())
    }
}

impl Graph {
    /// Number of captured nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Captures `f` from `stream` and updates the parameters of this graph (arguments, grids). This
    /// is cheaper than a new graph. Returns `false` if the structure differs; the graph is then
    /// unchanged.
    ///
    /// # Errors
    /// See [`Stream::capture`].
    pub fn update(&mut self, stream: &Stream, f: impl FnOnce() -> Result<()>) -> Result<bool> {
        let (recorded, kept) = stream.record_graph(&[], f)?;
        // SAFETY: executable and graph are alive. Replays in progress keep their parameters.
        let updated =
            self.device.ok(unsafe { self.device.raw().graph_update(self.exec, recorded.raw) })?;
        if updated {
            // The memory of replays in progress must exist until they are done.
            self.settle();
            self.kept = kept;
        }
        Ok(updated)
    }

    /// Waits for the last replay.
    fn settle(&self) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stream) = last {
            let device = &self.device;
            // SAFETY: the stream is alive. A failure means a lost context: its work has ended.
            let idle = unsafe { device.raw().stream_idle(stream.raw()) }.unwrap_or(true);
            if !idle {
                add(&device.inner.counters.synchronisations, 1);
                // SAFETY: the stream is alive.
                let _ = unsafe { device.raw().stream_wait_host(stream.raw()) };
            }
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.settle();
        // SAFETY: we own the executable, and it is not running.
        let _ = unsafe { self.device.raw().graph_exec_destroy(self.exec) };
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} nodes on {})", self.nodes, self.device.label())
    }
}
