//! An open model: its file, tokenizer, chat template, and a session on the requested device.

use crate::arch;
use crate::chat::{ChatError, ChatTemplate, Message};
use crate::device::{DeviceChoice, DeviceTaken, StageTaken};
use crate::generate::{Answer, Request, generate};
use crate::gguf::adapter::{Adapter, AdapterError};
use crate::gguf::{self, Gguf};
use crate::gpu::PageCount;
use crate::graph::{Graph, GraphError, MAX_ADAPTERS, adapt};
use crate::host::Cpu;
use crate::placement::{PlacementError, RequestedDevices, open_rank};
use crate::sample::SampleOptions;
use crate::session::adapters::with_places;
use crate::session::{OpenOptions, Output, SequenceId, Session, SessionError, Split, StageRunner};
use crate::tokenizer::{Tokenizer, TokenizerError};
use kjit_engine::{CompileCounts, Config, Engine, Target};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The error of opening a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is not a model, or it is damaged.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// kjit does not support the model that the metadata and tensors describe.
    #[error("{path}: {source}")]
    Graph {
        /// The file.
        path: String,
        /// The cause.
        source: GraphError,
    },
    /// The vocabulary cannot be used.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file.
        path: String,
        /// The cause.
        source: TokenizerError,
    },
    /// The vocabulary and the logits differ in size, so a token would have no text or no score.
    #[error(
        "{path}: the vocabulary has {tokens} tokens, but the model has {scored} logits: \
         convert the model again with its own tokenizer"
    )]
    Vocabulary {
        /// The file.
        path: String,
        /// Tokens of the vocabulary.
        tokens: usize,
        /// The number of logits.
        scored: usize,
    },
    /// [`DeviceChoice::Auto`] found a GPU that cannot be used. The CPU is not used instead.
    #[error("{label} cannot be used (--device cpu would run on the CPU): {source}")]
    Found {
        /// The device.
        label: String,
        /// The cause.
        source: SessionError,
    },
    /// The requested GPU cannot be used.
    #[error("--device {label}: {source}")]
    Asked {
        /// The device.
        label: String,
        /// The cause.
        source: SessionError,
    },
    /// The layers cannot be placed as requested.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// An adapter cannot be used with the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Too many adapters.
    #[error("{0} LoRA adapters are too many: at most {MAX_ADAPTERS} are supported")]
    Adapters(usize),
    /// An option that cannot be combined with adapters.
    #[error("{0} cannot be combined with a LoRA adapter: remove one of them")]
    WithAdapter(&'static str),
    /// The CPU session failed: there is not enough memory.
    #[error(transparent)]
    Cpu(SessionError),
}

/// A model that is ready to run. The crate's front page has an example.
pub struct Model {
    /// The file.
    pub gguf: Arc<Gguf>,
    /// Converts text to ids, and ids to text.
    pub tokenizer: Tokenizer,
    /// The session that holds the sequences.
    pub session: Session,
    device: DeviceTaken,
    engine: Option<Engine>,
    kv: u64,
    took: Duration,
}

/// Maximum time that [`Model::finish`] waits for background compiles, so that the next start finds
/// their kernels. The slowest kernel took less.
const LAST_COMPILES: Duration = Duration::from_secs(5);

impl Model {
    /// Opens a model file. Compiled kernels are stored in the cache of [`Config::new`]. A program
    /// that opens models on GPUs must call [`kjit_engine::child_main`] first, or have `kjit-cc` in
    /// its folder.
    ///
    /// # Errors
    /// The file or the device has an error. [`DeviceChoice::Auto`] chooses the CPU if there is no
    /// GPU; [`DeviceTaken::why`] has the reason. A GPU that exists but cannot be used is an error.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model, OpenError> {
        Model::open_with(path, options, Config::new())
    }

    /// Like [`Model::open`], with an engine configuration: cache, compilers, trace.
    ///
    /// # Errors
    /// See [`Model::open`].
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &OpenOptions,
        config: Config,
    ) -> Result<Model, OpenError> {
        let start = Instant::now();
        let path = path.as_ref();
        let (gguf, graph, tokenizer) = read(path, options)?;
        // Measured rates divide only feed-forward parts without adapters.
        let host_ffn = options.host_ffn.or((!graph.adapters.is_empty()).then_some(0));
        let options = &OpenOptions { host_ffn, ..options.clone() };
        let kv = options.kv_stored().bytes(graph.kv_elems_per_token());
        let all = options.context_of(&graph).saturating_mul(options.sequences.max(1));
        let (mut session, device, engine) = on_device(&gguf, graph, options, config)?;
        session.set_end_ids(tokenizer.eog_ids().to_vec());
        let all = session.pages().map_or(all, |pages| pages.total * PageCount::POSITIONS);
        let (kv, took) = (kv.saturating_mul(all as u64), start.elapsed());
        Ok(Model { gguf, tokenizer, session, device, engine, kv, took })
    }

    /// The device. If [`DeviceChoice::Auto`] chose the CPU, it includes the reason.
    pub fn device(&self) -> &DeviceTaken {
        &self.device
    }

    /// The engine, if the model was opened with one.
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// Number of kernels compiled and number found in the cache so far.
    pub fn kernels(&self) -> CompileCounts {
        self.engine.as_ref().map(Engine::counts).unwrap_or_default()
    }

    /// Bytes of keys and values with full contexts, or of all pages.
    pub fn kv_bytes(&self) -> u64 {
        self.kv
    }

    /// How long opening took.
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// There is no template, or it cannot be parsed.
    pub fn template(&self) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::from_gguf(&self.gguf, &self.tokenizer)
    }

    /// Renders a conversation as the prompt of the next answer and tokenises it.
    ///
    /// # Errors
    /// There is no template, or it rejects the conversation.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, ChatError> {
        Ok(self.tokenizer.encode_chat(&self.template()?.render(messages, true)?))
    }

    /// Generates up to `max_tokens` tokens after a prompt. `on_text` gets the text piece by piece
    /// and may break. [`generate`] has more options.
    ///
    /// # Errors
    /// See [`generate`].
    pub fn generate(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        max_tokens: Option<usize>,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, SessionError> {
        let request = Request { prompt, max_tokens, ..Request::default() };
        generate(&mut self.session, sequence, &self.tokenizer, &request, on_text, &|| false)
    }

    /// Adds a sequence that is sampled with `options`, like [`Session::add`].
    ///
    /// # Errors
    /// See [`Session::add`].
    pub fn add(&mut self, options: SampleOptions) -> Result<SequenceId, SessionError> {
        self.session.add(options)
    }

    /// Waits up to five seconds for background compiles, so that their kernels are cached. Call it
    /// when the work is done.
    ///
    /// # Errors
    /// A kernel does not compile.
    pub fn finish(&self) -> Result<(), SessionError> {
        let early = self.session.gpu().and_then(|gpu| gpu.early());
        early.map_or(Ok(()), |early| early.finish(LAST_COMPILES))
    }
}

/// Reads the file, its graph and its tokenizer, and the adapters.
fn read(path: &Path, options: &OpenOptions) -> Result<(Arc<Gguf>, Graph, Tokenizer), OpenError> {
    let gguf = Gguf::open(path)?;
    let path = || path.display().to_string();
    let graph = match options.output {
        Output::Own => arch::build(&gguf),
        Output::Vector(pooling) => arch::build_vector(&gguf, pooling),
    };
    let graph = graph.map_err(|source| OpenError::Graph { path: path(), source })?;
    let tokenizer = Tokenizer::from_gguf(&gguf)
        .map_err(|source| OpenError::Tokenizer { path: path(), source })?;
    let (tokens, scored) = (tokenizer.n_vocab(), graph.n_vocab());
    if tokens != scored {
        return Err(OpenError::Vocabulary { path: path(), tokens, scored });
    }
    let (graph, gguf) = with_adapters(graph, gguf, options)?;
    Ok((Arc::new(gguf), graph, tokenizer))
}

/// Adds the adapters of the options to a graph and its file, like [`Model::open`].
///
/// # Errors
/// An adapter cannot be read, or does not fit the model or the other options.
pub fn with_adapters(
    graph: Graph,
    gguf: Gguf,
    options: &OpenOptions,
) -> Result<(Graph, Gguf), OpenError> {
    let slots = options.adapter_slots.map_or(0, |(slots, _)| slots);
    if options.adapters.is_empty() && slots == 0 {
        return Ok((graph, gguf));
    }
    if options.adapters.len().max(slots) > MAX_ADAPTERS {
        return Err(OpenError::Adapters(options.adapters.len().max(slots)));
    }
    let refused = [
        (slots > 0 && !options.adapters.is_empty(), "--max-loras"),
        (slots > 0 && options.stream, "--stream"),
        (options.split != Split::Layers, "--split tensor or ranks"),
        (options.host_experts > 0, "--host-experts"),
        (options.host_ffn.is_some_and(|n| n > 0), "--host-ffn"),
    ];
    if let Some((_, option)) = refused.into_iter().find(|(given, _)| *given) {
        return Err(OpenError::WithAdapter(option));
    }
    if slots > 0 {
        return with_places(graph, gguf, options);
    }
    let mut adapters = vec![];
    for file in &options.adapters {
        let mut adapter = Adapter::open(&file.path, &gguf)?;
        if let Some(name) = &file.name {
            adapter.name.clone_from(name);
        }
        adapters.push((adapter, file.scale));
    }
    Ok(adapt(graph, gguf, &adapters)?)
}

/// Maximum number of further attempts to open a model after a kernel faulted and the device was
/// lost.
const FAULTS: usize = 4;

/// Opens a session on a GPU. The flag is true if opening failed because the device was lost.
fn on_gpu(
    engine: &Engine,
    label: &str,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &OpenOptions,
) -> (Result<Session, SessionError>, bool) {
    let device = match engine.device(label) {
        Ok(device) => device,
        Err(error) => return (Err(error.into()), false),
    };
    let opened = Session::on_gpu(engine, &device, gguf, graph.clone(), options);
    let lost = opened.is_err() && device.memory().is_err();
    (opened, lost)
}

/// Opens a session on the requested device.
fn on_device(
    gguf: &Arc<Gguf>,
    graph: Graph,
    options: &OpenOptions,
    config: Config,
) -> Result<(Session, DeviceTaken, Option<Engine>), OpenError> {
    let engine = Engine::new(config);
    if options.split == Split::Ranks {
        return on_rank(engine, gguf, &graph, options);
    }
    if let Some(wanted) = RequestedDevices::of(options, &engine)? {
        return on_stages(engine, &wanted, gguf, &graph, options);
    }
    let mut remarks = vec![];
    let (label, why) = match options.device {
        DeviceChoice::Cpu => (None, None),
        DeviceChoice::Gpu { .. } | DeviceChoice::Several(_) => {
            (Some(options.device.to_string()), None)
        }
        DeviceChoice::Auto => {
            let here = engine.devices();
            match here.preferred() {
                Some(device) => {
                    remarks.extend(here.skipped_devices());
                    (Some(device.label()), None)
                }
                None => (None, Some(format!("auto found no GPU: {}", here.why_none()))),
            }
        }
    };
    let Some(label) = label else {
        let ffn = options.host_ffn.unwrap_or(0) > 0;
        if options.host_experts > 0 || ffn {
            let why = why.unwrap_or_else(|| "--device names no GPU".to_owned());
            let refused = if ffn { PlacementError::Ffn } else { PlacementError::Experts };
            return Err(refused(why).into());
        }
        if options.stream || options.memory.is_some() {
            let said = why.map_or(String::new(), |why| format!(" ({why})"));
            let error = format!(
                "--memory and --stream need a GPU: \
                 on the CPU the weights stay in the mapped file{said}"
            );
            return Err(OpenError::Cpu(SessionError::Device(error)));
        }
        let session = Session::on_cpu(Arc::clone(gguf), graph, options).map_err(OpenError::Cpu)?;
        // The number of running threads: the system may have refused to start some of those
        // requested.
        let (threads, isa) = session.cpu().map_or((1, ""), |cpu| (cpu.threads(), cpu.isa().name()));
        let arch = format!("{} {isa}", std::env::consts::ARCH);
        let (label, name) = ("cpu".to_owned(), Cpu::here().name);
        return Ok((
            session,
            DeviceTaken {
                label,
                kind: "cpu",
                name,
                arch,
                threads: Some(threads),
                why,
                remarks,
                stages: vec![],
            },
            None,
        ));
    };
    let (mut opened, mut lost) = on_gpu(&engine, &label, gguf, &graph, options);
    // The verdict about the faulty kernel is stored, so the next attempt avoids that kernel.
    for _ in 0..FAULTS {
        if lost {
            (opened, lost) = on_gpu(&engine, &label, gguf, &graph, options);
        }
    }
    let session = match opened {
        Ok(session) => session,
        Err(source) if options.device == DeviceChoice::Auto => {
            return Err(OpenError::Found { label, source });
        }
        Err(source) => return Err(OpenError::Asked { label, source }),
    };
    let (kind, name, arch) = session.gpu().map_or(("", String::new(), String::new()), |gpu| {
        let info = gpu.device();
        (info.vendor.device_word(), info.name.clone(), info.arch_id.clone())
    });
    if let Some((gpu, row)) =
        session.gpu().and_then(|gpu| Some((gpu, gpu.device().target.as_ref()?.fallback_row()?)))
    {
        let id = gpu.device().target.as_ref().map_or("", Target::id);
        remarks.push(format!(
            "kjit has no entry for {id}: \
             its kernels are compiled with the common properties of {row}'s family"
        ));
    }
    remarks.extend(session.gpu().iter().flat_map(|gpu| gpu.remarks().iter().cloned()));
    let device =
        DeviceTaken { label, kind, name, arch, threads: None, why: None, remarks, stages: vec![] };
    Ok((session, device, Some(engine)))
}

/// Opens this process's share of a model that several processes compute (`--split ranks`).
fn on_rank(
    engine: Engine,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &OpenOptions,
) -> Result<(Session, DeviceTaken, Option<Engine>), OpenError> {
    let (session, label, ranks) = open_rank(&engine, gguf, graph, options)?;
    let layers = (0, graph.states.len());
    let (kind, name, arch, remarks) =
        session.gpu().map_or(("", String::new(), String::new(), vec![]), |gpu| {
            let info = gpu.device();
            (
                info.vendor.device_word(),
                info.name.clone(),
                info.arch_id.clone(),
                gpu.remarks().to_vec(),
            )
        });
    let share = Some((ranks.rank, ranks.size));
    let stage =
        StageTaken { label: label.clone(), name: name.clone(), arch: arch.clone(), layers, share };
    let device = DeviceTaken {
        label,
        kind,
        name,
        arch,
        threads: None,
        why: None,
        remarks,
        stages: vec![stage],
    };
    Ok((session, device, Some(engine)))
}

/// Opens a session on several devices.
fn on_stages(
    engine: Engine,
    wanted: &RequestedDevices,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &OpenOptions,
) -> Result<(Session, DeviceTaken, Option<Engine>), OpenError> {
    let (mut opened, mut lost) = wanted.open(&engine, gguf, graph, options);
    for _ in 0..FAULTS {
        if lost {
            // The failed session must release its devices first.
            drop(opened);
            (opened, lost) = wanted.open(&engine, gguf, graph, options);
        }
    }
    let (session, labels) = opened?;
    let (mut stages, mut first, mut taken) = (vec![], 0, None);
    let mut remarks = vec![];
    let together = session.gpu().is_some_and(|gpu| gpu.ranks() > 1);
    let runners = session.stages();
    // With tensor split one runner serves all devices.
    let ranks = labels.len();
    let runners = runners.iter().cycle().take(if together { ranks } else { runners.len() });
    for (rank, (&runner, (label, n))) in runners.zip(labels).enumerate() {
        let (kind, name, arch, threads) = match runner {
            StageRunner::Cpu(cpu) => {
                let arch = format!("{} {}", std::env::consts::ARCH, cpu.isa().name());
                ("cpu", Cpu::here().name, arch, Some(cpu.threads()))
            }
            StageRunner::Gpu(gpu) => {
                if remarks.is_empty() || !together {
                    remarks.extend(gpu.remarks().iter().cloned());
                }
                let info = gpu.device();
                (info.vendor.device_word(), info.name.clone(), info.arch_id.clone(), None)
            }
        };
        stages.push(StageTaken {
            label: label.clone(),
            name: name.clone(),
            arch: arch.clone(),
            layers: (first, n),
            share: together.then_some((rank, ranks)),
        });
        first += if together { 0 } else { n };
        taken = Some((label, kind, name, arch, threads));
    }
    let none = || OpenError::Cpu(SessionError::Device("no device was found".to_owned()));
    let (label, kind, name, arch, threads) = taken.ok_or_else(none)?;
    // One stage needs no list: the other fields describe it.
    if stages.len() < 2 {
        stages.clear();
    }
    let device = DeviceTaken { label, kind, name, arch, threads, why: None, remarks, stages };
    Ok((session, device, Some(engine)))
}
