//! Opens a model for the commands that compute.

use crate::args::{CPU_BATCH, Device, GPU_BATCH, Setup, Shared};
use crate::engine::{config, engine};
use crate::report::say;
use anyhow::{Context, bail};
use kjit_engine::{CompileCounts, Engine, Trace};
use kjit_model::exec::{ExecOptions, Executor};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::{self, Early};
use kjit_model::graph::Graph;
use kjit_model::host::{Cpu, HostExecutor};
use kjit_model::tokenizer::Tokenizer;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model that is ready to run.
pub struct Loaded {
    pub gguf: Arc<Gguf>,
    pub tokenizer: Tokenizer,
    pub exec: Box<dyn Executor>,
    /// What computes.
    pub device: DeviceInfo,
    /// Its engine; none on the CPU.
    engine: Option<Engine>,
    /// Kernels that were not waited for, if there are any.
    pub early: Option<Early>,
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of weights that a decoded token reads.
    pub per_token: u64,
    /// Bytes of keys and values with a full context.
    pub kv: u64,
    /// How long opening took.
    pub took: Duration,
}

/// The device in use, for people and scripts.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// `cuda:0`; none for the CPU.
    pub label: Option<String>,
    pub kind: &'static str,
    pub name: String,
    pub arch: String,
}

/// How a model is opened.
#[derive(Default)]
pub struct How<'a> {
    /// Tokens of a prompt at once; the device's usual number where none is given.
    pub batch: Option<usize>,
    /// What happens goes in here.
    pub trace: Option<&'a Trace>,
    /// Ready as soon as single tokens can be fed, whatever is still to be compiled.
    pub early: bool,
}

/// How long the end of a run waits for compiles under way, so that the next start finds them: longer than any kernel took.
const LAST_COMPILES: Duration = Duration::from_secs(5);

/// Tokens of context where none were asked for: the model's own, as far as memory for it is no surprise.
pub fn default_context(trained: usize) -> usize {
    trained.min(8192)
}

impl Loaded {
    pub fn open(path: &Path, setup: &Setup, shared: &Shared) -> anyhow::Result<Loaded> {
        Loaded::open_with(path, setup, shared, &How::default())
    }

    /// The same, in another way than the usual.
    pub fn open_with(path: &Path, setup: &Setup, shared: &Shared, how: &How) -> anyhow::Result<Loaded> {
        let &How { batch, trace, .. } = how;
        let start = Instant::now();
        let span = trace.map(|t| t.span("host", "open the file, build the graph and the tokenizer"));
        let gguf = Arc::new(Gguf::open(path)?);
        let at = || path.display().to_string();
        let graph = kjit_model::arch::build(&gguf).with_context(at)?;
        let tokenizer = Tokenizer::from_gguf(&gguf).with_context(at)?;
        if tokenizer.n_vocab() > graph.n_vocab() {
            bail!(
                "{}: the tokenizer has {} tokens, the model scores only {}",
                at(),
                tokenizer.n_vocab(),
                graph.n_vocab()
            );
        }
        drop(span);
        let threads = shared.threads.map_or_else(kjit_model::host::default_threads, usize::from);
        let context = setup.context.unwrap_or_else(|| default_context(graph.context));
        if context > graph.context && !shared.quiet {
            say(format_args!(
                "note: a context of {context} is more than the {} tokens the model was trained on",
                graph.context
            ));
        }
        let options = ExecOptions {
            context,
            kv: setup.kv_type.into(),
            precise: setup.precise,
            threads,
            batch: batch.unwrap_or(CPU_BATCH),
        };
        let per_token = graph.bytes_per_token();
        let weights = graph.weights.iter().map(|w| w.bytes() as u64).sum();
        let kv = options.kv_stored().bytes(graph.kv_elems_per_token()).saturating_mul(context as u64);
        let on = on_device(shared, gguf.clone(), graph, options, how)?;
        let loaded = Loaded {
            gguf,
            tokenizer,
            exec: on.exec,
            device: on.device,
            engine: on.engine,
            early: on.early,
            weights,
            per_token,
            kv,
            took: start.elapsed(),
        };
        if !shared.quiet {
            say(format_args!("device: {}", on.line));
        }
        Ok(loaded)
    }

    /// What was compiled and found so far.
    pub fn kernels(&self) -> CompileCounts {
        self.engine.as_ref().map(Engine::counts).unwrap_or_default()
    }

    /// At the end of the work: kernels being compiled behind it are let into the cache, unless that takes long.
    ///
    /// # Errors
    /// A kernel that does not compile.
    pub fn finish(&self) -> anyhow::Result<()> {
        Ok(self.early.as_ref().map_or(Ok(()), |early| early.finish(LAST_COMPILES))?)
    }
}

/// An executor and what it runs on.
struct OnDevice {
    exec: Box<dyn Executor>,
    device: DeviceInfo,
    engine: Option<Engine>,
    early: Option<Early>,
    /// The choice, for people.
    line: String,
}

/// The GPU that the flags ask for; none: the CPU.
pub fn gpu_label(shared: &Shared) -> Option<String> {
    match shared.device {
        Device::Cpu => None,
        Device::Cuda(n) => Some(format!("cuda:{n}")),
        Device::Rocm(n) => Some(format!("rocm:{n}")),
        Device::Auto => engine(shared).devices().devices.first().map(kjit_engine::DeviceInfo::label),
    }
}

impl DeviceInfo {
    /// That of a GPU.
    pub fn of(info: &kjit_engine::DeviceInfo) -> DeviceInfo {
        DeviceInfo {
            label: Some(info.label()),
            kind: info.vendor.device_word(),
            name: info.name.clone(),
            arch: info.arch_id.clone(),
        }
    }
}

/// The device that the flags ask for. `auto` takes the CPU only where there is no GPU; a GPU that cannot be used is an error.
fn on_device(
    shared: &Shared,
    gguf: Arc<Gguf>,
    graph: Graph,
    options: ExecOptions,
    how: &How,
) -> anyhow::Result<OnDevice> {
    let &How { batch, trace, early } = how;
    let Some(label) = gpu_label(shared) else {
        let exec = HostExecutor::new(gguf, graph, options)?;
        // Not those asked for: the system may refuse some.
        let threads = exec.threads();
        let cpu = Cpu::here();
        let line = format!("cpu, {} ({}), {threads} threads", cpu.name, exec.isa().name());
        let device = DeviceInfo {
            label: None,
            kind: "cpu",
            name: cpu.name,
            arch: format!("{} {}", std::env::consts::ARCH, exec.isa().name()),
        };
        return Ok(OnDevice { exec: Box::new(exec), device, engine: None, early: None, line });
    };
    let options = ExecOptions { batch: batch.unwrap_or(GPU_BATCH), ..options };
    let mut setup = config(shared);
    if let Some(trace) = trace {
        setup = setup.trace(trace.clone());
    }
    let engine = Engine::new(setup);
    let open = if early { gpu::open_early } else { gpu::open };
    let opened = open(&engine, &label, gguf, graph, &options);
    let exec = match shared.device {
        // What would have been done on the CPU was not asked for.
        Device::Auto => {
            opened.with_context(|| format!("{label} cannot be used (--device cpu would run on the CPU)"))?
        }
        _ => opened.with_context(|| format!("--device {label}"))?,
    };
    let info = exec.device();
    let line = format!("{label}, {} ({})", info.name, info.arch_id);
    let device = DeviceInfo::of(info);
    let early = exec.early().cloned();
    if (early.is_some() || engine.counts().compiled > 0)
        && !shared.quiet
        && let Some(why) = kjit_engine::Target::parse(&info.arch_id).ok().and_then(|target| engine.packs_lack(&target))
    {
        say(format_args!("note: kernels are compiled here: {why}"));
    }
    Ok(OnDevice { exec: Box::new(exec), device, engine: Some(engine), early, line })
}
