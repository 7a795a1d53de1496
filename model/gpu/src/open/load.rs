//! Loads kernels, uploads weights and allocates the buffers of a plan.

use crate::background::BackgroundCompiling;
use crate::loaded_plan::{ControlWords, DraftWords, LoadedPlan};
use crate::plan::{Job, JobId, PersistentKernel, Plan, PlanError};
use crate::staging::Staging;
use crate::streamed::{Repacker, StagingRing, layout_of};
use crate::upload::{Matrix, SLOT, Uploader, vector};
use crate::verify::Proofs;
use kjit_engine::{Arena, Device, DeviceBuffer, Engine, Kernel, Stream};
use kjit_exec::SessionError;
use kjit_gguf::Gguf;
use kjit_graph::{Graph, Rope, WeightId};
use kjit_kernels::changes;
use kjit_kernels::heads::angles;
use kjit_kernels::spec::Spec;
use std::collections::HashMap;
use std::sync::Arc;

/// Loads kernels by job. `None` for kernels that arrive later and for the upload's kernels (the
/// upload loads them).
pub(super) fn load(
    engine: &Engine,
    plan: &Plan,
    early: Option<&BackgroundCompiling>,
    proofs: &Proofs<'_>,
) -> Result<(Vec<Option<Kernel>>, Vec<String>), SessionError> {
    let mut others = early.map(BackgroundCompiling::jobs).unwrap_or_default();
    others.extend(plan.matrices.iter().filter_map(|(_, job)| *job));
    let wanted =
        || plan.jobs.iter().enumerate().filter(|(i, _)| !others.contains(&JobId(*i as u32)));
    let jobs: Vec<_> = wanted().map(|(_, j)| j.job.clone()).collect();
    let picked: Vec<_> = wanted().map(|(_, j)| j).collect();
    let (loaded, mut remarks) = proofs.load(&picked, engine.compile_all(&jobs))?;
    proofs.keep();
    let mut kernels = vec![None; plan.jobs.len()];
    for (kernel, (i, _)) in loaded.into_iter().zip(wanted()) {
        if let Some(place) = kernels.get_mut(i) {
            *place = Some(kernel);
        }
    }
    let more = remarks.len().saturating_sub(1);
    remarks.truncate(1);
    remarks
        .iter_mut()
        .filter(|_| more > 0)
        .for_each(|line| line.push_str(&format!(", and {more} more")));
    Ok((kernels, remarks))
}

/// Loads the persistent kernels.
pub(super) fn load_ones(
    engine: &Engine,
    device: &Device,
    ones: &[PersistentKernel],
) -> kjit_engine::Result<Vec<Kernel>> {
    let jobs: Vec<_> = ones.iter().map(|one| one.job.clone()).collect();
    engine
        .load_all(device, &jobs)
        .into_iter()
        .zip(ones)
        .map(|(module, one)| module?.kernel(one.entry))
        .collect()
}

pub(super) struct Uploaded {
    matrices: HashMap<WeightId, DeviceBuffer<u8>>,
    vectors: HashMap<WeightId, DeviceBuffer<f32>>,
    ring: Option<StagingRing>,
    /// Kernels that repack experts loaded later.
    pub(super) repackers: HashMap<JobId, Repacker>,
    /// A warning about the host memory of streamed layers.
    pub(super) remark: Option<String>,
}

pub(super) fn upload(
    engine: &Engine,
    stream: &Stream,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    (plan, proofs): (&Plan, &Proofs<'_>),
) -> Result<Uploaded, SessionError> {
    let device = stream.device();
    let _span = device.trace().map(|t| t.span("upload", "weights"));
    let arena = device.arena(plan.memory.weights)?;
    // Weights are uploaded in file order, so that the file is read sequentially.
    let mut order = plan.matrices.clone();
    let place = |id: &WeightId| {
        gguf.tensor_info(&graph.weight(*id).tensor).map(|t| (t.part(), t.data_offset()))
    };
    order.sort_by_key(|(id, _)| place(id));
    let repackers = repackers(engine, (plan, proofs), &order)?;
    let mut vectors = HashMap::new();
    for &id in &plan.vectors {
        let values = vector(gguf, graph, id)?;
        let buffer = arena.buffer::<f32>(values.len())?;
        stream.write(&buffer, &values)?;
        vectors.insert(id, buffer);
    }
    // Staging must leave the memory that is allocated after the weights.
    let piece = match &plan.streaming {
        None => SLOT,
        Some(_) => usize::try_from(plan.memory.kv + plan.memory.rest).unwrap_or(SLOT),
    };
    let mut uploader = Uploader::new(stream, Arc::clone(gguf), piece)?;
    let streamed =
        |id: &WeightId| plan.streaming.as_ref().is_some_and(|s| s.layer_of.contains_key(id));
    let (mut matrices, pause) = (HashMap::new(), || proofs.give_way());
    for (id, job) in order.into_iter().filter(|(id, _)| !streamed(id)) {
        let (w, layout) = (graph.weight(id), layout_of(graph, id)?);
        let bytes = layout
            .bytes(w.rows, w.experts)
            .map_err(|source| PlanError::Layout { name: w.name.clone(), source })?;
        let to = arena.buffer::<u8>(bytes)?;
        let raw_row = w.format.row_bytes(w.cols).unwrap_or(0);
        // A slice of every expert's matrix consists of separate pieces.
        let pieces = if w.is_whole() { 1 } else { w.experts };
        let each = w.bytes() / pieces.max(1);
        for piece in 0..pieces {
            let skip = w.bytes_of(piece * w.whole + w.at);
            let room = to.len() / pieces;
            let to = to.slice(piece * room..(piece + 1) * room)?;
            let stride = w.bytes_of(w.stride);
            let matrix = Matrix {
                name: &w.tensor,
                skip,
                bytes: each,
                raw_row,
                stride,
                row: layout.row_bytes,
                to,
            };
            match job.and_then(|j| repackers.get(&j)) {
                None => uploader.matrix(&matrix, None, &pause)?,
                Some(repacker) => {
                    let mut launch = |stream: &Stream,
                                      raw: &DeviceBuffer<u8>,
                                      to: &DeviceBuffer<u8>,
                                      rows: usize| {
                        repacker.launch(stream, raw, to, rows)
                    };
                    uploader.matrix(&matrix, Some(&mut launch), &pause)?;
                }
            }
        }
        matrices.insert(id, to);
    }
    // This is the only wait. After it the file's pages are unlocked, and all streams can read the
    // weights.
    stream.synchronize()?;
    drop(uploader);
    let (mut ring, mut remark, later) = (None, None, repackers.clone());
    if let Some(streaming) = &plan.streaming {
        let _span = device.trace().map(|t| t.span("upload", "lock streamed layers"));
        // A second copy of all experts in host memory would only speed up prompts. The CPU computes
        // prompts instead.
        let stock = match streaming.prompt.is_some() && streaming.steps() == 0 {
            true => Staging::locked(device, gguf, graph, streaming),
            false => Staging::new(device, gguf, graph, streaming).map(Ok),
        };
        match stock? {
            Ok(mut stock) => {
                remark = stock.remark.take();
                if let Some((made, places)) =
                    StagingRing::new((plan, graph), &arena, device.stream()?, stock, repackers)?
                {
                    matrices.extend(places);
                    ring = Some(made);
                }
            }
            Err(why) => {
                let label = device.label();
                remark = Some(format!(
                    "the CPU also computes its host parts for prompts: \
                     the file's pages cannot be locked for {label} ({why})"
                ));
            }
        }
    }
    Ok(Uploaded { matrices, vectors, ring, repackers: later, remark })
}

/// The repacking kernels by job.
fn repackers(
    engine: &Engine,
    (plan, proofs): (&Plan, &Proofs<'_>),
    order: &[(WeightId, Option<JobId>)],
) -> Result<HashMap<JobId, Repacker>, SessionError> {
    let mut ids: Vec<JobId> = order.iter().filter_map(|(_, job)| *job).collect();
    ids.sort_unstable();
    ids.dedup();
    let picked: Vec<_> = ids.iter().filter_map(|id| plan.jobs.get(id.0 as usize)).collect();
    let jobs: Vec<_> = picked.iter().map(|j| j.job.clone()).collect();
    let (kernels, _) = proofs.load(&picked, engine.compile_all(&jobs))?;
    let repacker = |((id, job), kernel): ((JobId, &Job), Kernel)| match &job.spec {
        Spec::Repack(spec) => {
            Ok((id, Repacker { kernel, spec: spec.clone(), target: plan.target.clone() }))
        }
        other => Err(SessionError::Device(format!("'{other}' does not repack rows"))),
    };
    ids.into_iter().zip(picked).zip(kernels).map(repacker).collect()
}

/// The table of each rotation. The host computes it, because a device's sine is accurate only for
/// small angles.
pub(super) fn tables(
    gguf: &Gguf,
    graph: &Graph,
    context: usize,
) -> Result<Vec<Vec<f32>>, SessionError> {
    let table = |rope: &Rope| {
        let factors = rope.factors_for(context).map(|id| vector(gguf, graph, id)).transpose()?;
        Ok(angles(&rope.frequencies(factors.as_deref()), f64::from(rope.magnitude), context))
    };
    graph.ropes.iter().map(table).collect()
}

pub(super) fn assemble(
    plan: Plan,
    context: usize,
    stream: Stream,
    kernels: Vec<Option<Kernel>>,
    weights: Uploaded,
    tables: &[Vec<f32>],
    graph: &Graph,
) -> Result<LoadedPlan, SessionError> {
    let (device, n_vocab) = (stream.device().clone(), graph.n_vocab());
    // Buffers must not be empty.
    let factors = if graph.adapters.is_empty() { vec![0.0] } else { graph.adapter_factors() };
    let bytes = |n: u64| {
        usize::try_from(n)
            .map_err(|_| SessionError::Device(format!("{n} bytes are too large to address")))
    };
    let mut caches = vec![];
    let slots = plan.slots;
    let all = |cache: usize, n: u64| bytes(n.saturating_mul(plan.parts_of(cache).count() as u64));
    let mut kv = 0;
    for (i, c) in plan.caches.iter().enumerate() {
        for side in c {
            kv += Arena::room::<u8>(all(i, *side)?)?;
        }
    }
    let arena = device.arena(kv)?;
    for (i, &[keys, values]) in plan.caches.iter().enumerate() {
        caches.push((arena.buffer::<u8>(all(i, keys)?)?, arena.buffer::<u8>(all(i, values)?)?));
    }
    let ropes = tables.iter().map(|t| stream.upload(t)).collect::<Result<_, _>>()?;
    let arena: DeviceBuffer<u8> = device.buffer(bytes(plan.arena())?)?;
    // Only counters are zeroed. Zeros in other buffers once concealed a read of a row that was
    // never written.
    for program in plan.programs() {
        for b in program.buffers.iter().filter(|b| b.zeroed) {
            let at = program.base + b.offset;
            stream.fill(&arena.slice(bytes(at)?..bytes(at + b.bytes)?)?, 0)?;
        }
    }
    // One more than the context: the token that is chosen after the last position is also returned.
    let words = context + 1;
    let control = ControlWords {
        tokens: device.pinned(words * slots)?,
        position: device.buffer(slots)?,
        numbers: device.pinned(words)?,
        seeds: device.buffer(slots)?,
        options: device.buffer(slots)?,
        adjustments: device.buffer(changes::stride(n_vocab) * slots)?,
        slots: device.buffer(slots)?,
        pages: device.buffer((slots * plan.table(context)).max(1))?,
        each: plan
            .prompts
            .iter()
            .chain(&plan.image)
            .filter(|p| p.wants_each())
            .map(|p| p.tokens as usize)
            .max()
            .map(|n| device.buffer(n))
            .transpose()?,
        adapters: stream.upload(&factors.repeat(slots))?,
        drafts: plan.drafts.as_ref().map(|_| DraftWords::new(&device)).transpose()?,
    };
    control.numbers.write(|to| to.iter_mut().zip(0..).for_each(|(word, n)| *word = n))?;
    let Uploaded { matrices, vectors, ring, .. } = weights;
    let (persistent, cooperative) = (vec![], device.info().cooperative);
    Ok(LoadedPlan {
        plan,
        stream,
        kernels,
        persistent,
        cooperative,
        matrices,
        vectors,
        ropes,
        caches,
        arena,
        control,
        ring,
        meeting: None,
        aside: None,
    })
}
