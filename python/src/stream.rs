//! An answer as an iterator over its parts.

use crate::model::{ModelError, fault};
use crate::wait::LOOK;
use kjit_model::SampleOptions;
use kjit_model::generate::Answer;
use kjit_model::session::SessionError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A prompt with its options.
pub(crate) struct StreamRequest {
    pub ids: Vec<u32>,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub sampling: SampleOptions,
}

/// A part of an answer, or its end.
pub(crate) enum StreamEvent {
    Text(String),
    End(Box<Result<Answer, SessionError>>),
}

/// Checks sampling options: temperature, top_k, top_p, min_p, repeat, presence and frequency
/// penalty. The default seed is the time.
pub(crate) fn sampling(given: [f64; 7], seed: Option<u64>) -> PyResult<SampleOptions> {
    let [temperature, top_k, top_p, min_p, repeat, presence, frequency] = given;
    let rules = [
        ("temperature", temperature, temperature >= 0.0, "must be at least 0"),
        ("top_k", top_k, top_k >= 0.0 && top_k.fract() == 0.0, "must be a whole number (0: all)"),
        ("top_p", top_p, (0.0..=1.0).contains(&top_p), "must be from 0 to 1"),
        ("min_p", min_p, (0.0..=1.0).contains(&min_p), "must be from 0 to 1"),
        ("repeat_penalty", repeat, repeat > 0.0, "must be above 0"),
        ("presence_penalty", presence, true, "must be a number"),
        ("frequency_penalty", frequency, true, "must be a number"),
    ];
    for (name, value, fits, rule) in rules {
        if !(value.is_finite() && fits) {
            return Err(PyValueError::new_err(format!("{name} {rule}, got {value}")));
        }
    }
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |d| d.as_nanos() as u64)
    };
    Ok(SampleOptions {
        temperature: temperature as f32,
        top_k: top_k as usize,
        top_p: top_p as f32,
        min_p: min_p as f32,
        repeat_penalty: repeat as f32,
        presence_penalty: presence as f32,
        frequency_penalty: frequency as f32,
        seed: seed.unwrap_or_else(now),
        ..SampleOptions::default()
    })
}

/// An iterator over the parts of a model's answer, as strings. `close()`, or dropping it, ends the
/// computation.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct TextStream {
    pieces: Mutex<Option<Receiver<StreamEvent>>>,
    halt: Arc<AtomicBool>,
    worker: Mutex<Option<JoinHandle<()>>>,
    answer: Mutex<Option<Answer>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TextStream {
    pub(crate) fn new(
        pieces: Receiver<StreamEvent>,
        halt: Arc<AtomicBool>,
        worker: JoinHandle<()>,
    ) -> TextStream {
        TextStream {
            pieces: Mutex::new(Some(pieces)),
            halt,
            worker: Mutex::new(Some(worker)),
            answer: Mutex::default(),
        }
    }

    /// Ends the computation and waits for its thread, which never needs the interpreter.
    fn end(&self) {
        self.halt.store(true, Ordering::Relaxed);
        drop(lock(&self.pieces).take());
        if let Some(worker) = lock(&self.worker).take() {
            // A panic of the worker was reported to the reader.
            let _ = worker.join();
        }
    }
}

#[pymethods]
impl TextStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            let got = py.detach(|| lock(&self.pieces).as_ref().map(|p| p.recv_timeout(LOOK)));
            match got {
                None => return Ok(None),
                Some(Ok(StreamEvent::Text(text))) => return Ok(Some(text)),
                Some(Ok(StreamEvent::End(done))) => {
                    py.detach(|| self.end());
                    match *done {
                        Ok(answer) => *lock(&self.answer) = Some(answer),
                        Err(error) => return Err(fault(&error)),
                    }
                    return Ok(None);
                }
                Some(Err(RecvTimeoutError::Timeout)) => py.check_signals()?,
                Some(Err(RecvTimeoutError::Disconnected)) => {
                    py.detach(|| self.end());
                    return Err(ModelError::new_err("the answer's thread ended without an answer"));
                }
            }
        }
    }

    /// Ends the answer. Iteration then ends.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    /// Why the answer ended: `end_of_generation`, `length`, `stop_text`, `context_full`. None
    /// before its end, and after `close()`.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        lock(&self.answer).as_ref().map(|a| a.reason.as_str())
    }

    /// Ids of the answer's tokens, a final end-of-generation token included. None before its end.
    #[getter]
    fn ids(&self) -> Option<Vec<u32>> {
        lock(&self.answer).as_ref().map(|a| a.ids.clone())
    }

    /// Seconds until the first token, and from the first token to the last. None before its end.
    #[getter]
    fn seconds(&self) -> Option<(f64, f64)> {
        let answer = lock(&self.answer);
        answer.as_ref().map(|a| (a.first_token.as_secs_f64(), a.decode.as_secs_f64()))
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        self.end();
    }
}
