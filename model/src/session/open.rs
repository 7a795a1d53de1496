//! Opens sessions: on the CPU, on one GPU, on several GPUs with tensor split, or on several devices
//! with layer split.

use super::adapters::Places;
use super::pages::{not_reproducible, one_gpu};
use super::{KvType, OpenOptions, Output, Persistence, Session, SessionError};
use crate::exec::Runner;
use crate::gguf::Gguf;
use crate::gpu::{
    DevicesIncompatible, GpuRunner, HostFfn, Source, divide_with_host, lacks, plan_for,
};
use crate::graph::Graph;
use crate::host::{HostRunner, Isa, open_ops};
use crate::placement::{HostExpertsGraph, HostFfnGraph, Layers, StageDevice, shard, shard_of_rank};
use crate::ranks::Ranks;
use kjit_engine::{Device, Engine};
use std::collections::VecDeque;
use std::sync::Arc;

impl Session {
    /// Opens a session on the CPU. The graph must have been built from this file.
    ///
    /// # Errors
    /// The graph does not match the file, or there is not enough memory for the state of a
    /// sequence.
    pub fn on_cpu(
        gguf: Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
    ) -> Result<Session, SessionError> {
        Session::on_cpu_with(gguf, graph, options, Isa::best())
    }

    /// Like [`Session::on_cpu`], with an instruction set of [`Isa::available`].
    ///
    /// # Errors
    /// See [`Session::on_cpu`].
    pub fn on_cpu_with(
        gguf: Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
        isa: Isa,
    ) -> Result<Session, SessionError> {
        if graph.pooling.is_some() {
            not_reproducible(options, "an embedding")?;
        }
        let runner = HostRunner::new(gguf, graph, options, isa)?;
        let (context, n_vocab) = (runner.context(), runner.graph().n_vocab());
        Ok(Session::with(
            Box::new(runner),
            options.sequences,
            context,
            n_vocab,
            options.chunk_on_cpu(),
            options.kv_stored(),
        ))
    }

    /// Opens a session on a GPU. Kernels are compiled or loaded while the weights are uploaded.
    ///
    /// # Errors
    /// The kernels do not support the model, there is not enough memory, or a kernel does not
    /// compile.
    pub fn on_gpu(
        engine: &Engine,
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
    ) -> Result<Session, SessionError> {
        let wrong = |e: &dyn std::fmt::Display| SessionError::Device(e.to_string());
        // `part`: the graph to open. `whole`: the full graph and a warning, if the CPU computes a
        // part. `planned`: a plan that exists already.
        let (part, whole, remark, planned) =
            match (options.host_experts, options.host_ffn.or(options.reproducible.then_some(0))) {
                (0, asked) if options.hot_experts.is_none() => {
                    let nothing_else =
                        options.sequences <= 1 && !options.stream && options.output == Output::Own;
                    match asked {
                        None if nothing_else => {
                            match divide_with_host(engine, device, source(gguf), &graph, options)? {
                                HostFfn { apart: Some((apart, rates)), plan, .. } => {
                                    let said = format!("{apart}: {rates}");
                                    (apart.graph, Some((graph, said)), None, Some(plan))
                                }
                                HostFfn { remark, plan, .. } => (graph, None, remark, Some(plan)),
                            }
                        }
                        Some(n) if n > 0 => {
                            let apart = HostFfnGraph::of(&graph, n).map_err(|e| wrong(&e))?;
                            let said = apart.to_string();
                            (apart.graph, Some((graph, said)), None, None)
                        }
                        _ => (graph, None, None, None),
                    }
                }
                _ => {
                    let apart = HostExpertsGraph::of(&graph, options).map_err(|e| wrong(&e))?;
                    let said = apart.to_string();
                    (apart.graph, Some((graph, said)), None, None)
                }
            };
        let asked = options.host_ffn.filter(|n| *n > 0).map(|n| (n, part.clone()));
        let opened = GpuRunner::open_planned(engine, device, source(gguf), part, options, planned);
        let mut runner = opened.map_err(|error| match asked {
            Some((n, part)) if matches!(error, SessionError::Device(_)) => {
                without_kernels(engine, device, (&part, n), options).unwrap_or(error)
            }
            _ => with_remark(error, remark.as_deref()),
        })?;
        runner.remark(remark.into_iter().collect());
        let copied = runner.copied();
        let aside = whole.is_some();
        let whole = whole.map(|(graph, said)| {
            runner.remark(vec![copied.map_or(said.clone(), |copied| format!("{said}; {copied}"))]);
            graph
        });
        let (slots, context, n_vocab) =
            (runner.plan().slots, runner.context(), runner.graph().n_vocab());
        // A GPU stores keys and values in f16 or smaller types.
        let kv = if options.kv_stored() == KvType::Q8_0 { KvType::Q8_0 } else { KvType::F16 };
        // Prompts are run whole, because the device would wait for the host between pieces. They
        // are run in pieces if the host computes a part of the model or experts are copied for each
        // piece. Such a prompt may take minutes, so it must be cancellable between pieces.
        let piece = match (aside, copied) {
            (false, _) => usize::MAX,
            (_, Some(_)) => options.chunk_on_gpu(),
            (_, None) => options.chunk_on_cpu(),
        };
        let session = Session::with(Box::new(runner), slots, context, n_vocab, piece, kv);
        Ok(Session { whole, ..session })
    }

    /// Opens a session on several GPUs that compute each layer together, each with a share of heads
    /// and rows. `Err(Ok(why))`: the GPUs are of different kinds, or data that one GPU sends does
    /// not arrive at another. Layer split may still work.
    ///
    /// # Errors
    /// The model cannot be split over this number of devices, or a device fails.
    pub fn on_gpus(
        engine: &Engine,
        devices: &[Device],
        gguf: &Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
    ) -> Result<Session, Result<String, SessionError>> {
        one_gpu(options).map_err(Err)?;
        not_reproducible(options, "a model on several devices").map_err(Err)?;
        let shards = (0..devices.len()).map(|rank| shard(&graph, rank, devices.len()));
        let shards = shards.collect::<Result<Vec<_>, _>>();
        let shards = shards.map_err(|e| Err(SessionError::Device(e.to_string())))?;
        let (early, drafts, stream) = (false, false, false);
        // Each rank would choose a different number of sequences.
        let options = &OpenOptions { early, drafts, stream, fewer: false, ..options.clone() };
        let runner = GpuRunner::together(engine, devices, source(gguf), shards, options);
        let runner = runner.map_err(|apart| match apart {
            DevicesIncompatible::Link(why) => Ok(why),
            DevicesIncompatible::Other(error) => Err(error),
        })?;
        let (slots, context, n_vocab) = (runner.plan().slots, runner.context(), graph.n_vocab());
        let kv = if options.kv_stored() == KvType::Q8_0 { KvType::Q8_0 } else { KvType::F16 };
        let session = Session::with(Box::new(runner), slots, context, n_vocab, usize::MAX, kv);
        Ok(Session { whole: Some(graph), ..session })
    }

    /// Opens this process's share of a model that several processes compute, each with one GPU.
    ///
    /// # Errors
    /// The ranks do not connect, the model cannot be split over this number of devices, or the
    /// device fails.
    pub fn on_rank(
        engine: &Engine,
        device: &Device,
        gguf: &Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
        ranks: &Ranks,
    ) -> Result<Session, SessionError> {
        one_gpu(options)?;
        not_reproducible(options, "a model on several devices")?;
        let share = shard_of_rank(&graph, ranks.rank, ranks.size);
        // The message of tensor split names the option of one process. The split over processes
        // works in the same way.
        let wrong = |e: String| SessionError::Device(e.replace("--split tensor", "--split ranks"));
        let share = share.map_err(|e| wrong(e.to_string()))?;
        let (early, drafts, persistent, stream) = (false, false, Persistence::Off, false);
        let options =
            &OpenOptions { early, drafts, persistent, stream, fewer: false, ..options.clone() };
        let runner = GpuRunner::of_rank(engine, device, source(gguf), share, options, ranks)?;
        let (slots, context, n_vocab) = (runner.plan().slots, runner.context(), graph.n_vocab());
        let kv = if options.kv_stored() == KvType::Q8_0 { KvType::Q8_0 } else { KvType::F16 };
        let session = Session::with(Box::new(runner), slots, context, n_vocab, usize::MAX, kv);
        Ok(Session { whole: Some(graph), ..session })
    }

    /// Opens a session on several devices. Each device gets a number of layers, in this order.
    ///
    /// # Errors
    /// The model cannot be split there, the sum of layers differs from the model's number of
    /// layers, or a device fails.
    pub fn on_stages(
        engine: &Engine,
        stages: &[(StageDevice, usize)],
        gguf: &Arc<Gguf>,
        graph: Graph,
        options: &OpenOptions,
    ) -> Result<Session, SessionError> {
        one_gpu(options)?;
        not_reproducible(options, "a model on several devices")?;
        let layers = Layers::of(&graph).map_err(|e| SessionError::Device(e.to_string()))?;
        let sum: usize = stages.iter().map(|(_, n)| n).sum();
        if sum != layers.len() || stages.iter().any(|(_, n)| *n == 0) {
            let (of, each) = (
                layers.len(),
                stages.iter().map(|(_, n)| n.to_string()).collect::<Vec<_>>().join(" + "),
            );
            return Err(SessionError::Device(format!(
                "the devices have {each} layers in total, but the model has {of}"
            )));
        }
        // Stages have no background compiles and no persistent kernel.
        let options = &OpenOptions {
            early: false,
            fewer: false,
            persistent: Persistence::Off,
            context: Some(options.context_of(&graph)),
            ..options.clone()
        };
        let (mut before, mut first): (Option<Box<dyn Runner>>, usize) = (None, 0);
        for (place, n) in stages {
            let part = layers.part(&graph, first..first + n);
            first += n;
            before = Some(match place {
                StageDevice::Cpu => Box::new(
                    HostRunner::new(Arc::clone(gguf), part, options, Isa::best())?.behind(before),
                ),
                StageDevice::Gpu(device) => Box::new(
                    GpuRunner::open(engine, device, source(gguf), part, options)?.behind(before)?,
                ),
            });
        }
        let Some(last) = before else {
            return Err(SessionError::Device("no device was found".to_owned()));
        };
        let (context, n_vocab) = (options.context_of(&graph), graph.n_vocab());
        let context = graph.positions.map_or(context, |n| n.min(context));
        let gpus = stages.iter().all(|(place, _)| matches!(place, StageDevice::Gpu(_)));
        let piece = if gpus { usize::MAX } else { options.chunk_on_cpu() };
        let kv = match (stages.last(), options.kv_stored()) {
            // A GPU stores keys and values in f16 or smaller types.
            (Some((StageDevice::Gpu(_), _)), KvType::F32) => KvType::F16,
            (_, kv) => kv,
        };
        let session = Session::with(last, options.sequences, context, n_vocab, piece, kv);
        Ok(Session { whole: Some(graph), ..session })
    }

    pub(crate) fn with(
        runner: Box<dyn Runner>,
        sequences: usize,
        context: usize,
        n_vocab: usize,
        piece: usize,
        kv: KvType,
    ) -> Session {
        let sequences = (0..sequences.max(1)).map(|_| None).collect();
        Session {
            places: Places::of(runner.graph()),
            runner,
            whole: None,
            sequences,
            context,
            n_vocab,
            piece,
            kv,
            end_ids: vec![],
            lost: None,
            launched: VecDeque::new(),
            images: None,
        }
    }
}

/// The file of a model for a GPU; the CPU computes its part of the GPU's passes.
fn source(gguf: &Arc<Gguf>) -> Source<'_> {
    Source { gguf, host: open_ops }
}
/// Adds to a memory error the reason why host FFN rates were not measured.
fn with_remark(error: SessionError, remark: Option<&str>) -> SessionError {
    match (error, remark) {
        (SessionError::Memory { what, bytes, hint }, Some(why)) => {
            SessionError::Memory { what, bytes, hint: format!("{hint}; {why}") }
        }
        (error, _) => error,
    }
}

/// The error for requested host FFN layers whose kernels are missing. `None` if no kernel is
/// missing.
fn without_kernels(
    engine: &Engine,
    device: &Device,
    (part, n): (&Graph, usize),
    options: &OpenOptions,
) -> Option<SessionError> {
    let plan = plan_for(engine, part, device.target(), options).ok()?;
    let missing = lacks(engine, &plan, None)?;
    Some(SessionError::Device(format!(
        "--host-ffn {n}: {missing}: \
         run kjit warm --host-ffn {n} on a machine with a compiler, or use --host-ffn 0"
    )))
}
