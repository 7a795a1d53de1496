//! Language models: `kjit/_model.py` has the signatures. One thread at a time computes; a stream
//! computes in a thread of its own and passes its text through a channel.

use crate::class::Tensor;
use crate::convert::raise;
use crate::stream::{StreamEvent, StreamRequest, TextStream};
use crate::wait::patiently;
use kjit_model::conversation::CachedTokens;
use kjit_model::generate::{Answer, Request, generate};
use kjit_model::graph::Pooling;
use kjit_model::model::OpenError;
use kjit_model::sample::Sampler;
use kjit_model::session::{Output, SequenceId, SessionError, Want, check_scores};
use kjit_model::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use kjit_model::{DeviceChoice, Model, OpenOptions, SampleOptions};
use pyo3::exceptions::{
    PyFileNotFoundError, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

pyo3::create_exception!(
    kjit,
    ModelError,
    PyRuntimeError,
    "A model cannot be opened or run: the file, the device or the template. The message names it."
);

/// Pieces of text that wait for their reader before the model does.
const WAITING: usize = 64;

/// The open model and its one sequence.
struct Open {
    model: Model,
    sequence: Option<SequenceId>,
    seen: CachedTokens,
}

impl Open {
    fn sequence(&mut self) -> Result<SequenceId, SessionError> {
        match self.sequence {
            Some(sequence) => Ok(sequence),
            None => {
                let new = self.model.session.add(SampleOptions::default())?;
                Ok(*self.sequence.insert(new))
            }
        }
    }

    /// Computes an answer. A beginning of the prompt that the sequence holds is not fed again.
    fn answer(
        &mut self,
        ask: &StreamRequest,
        text: &mut dyn FnMut(&str) -> ControlFlow<()>,
        stop: &AtomicBool,
    ) -> Result<Answer, SessionError> {
        let sequence = self.sequence()?;
        let context = self.model.session.context();
        if ask.ids.len() > context {
            return Err(SessionError::Context { tokens: ask.ids.len(), context });
        }
        let Model { session, tokenizer, .. } = &mut self.model;
        *session.sampler(sequence)? = Sampler::new(ask.sampling.clone());
        let prompt = self.seen.rest(session, sequence, &ask.ids)?;
        let request =
            Request { prompt, max_tokens: ask.max_tokens, stop: &ask.stop, ..Request::default() };
        let stop = || stop.load(Ordering::Relaxed);
        let answer = generate(session, sequence, tokenizer, &request, text, &stop)?;
        self.seen.generated(session, sequence, &answer.ids)?;
        Ok(answer)
    }
}

/// The parts of a model that its streams share.
pub(crate) struct ModelParts {
    open: Mutex<Open>,
    /// Threads that have an unfinished stream.
    streaming: Mutex<HashSet<ThreadId>>,
    /// A second session that makes vectors, for models that make text.
    embedder: Mutex<Option<(Option<Pooling>, Model)>>,
    /// A tokenizer besides the model's own, which is in use while a stream is open.
    tokenizer: OnceLock<Tokenizer>,
    gguf: Arc<kjit_model::gguf::Gguf>,
    path: PathBuf,
    options: OpenOptions,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exception for an error of a session.
pub(crate) fn fault(error: &SessionError) -> PyErr {
    let text = error.to_string();
    match error {
        SessionError::Token { .. } | SessionError::NoTokens => PyValueError::new_err(text),
        SessionError::Context { tokens, context } => PyValueError::new_err(format!(
            "{tokens} tokens do not fit in the context of {context}: open the model with a larger context=, or give a shorter prompt"
        )),
        SessionError::Memory { .. } => PyMemoryError::new_err(text),
        _ => ModelError::new_err(text),
    }
}

fn refused(error: OpenError) -> PyErr {
    match &error {
        OpenError::Asked { source, .. } | OpenError::Found { source, .. }
            if matches!(source, SessionError::Memory { .. }) =>
        {
            PyMemoryError::new_err(error.to_string())
        }
        OpenError::Cpu(source) => fault(source),
        _ => ModelError::new_err(error.to_string()),
    }
}

/// The file of a reference: a path, or a model of the hub, which is fetched if it is missing.
fn find(name: &str) -> PyResult<PathBuf> {
    let wrong = |e: kjit_hub::BadReference| PyValueError::new_err(e.to_string());
    let path = PathBuf::from(name);
    let reference: kjit_hub::Reference = if name.starts_with(kjit_hub::SCHEME) {
        name.parse().map_err(wrong)?
    } else if path.exists() {
        return Ok(path);
    } else if kjit_hub::is_address(name) {
        name.parse().map_err(wrong)?
    } else {
        let of_hub: Option<kjit_hub::Reference> =
            format!("{}{name}", kjit_hub::SCHEME).parse().ok();
        match of_hub.filter(|r| !matches!(r.pick(), kjit_hub::Pick::File(_))) {
            Some(reference) => reference,
            None => {
                return Err(PyFileNotFoundError::new_err(format!(
                    "{name}: no such file or folder, and not a name of the hub such as hf:ORG/REPO:Q4_K_M"
                )));
            }
        }
    };
    let settings = kjit_hub::Settings::from_env().map_err(|e| PyOSError::new_err(e.to_string()))?;
    let local = kjit_hub::Hub::new(settings).get(&reference, &|_| {});
    Ok(local.map_err(|e| PyOSError::new_err(e.to_string()))?.path().to_owned())
}

/// A model that is open.
#[pyclass(module = "kjit", frozen)]
pub(crate) struct LanguageModel(Arc<ModelParts>);

#[pymethods]
impl LanguageModel {
    #[new]
    #[pyo3(signature = (name, device, context, memory, stream, threads, precise))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of kjit.Model")]
    fn new(
        py: Python<'_>,
        name: String,
        device: &str,
        context: Option<usize>,
        memory: Option<u64>,
        stream: bool,
        threads: Option<usize>,
        precise: bool,
    ) -> PyResult<LanguageModel> {
        let device: DeviceChoice =
            device.parse().map_err(|e| PyValueError::new_err(format!("device '{device}': {e}")))?;
        let default = OpenOptions::default();
        let threads = threads.map_or(default.threads, |n| n.max(1));
        let options = OpenOptions { device, context, memory, stream, threads, precise, ..default };
        let (path, model, options) = patiently(py, move || {
            let path = find(&name)?;
            let config = kjit_ops::device::config();
            let model = Model::open_with(&path, &options, config).map_err(refused)?;
            Ok((path, model, options))
        })?;
        let gguf = Arc::clone(&model.gguf);
        Ok(LanguageModel(Arc::new(ModelParts {
            open: Mutex::new(Open { model, sequence: None, seen: CachedTokens::default() }),
            streaming: Mutex::default(),
            embedder: Mutex::default(),
            tokenizer: OnceLock::new(),
            gguf,
            path,
            options,
        })))
    }

    #[getter]
    fn path(&self) -> String {
        self.0.path.display().to_string()
    }

    /// Device, its description, architecture of the model, context, size of the vocabulary.
    fn facts(&self, py: Python<'_>) -> PyResult<(String, String, String, usize, usize)> {
        self.0.with(py, |open| {
            let (session, device) = (&open.model.session, open.model.device());
            let arch = session.graph().arch.clone();
            let (context, n_vocab) = (session.context(), session.n_vocab());
            Ok((device.label.clone(), device.to_string(), arch, context, n_vocab))
        })
    }

    fn tokenize(
        &self,
        py: Python<'_>,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let tokenizer = self.0.tokenizer(py)?;
        let options = EncodeOptions { add_special, parse_special, ..EncodeOptions::default() };
        Ok(py.detach(|| tokenizer.encode(text.as_bytes(), options)))
    }

    fn detokenize(&self, py: Python<'_>, ids: Vec<u32>, special: bool) -> PyResult<String> {
        let options = DecodeOptions {
            remove_special: !special,
            unparse_special: special,
            ..DecodeOptions::default()
        };
        let bytes = self.0.tokenizer(py)?.decode_with(&ids, options);
        let bytes = bytes.map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The prompt's ids of a conversation in JSON.
    fn chat_prompt(&self, py: Python<'_>, messages: &str) -> PyResult<Vec<u32>> {
        let tokenizer = self.0.tokenizer(py)?;
        py.detach(|| {
            let fail = |e: kjit_model::chat::ChatError| ModelError::new_err(e.to_string());
            let template =
                kjit_model::chat::ChatTemplate::from_gguf(&self.0.gguf, tokenizer).map_err(fail)?;
            let prompt = template.render_json(messages, None, true).map_err(fail)?;
            Ok(tokenizer.encode_chat(&prompt))
        })
    }

    /// Begins an answer.
    #[pyo3(signature = (ids, max_tokens, stop, sampling, seed))]
    fn start(
        &self,
        ids: Vec<u32>,
        max_tokens: Option<usize>,
        stop: Vec<String>,
        sampling: [f64; 7],
        seed: Option<u64>,
    ) -> PyResult<TextStream> {
        if ids.is_empty() {
            return Err(PyValueError::new_err("the prompt is empty: no token to continue from"));
        }
        if stop.iter().any(String::is_empty) {
            return Err(PyValueError::new_err("an empty stop string would end every answer"));
        }
        let ask = StreamRequest {
            ids,
            max_tokens,
            stop,
            sampling: crate::stream::sampling(sampling, seed)?,
        };
        let thread = self.0.enter()?;
        let (send, receive) = sync_channel(WAITING);
        let halt = Arc::new(AtomicBool::new(false));
        let (shared, watched) = (Arc::clone(&self.0), Arc::clone(&halt));
        let work = move || {
            // Leaves the set of streaming threads after a panic, too.
            let leave = Leave { shared: &shared, thread };
            let mut text = |piece: &str| match send.send(StreamEvent::Text(piece.to_owned())) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
            let done = lock(&shared.open).answer(&ask, &mut text, &watched);
            drop(leave);
            // The reader may have gone.
            let _ = send.send(StreamEvent::End(Box::new(done)));
        };
        let worker = std::thread::Builder::new().name("kjit-model".to_owned()).spawn(work);
        match worker {
            Ok(worker) => Ok(TextStream::new(receive, halt, worker)),
            Err(e) => {
                lock(&self.0.streaming).remove(&thread);
                Err(ModelError::new_err(format!("no thread for the answer: {e}")))
            }
        }
    }

    /// Logits after the last id, or after every one.
    fn logits(&self, py: Python<'_>, ids: Vec<u32>, all: bool) -> PyResult<Tensor> {
        let (rows, n_vocab, label) = self.0.with(py, |open| {
            let sequence = open.sequence().map_err(|e| fault(&e))?;
            open.seen = CachedTokens::default();
            let session = &mut open.model.session;
            let mut feed = || {
                session.truncate(sequence, 0)?;
                session.feed(sequence, &ids, if all { Want::All } else { Want::Last })
            };
            let rows = feed().map_err(|e| fault(&e))?;
            check_scores(&rows).map_err(|e| fault(&e))?;
            Ok((rows, session.n_vocab(), open.model.device().label.clone()))
        })?;
        let shape = if all { vec![rows.len() / n_vocab.max(1), n_vocab] } else { vec![n_vocab] };
        floats(py, &rows, &shape, &label)
    }

    /// A vector for each list of ids: (n, width).
    fn embed(
        &self,
        py: Python<'_>,
        lists: Vec<Vec<u32>>,
        normalise: bool,
        pooling: Option<&str>,
    ) -> PyResult<Tensor> {
        let pooling = pooling.map(pooled).transpose()?;
        let own = self.0.with(py, |open| Ok(open.model.session.graph().pooling.is_some()))?;
        let (rows, label) = if own && pooling.is_none() {
            self.0.with(py, |open| vectors(&mut open.model, &lists))?
        } else {
            patiently(py, {
                let (shared, lists) = (Arc::clone(&self.0), lists.clone());
                move || shared.embedded(pooling, &lists)
            })?
        };
        let width = rows.first().map_or(0, Vec::len);
        let mut flat = rows.concat();
        if flat.iter().any(|v| !v.is_finite()) {
            return Err(ModelError::new_err("a vector is not finite: the model is damaged"));
        }
        if normalise {
            flat.chunks_mut(width.max(1)).for_each(scale);
        }
        floats(py, &flat, &[lists.len(), width], &label)
    }
}

/// Removes a thread from the set of those that stream.
struct Leave<'a> {
    shared: &'a ModelParts,
    thread: ThreadId,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        lock(&self.shared.streaming).remove(&self.thread);
    }
}

impl ModelParts {
    fn busy() -> PyErr {
        ModelError::new_err(
            "a stream of this model is open in this thread: read it to its end, or close() it",
        )
    }

    /// Marks this thread as one that streams.
    fn enter(&self) -> PyResult<ThreadId> {
        let thread = std::thread::current().id();
        match lock(&self.streaming).insert(thread) {
            true => Ok(thread),
            false => Err(ModelParts::busy()),
        }
    }

    /// Calls `f` with the model, without the interpreter's lock, after the work of other threads.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Open) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        if lock(&self.streaming).contains(&std::thread::current().id()) {
            return Err(ModelParts::busy());
        }
        py.detach(|| f(&mut lock(&self.open)))
    }

    fn tokenizer(&self, py: Python<'_>) -> PyResult<&Tokenizer> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let made = py.detach(|| Tokenizer::from_gguf(&self.gguf));
        let made = made.map_err(|e| ModelError::new_err(e.to_string()))?;
        Ok(self.tokenizer.get_or_init(|| made))
    }

    /// Vectors of a second session, which is opened at the first call.
    fn embedded(
        &self,
        pooling: Option<Pooling>,
        lists: &[Vec<u32>],
    ) -> PyResult<(Vec<Vec<f32>>, String)> {
        let mut open = lock(&self.embedder);
        if open.as_ref().is_none_or(|(p, _)| *p != pooling) {
            *open = None;
            let options = OpenOptions { output: Output::Vector(pooling), ..self.options.clone() };
            let config = kjit_ops::device::config();
            let model = Model::open_with(&self.path, &options, config).map_err(refused)?;
            *open = Some((pooling, model));
        }
        match open.as_mut() {
            Some((_, model)) => vectors(model, lists),
            None => Err(ModelError::new_err("the session for vectors was lost")),
        }
    }
}

fn vectors(model: &mut Model, lists: &[Vec<u32>]) -> PyResult<(Vec<Vec<f32>>, String)> {
    let each = lists.iter().map(|ids| model.session.embed(ids).map_err(|e| fault(&e)));
    let rows = each.collect::<PyResult<Vec<_>>>()?;
    Ok((rows, model.device().label.clone()))
}

fn pooled(word: &str) -> PyResult<Pooling> {
    match word {
        "first" | "cls" => Ok(Pooling::First),
        "last" => Ok(Pooling::Last),
        "mean" => Ok(Pooling::Mean),
        other => Err(PyValueError::new_err(format!(
            "pooling '{other}' is not valid; use first, last or mean"
        ))),
    }
}

/// Scales to length 1. A zero vector stays as it is: it has no direction.
fn scale(row: &mut [f32]) {
    let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

/// A tensor of floats on the model's device.
fn floats(py: Python<'_>, values: &[f32], shape: &[usize], label: &str) -> PyResult<Tensor> {
    let made = py.detach(|| {
        let device = kjit_ops::Device::open(label)?;
        let bytes = bytemuck::cast_slice::<f32, u8>(values);
        kjit_ops::Tensor::from_bytes(bytes, kjit_ops::DType::F32, shape, &device)
    });
    made.map(Tensor::of).map_err(raise)
}

pub(crate) fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("ModelError", m.py().get_type::<ModelError>())?;
    m.add_class::<LanguageModel>()?;
    m.add_class::<TextStream>()
}
