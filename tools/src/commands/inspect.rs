//! `kjit inspect`: shows a model file.

use crate::args::{self, Shared};
use crate::columns;
use crate::engine::engine;
use crate::load::named_gpu;
use crate::report::{bytes, say};
use anyhow::{Context, bail};
use kjit_engine::{Engine, Target};
use kjit_model::gguf::{Gguf, Summary, Value};
use kjit_model::gpu::plan::{MemoryNeed, Plan, Streaming};
use kjit_model::gpu::plan_for;
use kjit_model::graph::Graph;
use kjit_model::placement::{HostExpertsGraph, HostFfnGraph};
use kjit_model::session::{HostPrompts, KvType, OpenOptions, SessionError};
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn inspect(args: &args::Inspect, shared: &Shared) -> anyhow::Result<ExitCode> {
    let gguf = Gguf::open(args.model.path(shared)?)?;
    if !shared.quiet {
        gguf.remarks().iter().for_each(|line| say(format_args!("note: {line}")));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.graph {
        write!(out, "{}", kjit_model::arch::build(&gguf)?)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let summary = gguf.summary();
    // Files that kjit cannot run, or that only have a vocabulary, can be inspected too.
    let graph = kjit_model::arch::build(&gguf);
    let placed = match &graph {
        Ok(graph)
            if args.memory.is_some()
                || args.stream
                || args.host_experts.is_some()
                || args.host_ffn.is_some() =>
        {
            Some(GpuPlacement::of(graph, args, shared)?)
        }
        _ => None,
    };
    let memory = graph.map(|graph| Memory::of(&graph, args));
    if args.json {
        let mut doc = document(&gguf, &summary);
        if let Some(map) = doc.as_object_mut() {
            map.insert(
                "memory".into(),
                match &memory {
                    Ok(m) => json!({ "weights": m.weights, "kv": m.kv, "context": m.context }),
                    Err(e) => json!({ "not_runnable": e.to_string() }),
                },
            );
            if let Some(p) = &placed {
                let doc = json!({
                    "arch": p.target.id(), "layers": p.layers, "streamed_layers": p.streamed, "streamed": p.bytes,
                    "weights": p.need.weights, "kv": p.need.kv, "rest": p.need.rest, "on_device": p.need.total(),
                    "host_ffn": p.ffn.map(|(taken, _)| taken), "rates_may_leave_to_the_cpu": p.by_rates.map(|(of, _)| of), "least_on_device_then": p.by_rates.map(|(_, least)| least), "host_experts": p.experts.map(|e| e.taken), "places": p.experts.map(|e| e.places), "copied_for_prompts": p.experts.map(|e| e.copied),
                });
                map.insert("placed".into(), doc);
            }
        }
        serde_json::to_writer(&mut out, &doc)?;
        writeln!(out)?;
    } else {
        columns::write_clipped(&summary.to_string(), columns::width(), &mut out)?;
        writeln!(out)?;
        match memory {
            Ok(m) => writeln!(
                out,
                "memory: weights {} + KV {} at {} tokens of context",
                bytes(m.weights),
                bytes(m.kv),
                m.context
            )?,
            Err(e) => writeln!(out, "cannot be run: {e}")?,
        }
        if let Some(p) = placed {
            writeln!(out, "{p}")?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Placement of the model on a GPU.
struct GpuPlacement {
    target: Target,
    layers: usize,
    streamed: usize,
    /// Number of bytes that are copied for each step.
    bytes: u64,
    need: MemoryNeed,
    experts: Option<Experts>,
    /// Number of layers whose feed-forward part is on the CPU, and number of bytes that are copied
    /// for a prompt if the GPU computes all of it.
    ffn: Option<(usize, u64)>,
    /// Number of layers whose feed-forward part may be on the CPU, depending on measured rates, and
    /// the minimum GPU memory in this case, in bytes.
    by_rates: Option<(usize, u64)>,
}

/// Experts on the CPU.
#[derive(Clone, Copy)]
struct Experts {
    taken: usize,
    of: usize,
    /// Number of bytes that are copied for a prompt.
    copied: u64,
    /// Number of hot experts per layer on the GPU, and number of experts per layer.
    places: usize,
    all: usize,
}

impl GpuPlacement {
    fn of(graph: &Graph, args: &args::Inspect, shared: &Shared) -> anyhow::Result<GpuPlacement> {
        let engine = engine(shared);
        let target = match &args.arch {
            Some(arch) => Target::parse(arch)?,
            None => here(&engine, shared)?,
        };
        let memory = args.memory.map(|size| size.0);
        let options = OpenOptions {
            context: args.context,
            kv: args.kv_type.into(),
            prefill_chunk: args.prefill_chunk,
            host_prompts: args.host_prompts.into(),
            ..OpenOptions::default()
        };
        let hot_experts = args.hot_experts.map(|size| size.0);
        if let Some(host_experts) = args.host_experts.filter(|n| *n > 0 || hot_experts.is_some()) {
            let options = OpenOptions { host_experts, hot_experts, ..options };
            return GpuPlacement::with_experts(&engine, graph, target, memory, options);
        }
        // Without --host-ffn and if the model does not fit, `run` decides by measured rates.
        let by_rates = args.host_ffn.is_none() && !args.stream;
        let all = by_rates.then(|| HostFfnGraph::of(graph, usize::MAX).ok()).flatten();
        let apart =
            args.host_ffn.filter(|n| *n > 0).map(|n| HostFfnGraph::of(graph, n)).transpose()?;
        let graph = apart.as_ref().map_or(graph, |apart| &apart.graph);
        let mut plan = plan_for(&engine, graph, &target, &options)?;
        if let Err(takes) = plan.fit(graph, memory.unwrap_or(u64::MAX), args.stream) {
            let (context, given) = (options.context_of(graph), memory.unwrap_or_default() >> 20);
            // With parts on the CPU the model may need less memory.
            let apart = all.map(|all| {
                Ok::<_, SessionError>((all.taken, least(&engine, &all.graph, &target, &options)?))
            });
            let less = match apart.transpose()? {
                Some((parts, less)) if less < takes => {
                    format!(
                        ", {} MiB if the CPU computes feed-forward parts (--host-ffn {parts})",
                        (less >> 20) + 1
                    )
                }
                _ => String::new(),
            };
            bail!(
                "the model with {context} tokens of context needs at least {} MiB, \
             with all layers streamed{less}: --memory gives {given} MiB",
                (takes >> 20) + 1
            );
        }
        let streaming = plan.streaming.as_ref();
        let all = all.filter(|_| streaming.is_some());
        let by_rates = all.map(|all| {
            Ok::<_, SessionError>((all.taken, least(&engine, &all.graph, &target, &options)?))
        });
        Ok(GpuPlacement {
            target,
            layers: plan.layers(graph),
            streamed: streaming.map_or(0, Streaming::steps),
            bytes: streaming.map_or(0, Streaming::step_bytes),
            need: plan.memory,
            experts: None,
            ffn: apart.map(|apart| (apart.taken, streaming.map_or(0, Streaming::bytes))),
            by_rates: by_rates.transpose()?,
        })
    }

    /// Places the experts of some layers on the CPU. As in `run`, they are copied for prompts if
    /// memory is free.
    fn with_experts(
        engine: &Engine,
        graph: &Graph,
        target: Target,
        memory: Option<u64>,
        options: OpenOptions,
    ) -> anyhow::Result<GpuPlacement> {
        let HostExpertsGraph { graph: part, taken, of, places, experts: all } =
            HostExpertsGraph::of(graph, &options)?;
        let fits = |plan: &Plan| memory.is_none_or(|memory| plan.memory.total() <= memory);
        let mut plan = plan_for(engine, &part, &target, &options)?;
        if !fits(&plan) {
            plan = plan_for(
                engine,
                &part,
                &target,
                &OpenOptions { host_prompts: HostPrompts::Compute, ..options },
            )?;
        }
        if !fits(&plan) {
            bail!(
                "without the experts of {taken} of {of} layers the model takes {} MiB: \
                 --memory gives {} MiB; \
                 a larger --host-experts, a smaller --hot-experts or a smaller -c takes less",
                (plan.memory.total() >> 20) + 1,
                memory.unwrap_or_default() >> 20
            );
        }
        let copied = plan.streaming.as_ref().map_or(0, Streaming::bytes);
        let (layers, need, experts) =
            (plan.layers(&part), plan.memory, Some(Experts { taken, of, copied, places, all }));
        Ok(GpuPlacement {
            target,
            layers,
            streamed: 0,
            bytes: 0,
            need,
            experts,
            ffn: None,
            by_rates: None,
        })
    }
}

/// Minimum GPU memory in bytes, with as many layers streamed as possible.
fn least(
    engine: &Engine,
    graph: &Graph,
    target: &Target,
    options: &OpenOptions,
) -> Result<u64, SessionError> {
    Ok(plan_for(engine, graph, target, options)?.fit(graph, 0, false).err().unwrap_or(0))
}

/// Target of the GPU that the flags select.
fn here(engine: &Engine, shared: &Shared) -> anyhow::Result<Target> {
    let found = engine.devices();
    let device = match named_gpu(shared) {
        Some(label) => found.devices.iter().find(|d| d.label() == label),
        None => found.preferred(),
    };
    let target = device.and_then(|d| d.target.clone());
    target.context("this machine has no GPU to plan for: give --arch, for example gfx1100 or sm_90")
}

impl std::fmt::Display for GpuPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GpuPlacement { target, layers, streamed, need, .. } = self;
        let parts = [need.weights, need.kv, need.rest].map(bytes);
        let [weights, kv, rest] = parts;
        write!(
            f,
            "on {}: {}: weights {weights} + KV {kv} + working memory {rest}",
            target.id(),
            bytes(need.total())
        )?;
        if let Some(Experts { taken, of, copied, places, all }) = self.experts {
            write!(f, "; the CPU has the experts of {taken} of {of} layers with experts")?;
            if places > 0 {
                write!(f, ", the GPU has the {places} most often chosen of {all} in each")?;
            }
            return match copied {
                0 => Ok(()),
                copied => write!(f, ", {} are copied to the GPU for a long prompt", bytes(copied)),
            };
        }
        if let Some((taken, copied)) = self.ffn {
            write!(
                f,
                "; the CPU computes the feed-forward part of {taken} of {layers} layers, \
                 {streamed} others are streamed: {} copied for each token",
                bytes(self.bytes)
            )?;
            return match copied {
                0 => Ok(()),
                copied => write!(f, ", {} for a long prompt", bytes(copied)),
            };
        }
        match streamed {
            0 => write!(f, "; all {layers} layers stay on the GPU"),
            n => write!(
                f,
                "; {} of {layers} layers stay on the GPU, {n} are streamed: \
                 {} copied for each step",
                layers - n,
                bytes(self.bytes)
            ),
        }?;
        match self.by_rates {
            Some((of, least)) => write!(
                f,
                "; or the CPU computes the feed-forward part of some of {of} layers, \
                 by rates that `kjit run` measures (--host-ffn N; for all layers: {} at least)",
                bytes(least)
            ),
            None => Ok(()),
        }
    }
}

/// A metadata value as JSON, complete, with numbers as numbers. Invalid UTF-8 is replaced. NaN and
/// infinities become null, because JSON does not have them.
fn plain(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Int(v) => match i64::try_from(*v) {
            Ok(v) => v.into(),
            Err(_) => u64::try_from(*v).map_or(serde_json::Value::Null, Into::into),
        },
        // Most values are stored as f32. This gives the shortest decimal number with the same f32.
        Value::Float(v) if f64::from(*v as f32) == *v => {
            (*v as f32).to_string().parse::<f64>().unwrap_or(*v).into()
        }
        Value::Float(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::Str(v) => String::from_utf8_lossy(v).into(),
        // Arrays are at most four levels deep: a file with more cannot be opened.
        Value::Array(all) => all.iter().map(|value| value.map(|value| plain(&value))).collect(),
    }
}

/// Memory needs of the model.
struct Memory {
    weights: u64,
    kv: u64,
    context: usize,
}

impl Memory {
    fn of(graph: &Graph, args: &args::Inspect) -> Memory {
        let context =
            OpenOptions { context: args.context, ..OpenOptions::default() }.context_of(graph);
        let weights = graph.weights.iter().map(|w| w.bytes() as u64).sum();
        Memory {
            weights,
            kv: KvType::from(args.kv_type)
                .bytes(graph.kv_elems_per_token())
                .saturating_mul(context as u64),
            context,
        }
    }
}

fn document(gguf: &Gguf, s: &Summary) -> serde_json::Value {
    let metadata: Vec<_> = s
        .metadata
        .iter()
        .map(|k| {
            let value = gguf.value(&k.key).map(|value| plain(&value));
            json!({ "key": k.key, "type": k.ty, "value": value })
        })
        .collect();
    let tensors: Vec<_> = s
        .tensors
        .iter()
        .map(|t| json!({ "name": t.name(), "type": t.ty().to_string(), "shape": t.dims(), "bytes": t.bytes(), "offset": t.data_offset() }))
        .collect();
    let mix: Vec<_> = s
        .mix
        .iter()
        .map(|m| json!({ "type": m.ty.to_string(), "tensors": m.tensors, "elements": m.elements, "bytes": m.bytes }))
        .collect();
    json!({
        "files": s.files, "version": s.version, "bytes": s.file_bytes, "alignment": s.alignment, "data_start": s.data_start,
        "parameters": s.elements, "tensor_bytes": s.tensor_bytes, "metadata": metadata, "mix": mix, "tensors": tensors,
    })
}
