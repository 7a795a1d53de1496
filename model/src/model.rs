//! A model, opened: file, tokenizer, chat template and a session on the device that was asked for.

use crate::arch;
use crate::chat::{ChatError, ChatTemplate, Message};
use crate::device::{DeviceChoice, DeviceTaken, StageTaken};
use crate::generate::{Answer, Request, generate};
use crate::gguf::{self, Gguf};
use crate::gpu::PageCount;
use crate::graph::{Graph, GraphError};
use crate::host::Cpu;
use crate::placement::{PlacementError, Wanted, open_rank};
use crate::sample::SampleOptions;
use crate::session::{OpenOptions, Output, SequenceId, Session, SessionError, Split, StageRunner};
use crate::tokenizer::{Tokenizer, TokenizerError};
use kjit_engine::{CompileCounts, Config, Engine, Target};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is no model, or damaged.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// Its metadata and tensors are no model that kjit runs.
    #[error("{path}: {source}")]
    Graph {
        /// The file.
        path: String,
        /// What is wrong.
        source: GraphError,
    },
    /// Its vocabulary cannot be used.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file.
        path: String,
        /// What is wrong.
        source: TokenizerError,
    },
    /// Not as many tokens as scores: an id without a text could be chosen, or a text has no score.
    #[error(
        "{path}: the vocabulary has {tokens} tokens, but the model scores {scored}: the two do \
         not belong together; \
         convert the model again with its own tokenizer"
    )]
    Vocabulary {
        /// The file.
        path: String,
        /// Tokens of the vocabulary.
        tokens: usize,
        /// Scores that the model gives.
        scored: usize,
    },
    /// The GPU that [`DeviceChoice::Auto`] found cannot be used. What would be done on the CPU was
    /// not asked for.
    #[error("{label} cannot be used (--device cpu would run on the CPU): {source}")]
    Found {
        /// The device.
        label: String,
        /// What is wrong.
        source: SessionError,
    },
    /// The GPU that was asked for cannot be used.
    #[error("--device {label}: {source}")]
    Asked {
        /// The device.
        label: String,
        /// What is wrong.
        source: SessionError,
    },
    /// Its layers cannot be where they were asked to be.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The CPU cannot be used: memory was refused.
    #[error(transparent)]
    Cpu(SessionError),
}

/// A model that is ready to run. The front page of this crate has an example.
pub struct Model {
    /// The file.
    pub gguf: Arc<Gguf>,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The sequences.
    pub session: Session,
    device: DeviceTaken,
    engine: Option<Engine>,
    kv: u64,
    took: Duration,
}

/// How long an end waits for compiles under way, so that the next start finds them: longer than any
/// kernel took.
const LAST_COMPILES: Duration = Duration::from_secs(5);

impl Model {
    /// Opens a model file. Compiled kernels are kept where [`Config::new`] says; a program that
    /// opens models on GPUs calls [`kjit_engine::child_main`] first, or has `kjit-cc` beside it.
    ///
    /// # Errors
    /// What is wrong with the file or the device. With [`DeviceChoice::Auto`] the CPU is taken
    /// where there is no GPU, and [`DeviceTaken::why`] says so; a GPU that is there and cannot be
    /// used is an error.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Model, OpenError> {
        Model::open_with(path, options, Config::new())
    }

    /// The same with an engine that is set up so: its cache, compilers, a trace.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(
        path: impl AsRef<Path>,
        options: &OpenOptions,
        config: Config,
    ) -> Result<Model, OpenError> {
        let start = Instant::now();
        let path = path.as_ref();
        let (gguf, graph, tokenizer) = read(path, options.output)?;
        let kv = options.kv_stored().bytes(graph.kv_elems_per_token());
        let all = options.context_of(&graph).saturating_mul(options.sequences.max(1));
        let (mut session, device, engine) = on_device(&gguf, graph, options, config)?;
        session.set_end_ids(tokenizer.eog_ids().to_vec());
        let all = session.pages().map_or(all, |pages| pages.total * PageCount::POSITIONS);
        let (kv, took) = (kv.saturating_mul(all as u64), start.elapsed());
        Ok(Model { gguf, tokenizer, session, device, engine, kv, took })
    }

    /// The device that was taken, and why the CPU, if [`DeviceChoice::Auto`] took it.
    pub fn device(&self) -> &DeviceTaken {
        &self.device
    }

    /// The engine of a GPU.
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.as_ref()
    }

    /// What was compiled and found so far.
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

    /// The chat template of the file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn template(&self) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::from_gguf(&self.gguf, &self.tokenizer)
    }

    /// A conversation as the tokens of a prompt for the next answer.
    ///
    /// # Errors
    /// There is no template, or it refuses the conversation.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, ChatError> {
        Ok(self.tokenizer.encode_chat(&self.template()?.render(messages, true)?))
    }

    /// Generates after a prompt, up to so many tokens; `on_text` gets the text piece by piece, and
    /// may break. What else an answer can be asked for has [`generate`].
    ///
    /// # Errors
    /// As [`generate`].
    pub fn generate(
        &mut self,
        sequence: SequenceId,
        prompt: &[u32],
        max_tokens: Option<usize>,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, SessionError> {
        let request = Request { prompt, max_tokens, stop: &[], lookup: false };
        generate(&mut self.session, sequence, &self.tokenizer, &request, on_text, &|| false)
    }

    /// A sequence whose tokens are chosen so: as [`Session::add`].
    ///
    /// # Errors
    /// As [`Session::add`].
    pub fn add(&mut self, options: SampleOptions) -> Result<SequenceId, SessionError> {
        self.session.add(options)
    }

    /// At the end of the work: kernels being compiled behind it are let into the cache, unless that
    /// takes long.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn finish(&self) -> Result<(), SessionError> {
        let early = self.session.gpu().and_then(|gpu| gpu.early());
        early.map_or(Ok(()), |early| early.finish(LAST_COMPILES))
    }
}

/// The file, what it computes, its vocabulary.
fn read(path: &Path, output: Output) -> Result<(Arc<Gguf>, Graph, Tokenizer), OpenError> {
    let gguf = Arc::new(Gguf::open(path)?);
    let path = || path.display().to_string();
    let graph = match output {
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
    Ok((gguf, graph, tokenizer))
}

/// Kernels that may end what runs on a device before another is opened there for good.
const FAULTS: usize = 4;

/// A session on a GPU, which is opened for it; and whether that ended all that was on the device.
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

/// A session on the device that is asked for.
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
    if let Some(wanted) = Wanted::of(options, &engine)? {
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
                    remarks.extend(here.passed_over());
                    (Some(device.label()), None)
                }
                None => (None, Some(format!("auto found no GPU: {}", here.why_none()))),
            }
        }
    };
    let Some(label) = label else {
        let ffn = options.host_ffn.unwrap_or(0) > 0;
        if options.host_experts > 0 || ffn {
            let why = why.unwrap_or_else(|| "--device names none".to_owned());
            let refused = if ffn { PlacementError::Ffn } else { PlacementError::Experts };
            return Err(refused(why).into());
        }
        if options.stream || options.memory.is_some() {
            let said = why.map_or(String::new(), |why| format!(" ({why})"));
            let error = format!(
                "--memory and --stream are for what does not fit a GPU; the CPU computes where \
                 the weights lie{said}"
            );
            return Err(OpenError::Cpu(SessionError::Device(error)));
        }
        let session = Session::on_cpu(Arc::clone(gguf), graph, options).map_err(OpenError::Cpu)?;
        // Not those asked for: the system may refuse some.
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
    // What a kernel's proof did to the device is kept as its verdict: the next attempt goes without
    // it.
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
        session.gpu().and_then(|gpu| Some((gpu, gpu.device().target.as_ref()?.stands_in()?)))
    {
        let id = gpu.device().target.as_ref().map_or("", Target::id);
        remarks.push(format!(
            "kjit has no row for {id}: compiled with what holds for all of {row}'s family"
        ));
    }
    remarks.extend(session.gpu().iter().flat_map(|gpu| gpu.remarks().iter().cloned()));
    let device =
        DeviceTaken { label, kind, name, arch, threads: None, why: None, remarks, stages: vec![] };
    Ok((session, device, Some(engine)))
}

/// A session on the device that this process has of several processes'.
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

/// A session on several devices.
fn on_stages(
    engine: Engine,
    wanted: &Wanted,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &OpenOptions,
) -> Result<(Session, DeviceTaken, Option<Engine>), OpenError> {
    let (mut opened, mut lost) = wanted.open(&engine, gguf, graph, options);
    for _ in 0..FAULTS {
        if lost {
            // What was opened there must be gone first.
            drop(opened);
            (opened, lost) = wanted.open(&engine, gguf, graph, options);
        }
    }
    let (session, labels) = opened?;
    let (mut stages, mut first, mut taken) = (vec![], 0, None);
    let mut remarks = vec![];
    let together = session.gpu().is_some_and(|gpu| gpu.ranks() > 1);
    let runners = session.stages();
    // Of devices that have all layers together one runner tells.
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
    let none = || OpenError::Cpu(SessionError::Device("there is no device".to_owned()));
    let (label, kind, name, arch, threads) = taken.ok_or_else(none)?;
    // One stage is the device itself.
    if stages.len() < 2 {
        stages.clear();
    }
    let device = DeviceTaken { label, kind, name, arch, threads, why: None, remarks, stages };
    Ok((session, device, Some(engine)))
}
