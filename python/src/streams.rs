//! Streams and events of devices.

use crate::convert::run;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A queue of work on a device, beside the device's own. Work in a stream runs in order; streams
/// run side by side. ``with stream:`` makes it the stream of this thread; the end of the block
/// computes the tensors that were made in it and still live. A tensor of one stream may be used in
/// another, which waits for it on the device.
///
/// ``priority`` below 0: its kernels go before those of other streams. The CPU has no queue: its
/// work has ended when a call returns.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct Stream(kjit_ops::Stream);

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (device=None, priority=0))]
    fn new(py: Python<'_>, device: Option<&str>, priority: i64) -> PyResult<Stream> {
        let device = crate::convert::device(py, device)?;
        run(py, || kjit_ops::Stream::new(&device, priority < 0)).map(Stream)
    }

    /// Its device: ``cuda:0``, ``cpu``.
    #[getter]
    fn device(&self) -> &str {
        self.0.device().label()
    }

    /// The driver's handle (``CUstream``, ``hipStream_t``); 0 for the CPU.
    /// ``torch.cuda.ExternalStream(handle)`` makes torch use it.
    #[getter]
    fn handle(&self) -> usize {
        self.0.handle()
    }

    /// Waits for all work in the stream; raises the errors of earlier kernels.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Whether all work in the stream has ended.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.is_idle())
    }

    /// Makes later work of this stream wait for an event; the host does not wait.
    fn wait_event(&self, py: Python<'_>, event: &Bound<'_, Event>) -> PyResult<()> {
        let event = event.get();
        run(py, || self.0.wait_event(&event.0))
    }

    /// Makes later work of this stream wait for the current work of another one.
    fn wait_stream(&self, py: Python<'_>, stream: &Bound<'_, Stream>) -> PyResult<()> {
        let other = stream.get();
        run(py, || self.0.wait_stream(&other.0))
    }

    /// Records an event, by default a new one, at the current end of the stream, and returns it.
    #[pyo3(signature = (event=None))]
    fn record_event<'py>(
        &self,
        py: Python<'py>,
        event: Option<Bound<'py, Event>>,
    ) -> PyResult<Bound<'py, Event>> {
        let event = match event {
            Some(event) => event,
            None => Bound::new(py, Event(kjit_ops::Event::new(self.0.device(), false)))?,
        };
        let own = event.get();
        run(py, || own.0.record(&self.0))?;
        Ok(event)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf.0.enter();
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let failed = exception.get_item(0).is_ok_and(|kind| !kind.is_none());
        run(py, || self.0.leave(!failed))
    }

    fn __repr__(&self) -> String {
        format!("kjit.Stream(device='{}', handle={:#x})", self.0.device().label(), self.0.handle())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Stream>().is_ok_and(|o| o.get().0 == self.0)
    }

    fn __hash__(&self) -> usize {
        self.0.handle()
    }
}

/// A point in a stream. ``timing=True`` makes it measure.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct Event(kjit_ops::Event);

#[pymethods]
impl Event {
    #[new]
    #[pyo3(signature = (timing=false, device=None))]
    fn new(py: Python<'_>, timing: bool, device: Option<&str>) -> PyResult<Event> {
        Ok(Event(kjit_ops::Event::new(&crate::convert::device(py, device)?, timing)))
    }

    /// Its device.
    #[getter]
    fn device(&self) -> &str {
        self.0.device().label()
    }

    /// Places it at the current end of a stream, by default this thread's current one. Tensors that
    /// were made outside ``with stream:`` and not computed are not in the stream: ``eval()`` them.
    #[pyo3(signature = (stream=None))]
    fn record(&self, py: Python<'_>, stream: Option<&Bound<'_, Stream>>) -> PyResult<()> {
        let stream = match stream {
            Some(stream) => stream.get().0.clone(),
            None => kjit_ops::Stream::current(self.0.device()),
        };
        run(py, || self.0.record(&stream))
    }

    /// Makes later work of a stream, by default this thread's current one, wait for the event.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, Stream>>) -> PyResult<()> {
        let stream = match stream {
            Some(stream) => stream.get().0.clone(),
            None => kjit_ops::Stream::current(self.0.device()),
        };
        run(py, || stream.wait_event(&self.0))
    }

    /// Waits until the work before the event has ended.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.synchronize())
    }

    /// Whether the work before the event has ended; true if it was never recorded.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        run(py, || self.0.is_done())
    }

    /// Milliseconds from this event to a later one, after both have been reached. Both need
    /// ``timing=True``.
    fn elapsed_time(&self, py: Python<'_>, end_event: &Bound<'_, Event>) -> PyResult<f64> {
        let end = end_event.get();
        run(py, || self.0.milliseconds_until(&end.0))
    }

    fn __repr__(&self) -> String {
        format!("kjit.Event(device='{}')", self.0.device().label())
    }
}

/// This thread's current stream of a device, by default of the default device.
#[pyfunction]
#[pyo3(signature = (device=None))]
fn current_stream(py: Python<'_>, device: Option<&str>) -> PyResult<Stream> {
    Ok(Stream(kjit_ops::Stream::current(&crate::convert::device(py, device)?)))
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Stream>()?;
    m.add_class::<Event>()?;
    m.add_function(wrap_pyfunction!(current_stream, m)?)
}
