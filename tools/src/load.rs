//! Opens a model for the commands that compute.

use crate::args::{Device, Setup, Shared};
use crate::report::say;
use anyhow::{Context, bail};
use kjit_model::exec::{ExecOptions, Executor};
use kjit_model::gguf::Gguf;
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
    /// Bytes of the weights.
    pub weights: u64,
    /// Bytes of keys and values with a full context.
    pub kv: u64,
    /// How long opening took.
    pub took: Duration,
}

/// The device in use, for people and scripts.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    pub kind: &'static str,
    pub name: String,
    pub arch: String,
}

/// Tokens of context where none were asked for: the model's own, as far as memory for it is no surprise.
pub fn default_context(trained: usize) -> usize {
    trained.min(8192)
}

impl Loaded {
    pub fn open(path: &Path, setup: &Setup, shared: &Shared) -> anyhow::Result<Loaded> {
        let start = Instant::now();
        match shared.device {
            Device::Auto | Device::Cpu => {}
            Device::Cuda(n) => {
                bail!("--device cuda:{n}: this version of kjit has no NVIDIA driver; --device cpu runs on the CPU")
            }
            Device::Rocm(n) => {
                bail!("--device rocm:{n}: this version of kjit has no AMD driver; --device cpu runs on the CPU")
            }
        }
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
        let threads = shared.threads.map_or_else(kjit_model::host::default_threads, usize::from);
        let context = setup.context.unwrap_or_else(|| default_context(graph.context));
        if context > graph.context && !shared.quiet {
            say(format_args!(
                "note: a context of {context} is more than the {} tokens the model was trained on",
                graph.context
            ));
        }
        let options = ExecOptions { context, kv: setup.kv_type.into(), precise: setup.precise, threads, batch: 512 };
        let weights = graph.weights.iter().map(|w| w.bytes() as u64).sum();
        let kv = options.kv_stored().bytes(graph.kv_elems_per_token()) * context as u64;
        let exec = HostExecutor::new(gguf.clone(), graph, options)?;
        let cpu = Cpu::here();
        let device =
            DeviceInfo { kind: "cpu", name: cpu.name, arch: format!("{} {}", std::env::consts::ARCH, cpu.path) };
        let loaded = Loaded { gguf, tokenizer, exec: Box::new(exec), device, weights, kv, took: start.elapsed() };
        if !shared.quiet {
            say(format_args!("device: {} ({}), {threads} threads", loaded.device.name, loaded.device.arch));
        }
        Ok(loaded)
    }
}
