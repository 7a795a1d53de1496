//! A model that was opened and has a scheduler.

use crate::fetch::Fetch;
use crate::options::{Options, Served};
use crate::refusal::Refusal;
use crate::samplers::Breakers;
use kjit_engine::Engine;
use kjit_model::cancel::Cancel;
use kjit_model::chat::{ChatTemplate, Form};
use kjit_model::constrain::{GrammarError, Grammars};
use kjit_model::device::{DeviceChoice, DeviceTaken};
use kjit_model::exec::ImageTable;
use kjit_model::gguf::Gguf;
use kjit_model::graph::{Graph, Pooling};
use kjit_model::images::{Images, ImagesError};
use kjit_model::model::OpenError;
use kjit_model::placement::{DivideError, PlacementError};
use kjit_model::serve::{Reopen, SavedPages, Scheduler, SchedulerOptions, State};
use kjit_model::session::{OpenOptions, Output, Session, SessionError};
use kjit_model::tokenizer::{Limit, Stopped, Tokenizer};
use kjit_model::{Model, arch};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Memory for embeddings with a generative model, besides weights, keys and values: hidden states
/// of a prompt, and memory that the generating model may need later, for example for captured
/// graphs.
const EMBEDDING_RESERVE: u64 = 1 << 30;

/// Time after a failed second opening before the next try.
const REOPEN_INTERVAL: Duration = Duration::from_secs(10);

/// A model that is loaded.
pub struct Loaded {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, or the reason why it is missing.
    pub template: Result<ChatTemplate, String>,
    /// Control tokens in messages of users and tools are treated as text.
    pub literal_user_text: bool,
    /// Context size in tokens: prompt and answer together.
    pub context: usize,
    /// The devices of the model.
    pub device: DeviceTaken,
    /// `general.architecture`.
    pub arch: String,
    /// Name of the mix of quantization types, such as Q4_K_M.
    pub mix: String,
    /// Whether the model is an encoder: it computes embeddings, not text.
    pub encoder: bool,
    /// Size of all weights in bytes.
    pub weights: u64,
    /// Number of elements of all weights.
    pub parameters: u64,
    /// `general.license`.
    license: Option<String>,
    /// Digest of the model file.
    digest: String,
    /// Bytes of keys and values when all contexts are full.
    pub kv: u64,
    /// Bytes of keys and values of one full context.
    context_bytes: u64,
    /// Whether tokens may be drafted. On a GPU, one or two sequences are decoded ahead of the host,
    /// and drafts prevent this. Measurements did not show that drafts make up for this, so drafting
    /// on a GPU is off unless it is requested.
    pub lookup: bool,
    /// Names and options of the model.
    pub served: Served,
    /// The encoder of images, if there is one.
    pub images: Option<Images>,
    /// Fetches images, if the server may.
    pub fetch: Option<Fetch>,
    engine: Option<Engine>,
    n_vocab: usize,
    /// Created for the first constrained answer.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    /// Token lists of DRY's sequence breakers.
    pub breakers: Breakers,
    /// The second opening of a generative model, for embeddings. Created on the first request for
    /// embeddings.
    vectors: Mutex<Option<(Scheduler, Option<ModelRegistration>)>>,
    /// Locked while the model is opened. Time and reason of the last failure.
    opening: Mutex<Option<(Instant, String)>>,
    /// Held while waiting for the opening, without blocking a thread.
    pub turn: tokio::sync::Mutex<()>,
    others: Arc<LoadedModels>,
    /// Whether the model has less memory than it would have alone.
    lacks_room: bool,
    _listed: ModelRegistration,
}

impl Loaded {
    /// Opens the model.
    ///
    /// # Errors
    /// One line that describes the fault of the file or the device.
    pub fn open(
        options: &Options,
        served: &Served,
        others: &Arc<LoadedModels>,
    ) -> Result<Loaded, NotLoaded> {
        let line = |error: &dyn std::fmt::Display| error.to_string();
        // An encoder that was found beside the model, and cannot be used, is left out.
        let text_only = |error: ImagesError| match served.mmproj_is_optional {
            true => {
                (options.say)(&format!("note: {} reads text only: {error}", served.name()));
                Ok(())
            }
            false => Err(format!("--mmproj: {error}")),
        };
        let mut images = None;
        if let Some(file) = &served.mmproj {
            match Images::open(file, served.open.threads) {
                Ok(opened) => images = Some(opened),
                Err(error) => text_only(error)?,
            }
        }
        let mut served = served.clone();
        served.open.image_rows = images.as_ref().map_or(0, Images::rows_that_see_each_other);
        let served = &served;
        let model = Model::open_with(&served.path, &served.open, options.engine.clone())?;
        model.gguf.remarks().iter().for_each(|line| (options.say)(&format!("note: {line}")));
        if served.must_page && model.session.pages().is_none() {
            let why = "KV pages need a GPU, but the model runs on the CPU";
            return Err(format!("--kv-pages on: {why} ({})", model.device()).into());
        }
        let template = match &options.template {
            Some(file) => {
                ChatTemplate::from_file(file, &model.tokenizer).map_err(|error| line(&error))
            }
            None => model.template().map_err(|error| line(&error)),
        };
        if options.template.is_some() {
            // A template that was named and cannot be used is an error. A model without template
            // still completes text.
            template.as_ref().map_err(String::clone)?;
        }
        if let Ok(Some(note)) = template.as_ref().map(ChatTemplate::note) {
            (options.say)(&note);
        }
        let streamed = model.session.gpu().and_then(|gpu| gpu.statistics().streamed);
        streamed.iter().for_each(|streamed| (options.say)(&streamed.to_string()));
        let asked = &served.open;
        if streamed.is_some() && asked.adapter_slots.is_some() {
            let line = "--max-loras needs all weights on the device: \
                        give it more --memory, or a smaller model";
            return Err(NotLoaded { line: line.to_owned(), room: true });
        }
        let fewer = asked.fewer
            && model.session.gpu().is_some()
            && model.session.sequences() < asked.sequences;
        let lacks_room = fewer || streamed.is_some() && !asked.stream && asked.memory.is_none();
        let graph = model.session.graph();
        let arch =
            model.gguf.opt_str("general.architecture").ok().flatten().unwrap_or("?").to_owned();
        let (weights, parameters) = sizes(graph);
        let mix = model.gguf.mix_name();
        let (license, digest) = (license(&model.gguf), digest(&served.path));
        let (context, encoder, n_vocab) =
            (model.session.context(), graph.pooling.is_some(), model.session.n_vocab());
        let context_bytes = served
            .open
            .kv_stored()
            .bytes(graph.kv_elems_per_token())
            .saturating_mul(context as u64);
        let (device, engine, kv) =
            (model.device().clone(), model.engine().cloned(), model.kv_bytes());
        let Model { tokenizer, mut session, .. } = model;
        let saved_pages = saved_pages(options, served, &session)?;
        if let Some(Err(error)) = images.as_ref().map(|images| images.attach(&mut session)) {
            text_only(error)?;
            images = None;
        }
        let table = images.as_ref().map(|images| Arc::clone(images.table()));
        let held_tokens = seated(&mut session, served);
        let kv =
            served.shared_memory.filter(|_| held_tokens.is_some()).map_or(kv, |(bytes, _)| bytes);
        let scheduling = SchedulerOptions {
            max_queue: options.max_queue,
            token_budget: options.token_budget,
            latency_target: options.latency_target,
            held_tokens,
            reopen: Some(again(options, served, &device.label, others, table)),
            saved_pages,
            block_events: options
                .kv_events
                .as_ref()
                .map(|events| events.sink(if device.is_gpu() { "GPU" } else { "CPU" })),
            ..SchedulerOptions::default()
        };
        let scheduler =
            Scheduler::start(session, scheduling).map_err(|error| format!("no thread: {error}"))?;
        let listed = others.add(&device.label, &scheduler);
        let lookup = options.lookup.unwrap_or(!device.is_gpu());
        Ok(Loaded {
            lookup,
            served: served.clone(),
            images,
            fetch: options.allow_fetch.then(Fetch::new),
            scheduler,
            tokenizer,
            template,
            literal_user_text: options.literal_user_text,
            context,
            device,
            arch,
            mix,
            license,
            digest,
            encoder,
            weights,
            parameters,
            kv,
            context_bytes,
            engine,
            n_vocab,
            grammars: OnceLock::new(),
            breakers: Breakers::default(),
            vectors: Mutex::new(None),
            opening: Mutex::new(None),
            turn: tokio::sync::Mutex::new(()),
            others: Arc::clone(others),
            lacks_room,
            _listed: listed,
        })
    }

    /// Name of the model in answers.
    pub fn name(&self) -> &str {
        self.served.name()
    }

    /// Tokenises a prompt. Stops if the prompt is too long or the client disconnects.
    ///
    /// # Errors
    /// The prompt is too long, or the client has disconnected.
    pub fn tokens(
        &self,
        cancel: &Cancel,
        encode: impl FnOnce(&Tokenizer, &Limit) -> Result<Vec<u32>, Stopped>,
    ) -> Result<Vec<u32>, Refusal> {
        let limit = Limit { most: Some(self.context), cancel: cancel.clone() };
        encode(&self.tokenizer, &limit).map_err(|why| match why {
            Stopped::TooMany { least } => Refusal::longer(least, self.context),
            _ => Refusal::internal(why.to_string()),
        })
    }

    /// Size of the vocabulary, as in the model's matrices.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }
    /// The format in which the model writes reasoning and calls.
    pub fn form(&self) -> Form {
        self.template.as_ref().map_or(Form::Hermes, ChatTemplate::form)
    }

    /// The compiler of constraints. The first call takes tenths of a second: too long for an async
    /// thread.
    ///
    /// # Errors
    /// The vocabulary is unusable.
    pub fn grammars(&self) -> Result<&Grammars, &GrammarError> {
        self.grammars.get_or_init(|| Grammars::new(&self.tokenizer, self.n_vocab)).as_ref()
    }

    /// The scheduler for embeddings: of an encoder, the scheduler itself; of other models, the
    /// second opening, whose hidden states are pooled. The first call opens the model: too long for
    /// an async thread.
    ///
    /// # Errors
    /// The model cannot be opened for embeddings.
    pub fn vectors(&self, options: &Options) -> Result<Scheduler, String> {
        if self.encoder {
            return Ok(self.scheduler.clone());
        }
        let mut failed = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(vectors) =
            self.opened().filter(|vectors| vectors.status().state != State::Ended)
        {
            return Ok(vectors);
        }
        // Memory may have been short, so the opening is tried again later, but not for every
        // request.
        if let Some((_, why)) = failed.as_ref().filter(|(at, _)| at.elapsed() < REOPEN_INTERVAL) {
            return Err(why.clone());
        }
        let made = self
            .pooled(options)
            .inspect_err(|why| *failed = Some((Instant::now(), why.clone())))?;
        let vectors = made.0.clone();
        *self.vectors.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        Ok(vectors)
    }

    /// Stops both openings. Running requests may finish in this time.
    pub fn stop(&self, rest: Duration) {
        self.scheduler.stop(rest);
        if let Some(vectors) = self.opened() {
            vectors.stop(Duration::ZERO);
        }
    }

    /// The scheduler for embeddings, if it was opened.
    fn opened(&self) -> Option<Scheduler> {
        let vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        vectors.as_ref().map(|(scheduler, _)| scheduler.clone())
    }

    /// Whether a request is running or waiting.
    pub fn is_busy(&self) -> bool {
        let busy = |scheduler: &Scheduler| {
            let status = scheduler.status();
            status.running + status.waiting > 0
        };
        busy(&self.scheduler) || self.opened().as_ref().is_some_and(busy)
    }

    /// Whether the model has less memory than it would have alone: layers are streamed, or fewer
    /// sequences fit.
    pub fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// Facts of the model, to show while it is not loaded.
    pub fn card(&self) -> ModelFacts {
        ModelFacts {
            arch: self.arch.clone(),
            mix: self.mix.clone(),
            encoder: self.encoder,
            chats: self.template.is_ok(),
            sees: self.images.is_some(),
            weights: self.weights,
            parameters: self.parameters,
            context: self.context,
            license: self.license.clone(),
            digest: self.digest.clone(),
        }
    }

    /// Opens the model for embeddings: on the same GPU, if the model uses one GPU and the weights
    /// fit a second time; if not, on the CPU.
    fn pooled(&self, options: &Options) -> Result<(Scheduler, Option<ModelRegistration>), String> {
        let (served, line) = (&self.served, |error: &dyn std::fmt::Display| error.to_string());
        let gguf = Gguf::open(&served.path).map_err(|error| line(&error))?;
        // If the file does not set the pooling, the mean of all tokens is used.
        let pooling = arch::pooling(&gguf).map_err(|error| line(&error))?.unwrap_or(Pooling::Mean);
        let open = OpenOptions {
            stream: false,
            host_layers: None,
            host_experts: 0,
            host_ffn: Some(0),
            hot_experts: None,
            sequences: 1,
            paged: None,
            drafts: false,
            early: false,
            output: Output::Vector(Some(pooling)),
            adapters: vec![],
            adapter_slots: None,
            ..served.open.clone()
        };
        let scheduling =
            SchedulerOptions { max_queue: options.max_queue, ..SchedulerOptions::default() };
        let no_thread = |error| format!("no thread: {error}");
        if self.has_room_once_more() {
            match Model::open_with(&served.path, &open, options.engine.clone()) {
                Ok(model)
                    if model
                        .session
                        .gpu()
                        .is_some_and(|gpu| gpu.statistics().streamed.is_none()) =>
                {
                    let served = Served { open, shared_memory: None, ..served.clone() };
                    (options.say)(&format!(
                        "embeddings: a second copy of the model is opened on {}",
                        self.device.label
                    ));
                    let reopen =
                        Some(again(options, &served, &self.device.label, &self.others, None));
                    let scheduler =
                        Scheduler::start(model.session, SchedulerOptions { reopen, ..scheduling });
                    let scheduler = scheduler.map_err(no_thread)?;
                    let listed = self.others.add(&self.device.label, &scheduler);
                    return Ok((scheduler, Some(listed)));
                }
                Ok(_) => (options.say)(
                    "embeddings: the GPU has no memory for a second copy of the model, \
                     so the CPU computes them",
                ),
                Err(error) => (options.say)(&format!("embeddings: {error}: the CPU computes them")),
            }
        }
        let open = OpenOptions { device: DeviceChoice::Cpu, memory: None, ..open };
        let model = Model::open_with(&served.path, &open, options.engine.clone())
            .map_err(|error| line(&error))?;
        Scheduler::start(model.session, scheduling)
            .map(|scheduler| (scheduler, None))
            .map_err(no_thread)
    }

    /// Whether a single GPU computes without a memory limit, and the weights and the working memory
    /// fit into its free memory.
    fn has_room_once_more(&self) -> bool {
        let open = &self.served.open;
        let one = self.device.is_gpu()
            && self.device.stages.is_empty()
            && !matches!(open.device, DeviceChoice::Several(_));
        let free = self.memory().map_or(0, |(used, total)| total.saturating_sub(used));
        one && open.memory.is_none()
            && !open.stream
            && open.host_layers.unwrap_or(0) + open.host_experts + open.host_ffn.unwrap_or(0) == 0
            && free > self.weights + self.weights / 8 + self.context_bytes + EMBEDDING_RESERVE
    }

    /// Number of kernels compiled by this process, and number of kernels from the cache.
    pub fn kernels(&self) -> (u64, u64) {
        self.engine
            .as_ref()
            .map(Engine::counts)
            .map_or((0, 0), |counts| (counts.compiled, counts.cached))
    }

    /// Bytes in use and total bytes, of the device or of this machine. Queries the driver: too slow
    /// for an async thread.
    pub fn memory(&self) -> Option<(u64, u64)> {
        match &self.engine {
            Some(engine) => {
                let (free, total) = engine.device(&self.device.label).ok()?.memory().ok()?;
                Some((total.saturating_sub(free), total))
            }
            None => machine_memory(),
        }
    }
}

/// An error while loading a model.
#[derive(Debug)]
pub struct NotLoaded {
    /// The error in one line.
    pub line: String,
    /// Whether memory was short. Unloading other models may help in this case.
    pub room: bool,
}

impl From<String> for NotLoaded {
    fn from(line: String) -> NotLoaded {
        NotLoaded { line, room: false }
    }
}

impl From<OpenError> for NotLoaded {
    fn from(error: OpenError) -> NotLoaded {
        let memory = |source: &SessionError| matches!(source, SessionError::Memory { .. });
        let room = match &error {
            OpenError::Found { source, .. }
            | OpenError::Asked { source, .. }
            | OpenError::Cpu(source) => memory(source),
            OpenError::Placement(PlacementError::Device { source, .. }) => memory(source),
            OpenError::Placement(PlacementError::Divide(DivideError::Room { .. })) => true,
            _ => false,
        };
        NotLoaded { line: error.to_string(), room }
    }
}

/// Facts of a model, loaded or not.
pub struct ModelFacts {
    /// `general.architecture`.
    pub arch: String,
    /// Name of the mix of quantization types.
    pub mix: String,
    /// Whether the model is an encoder.
    pub encoder: bool,
    /// Whether the model has a chat template.
    pub chats: bool,
    /// Whether it reads images. Not known before it is loaded.
    pub sees: bool,
    /// Size of all weights in bytes.
    pub weights: u64,
    /// Number of elements of all weights.
    pub parameters: u64,
    /// Context size in tokens: prompt and answer together.
    pub context: usize,
    /// `general.license`, if the file has one.
    pub license: Option<String>,
    /// Digest of the length, the start and the end of the file, in hex. Reading all of a large file
    /// would take too long.
    pub digest: String,
}

/// Number of bytes at the start and at the end of a file that the digest covers.
const DIGESTED: u64 = 1 << 20;

/// The digest of a file, or of the name if the path is a folder.
fn digest(path: &Path) -> String {
    use sha2::{Digest, Sha256};
    use std::io::{Read, Seek, SeekFrom};
    let mut all = Sha256::new();
    let parts = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let len = file.metadata()?.len();
        let mut bytes = len.to_le_bytes().to_vec();
        (&mut file).take(DIGESTED).read_to_end(&mut bytes)?;
        file.seek(SeekFrom::Start(len.saturating_sub(DIGESTED)))?;
        file.take(DIGESTED).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match parts() {
        Ok(bytes) => all.update(bytes),
        Err(_) => all.update(path.as_os_str().as_encoded_bytes()),
    }
    all.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn license(gguf: &Gguf) -> Option<String> {
    gguf.opt_str("general.license").ok().flatten().map(str::to_owned)
}

impl ModelFacts {
    /// Reads the facts of a model that is not loaded.
    ///
    /// # Errors
    /// One line that describes the fault of the file.
    pub fn read(served: &Served) -> Result<ModelFacts, String> {
        let line = |error: &dyn std::fmt::Display| format!("{}: {error}", served.path.display());
        let gguf = Gguf::open(&served.path).map_err(|error| error.to_string())?;
        let graph = arch::build(&gguf).map_err(|error| line(&error))?;
        let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|error| line(&error))?;
        let (weights, parameters) = sizes(&graph);
        Ok(ModelFacts {
            arch: graph.arch.clone(),
            mix: gguf.mix_name(),
            encoder: graph.pooling.is_some(),
            chats: ChatTemplate::from_gguf(&gguf, &tokenizer).is_ok(),
            sees: false,
            weights,
            parameters,
            context: served.open.context_of(&graph),
            license: license(&gguf),
            digest: digest(&served.path),
        })
    }
}

/// Size in bytes and number of elements of all weights.
fn sizes(graph: &Graph) -> (u64, u64) {
    let weights = || graph.weights.iter();
    (weights().map(|w| w.bytes() as u64).sum(), weights().map(|w| w.elems() as u64).sum())
}

/// Opens the folder for keys and values, if the options name one and the model can use it.
fn saved_pages(
    options: &Options,
    served: &Served,
    session: &Session,
) -> Result<Option<SavedPages>, String> {
    let Some((folder, bytes)) = &options.saved_pages else { return Ok(None) };
    if session.page_format().is_none() {
        (options.say)(&format!(
            "--slot-save-path has no effect for {}: pages of keys and values are saved on the CPU \
             and on one GPU with --kv-pages, of models without recurrent states",
            served.name()
        ));
        return Ok(None);
    }
    let line = |error: &dyn std::fmt::Display| format!("--slot-save-path: {error}");
    let gguf = Gguf::open(&served.path).map_err(|error| line(&error))?;
    let mut files: Vec<PathBuf> = gguf.paths().map(Path::to_owned).collect();
    for adapter in &served.open.adapters {
        match adapter.path.is_dir() {
            false => files.push(adapter.path.clone()),
            true => {
                let all = std::fs::read_dir(&adapter.path).map_err(|error| line(&error))?;
                let mut all: Vec<PathBuf> = all.flatten().map(|entry| entry.path()).collect();
                all.retain(|path| path.is_file());
                all.sort();
                files.extend(all);
            }
        }
    }
    let files = files.iter().map(PathBuf::as_path);
    SavedPages::open(folder, *bytes, files, options.say).map(Some).map_err(|error| line(&error))
}

/// If a memory size for sequences is set and the model supports it, the sequences of a session
/// share this memory. Returns the tokens that fit.
fn seated(session: &mut Session, served: &Served) -> Option<usize> {
    let (bytes, sequences) = served.shared_memory?;
    // States of constant size cannot be shared per token.
    let each = session.kv().bytes(session.graph().kv_elems_per_token());
    if each == 0 || session.graph().is_recurrent() || session.graph().pooling.is_some() {
        return None;
    }
    let tokens = usize::try_from(bytes / each).unwrap_or(usize::MAX);
    session.seat(sequences).then_some(tokens)
}

/// The models of a server, by device. A device fault ends the sessions of all models on the device.
/// The device can be opened again only after all models have dropped it, including models that were
/// idle and had no error.
#[derive(Default)]
pub struct LoadedModels(Mutex<Vec<RegisteredModel>>);

/// A model: a unique number, its device, and its scheduler.
type RegisteredModel = (u64, String, Scheduler);

/// Registration in [`LoadedModels`]. Removed when dropped.
struct ModelRegistration(Arc<LoadedModels>, u64);

impl Drop for ModelRegistration {
    fn drop(&mut self) {
        // The scheduler is dropped outside of the lock.
        let gone: Vec<RegisteredModel> =
            self.0.all().extract_if(.., |(number, ..)| *number == self.1).collect();
        drop(gone);
    }
}

impl LoadedModels {
    fn all(&self) -> MutexGuard<'_, Vec<RegisteredModel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<LoadedModels>, device: &str, scheduler: &Scheduler) -> ModelRegistration {
        let mut all = self.all();
        let number = all.iter().map(|(number, ..)| number + 1).max().unwrap_or(0);
        all.push((number, device.to_owned(), scheduler.clone()));
        ModelRegistration(Arc::clone(self), number)
    }

    /// Requests all other models on this device to open their sessions again. Returns `false` if
    /// there are no other models.
    fn renew(&self, device: &str, path: &Path) -> bool {
        let all = self.all().clone();
        let here: Vec<_> = all.iter().filter(|(_, on, _)| on == device).collect();
        if here.len() > 1 {
            let why = format!("the device failed while another model ran ({})", path.display());
            here.iter().for_each(|(.., scheduler)| scheduler.renew(&why));
        }
        here.len() > 1
    }
}

/// Time between two tries to open a device that other models still use, and number of tries.
const OPEN_RETRY_PAUSE: Duration = Duration::from_millis(200);
const OPEN_TRIES: usize = 50;

/// Opens the session again after a device fault, with the same options.
fn again(
    options: &Options,
    served: &Served,
    device: &str,
    others: &Arc<LoadedModels>,
    images: Option<Arc<ImageTable>>,
) -> Reopen {
    let (served, config, say) = (served.clone(), options.engine.clone(), options.say);
    let (others, device, several) =
        (Arc::clone(others), device.to_owned(), options.models.len() > 1);
    let which = if several { served.name().to_owned() } else { "the model".to_owned() };
    Box::new(move || {
        say(&format!("the device failed: opening {which} again"));
        let open = || Model::open_with(&served.path, &served.open, config.clone());
        let mut opened = open();
        // Other models may still use the device.
        if opened.is_err() && others.renew(&device, &served.path) {
            for _ in 0..OPEN_TRIES {
                std::thread::sleep(OPEN_RETRY_PAUSE);
                opened = open();
                if opened.is_ok() {
                    break;
                }
            }
        }
        let model = opened.map_err(|error| {
            say(&format!("{which} could not be opened again: {error}"));
            error.to_string()
        })?;
        say(&format!("{which} was reopened: {}", model.device()));
        let mut session = model.session;
        seated(&mut session, &served);
        if let Some(images) = &images {
            session.set_images(images).map_err(|error| error.to_string())?;
        }
        Ok(session)
    })
}

/// Bytes in use and total bytes, from `/proc/meminfo`.
fn machine_memory() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
    };
    let (total, free) = (of("MemTotal")?, of("MemAvailable")?);
    Some((total.saturating_sub(free), total))
}
