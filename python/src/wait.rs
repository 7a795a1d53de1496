//! Long work that Ctrl-C interrupts.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// How often the interpreter's signals are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Runs work in a thread of its own without the interpreter's lock, and returns its result. After
/// a signal (Ctrl-C) the exception is raised at once, and the work ends unheard.
pub(crate) fn patiently<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = sync_channel(1);
    let spawned = std::thread::Builder::new().spawn(move || {
        // The caller may have been interrupted.
        let _ = send.send(work());
    });
    spawned.map_err(|e| PyRuntimeError::new_err(format!("no thread for the work: {e}")))?;
    let receive = std::sync::Mutex::new(receive);
    loop {
        let got = py.detach(|| match receive.lock() {
            Ok(receive) => receive.recv_timeout(LOOK),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        });
        match got {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the work's thread ended without a result"));
            }
        }
    }
}
