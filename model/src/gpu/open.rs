//! Opening a model on a GPU: plan, then compile and upload side by side.

use super::batch::GpuBatch;
use super::plan::{JobId, Plan, PlanError, Request, plan_batch};
use super::resident::{Resident, Words};
use super::tune::Kept;
use super::upload::{Matrix, Uploader, vector};
use super::{Early, GpuExecutor};
use crate::exec::{ExecError, ExecOptions};
use crate::gguf::Gguf;
use crate::graph::{Graph, Rope, WeightId};
use kjit_engine::{Arena, CompileCounts, Device, DeviceBuffer, Engine, Error, Kernel, Stream, Target};
use kjit_kernels::attend::angles;
use kjit_kernels::layout::Layout;
use kjit_kernels::repack::RepackSpec;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What opening took and what is held.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Statistics {
    /// What the compile service did for this model.
    pub kernels: CompileCounts,
    /// Bytes of weights on the device.
    pub weights: u64,
    /// Bytes of keys and values for a full context.
    pub kv: u64,
    /// Bytes of the device in use, all told.
    pub peak: u64,
    /// Seconds from the call to the last byte of the weights.
    pub upload_s: f64,
    /// Seconds from the call to the last kernel.
    pub kernels_s: f64,
}

/// The compile jobs that a run of this graph on such a target asks for, with an engine of this cache: `kjit warm`.
///
/// # Errors
/// What the kernels do not cover, by name.
pub fn jobs_for(
    engine: &Engine,
    graph: &Graph,
    target: &Target,
    options: &ExecOptions,
) -> Result<Vec<kjit_engine::Job>, ExecError> {
    jobs_for_batch(engine, graph, target, options, 0)
}

/// The same with those for up to so many sequences decoded side by side: what [`open_batch`] asks for.
///
/// # Errors
/// As [`jobs_for`]; more sequences than are covered.
pub fn jobs_for_batch(
    engine: &Engine,
    graph: &Graph,
    target: &Target,
    options: &ExecOptions,
    sequences: usize,
) -> Result<Vec<kjit_engine::Job>, ExecError> {
    let plan = plan_for_batch(engine, graph, target, options, sequences)?;
    Ok(plan.jobs.into_iter().map(|j| j.job).collect())
}

/// The plan that a run of this graph on such a target follows, with an engine of this cache: [`jobs_for`] and what is launched of them.
///
/// # Errors
/// As [`jobs_for`].
pub fn plan_for(engine: &Engine, graph: &Graph, target: &Target, options: &ExecOptions) -> Result<Plan, ExecError> {
    plan_for_batch(engine, graph, target, options, 0)
}

/// The same with what decodes up to so many sequences side by side: [`jobs_for_batch`] and what is launched of them.
///
/// # Errors
/// As [`jobs_for_batch`].
pub fn plan_for_batch(
    engine: &Engine,
    graph: &Graph,
    target: &Target,
    options: &ExecOptions,
    sequences: usize,
) -> Result<Plan, ExecError> {
    Ok(plan_batch(&Request { graph, target, options, keep: &[], tuned: &Kept::of(engine) }, sequences)?)
}

/// Opens a model on a device: `cuda:0`, `cuda`, `auto`. Kernels are compiled (or found) while the weights travel.
///
/// # Errors
/// A device that cannot be had, a model that the kernels do not cover, memory that does not suffice, a kernel that does not compile.
pub fn open(
    engine: &Engine,
    device: &str,
    gguf: Arc<Gguf>,
    graph: Graph,
    options: &ExecOptions,
) -> Result<GpuExecutor, ExecError> {
    let device = engine.device(device)?;
    open_on(engine, &device, gguf, graph, options, &[])
}

/// The same, but ready as soon as single tokens can be fed: where kernels for prompts are missing they are compiled meanwhile, and take over
/// between tokens ([`GpuExecutor::early`] tells). Not for whom the same tokens were promised twice.
///
/// # Errors
/// As [`open`]; a kernel that is late and does not compile is an error of the feed that would have used it.
pub fn open_early(
    engine: &Engine,
    device: &str,
    gguf: Arc<Gguf>,
    graph: Graph,
    options: &ExecOptions,
) -> Result<GpuExecutor, ExecError> {
    let device = engine.device(device)?;
    open_as(engine, &device, gguf, graph, options, &[], true)
}

/// The same as [`open`] on an opened device, keeping the values of these names after each feed, to be looked at with [`GpuExecutor::tap`] (but for
/// those that a fused step has in registers only).
///
/// # Errors
/// As [`open`].
pub fn open_on(
    engine: &Engine,
    device: &Device,
    gguf: Arc<Gguf>,
    graph: Graph,
    options: &ExecOptions,
    keep: &[&str],
) -> Result<GpuExecutor, ExecError> {
    open_as(engine, device, gguf, graph, options, keep, false)
}

fn open_as(
    engine: &Engine,
    device: &Device,
    gguf: Arc<Gguf>,
    graph: Graph,
    options: &ExecOptions,
    keep: &[&str],
    early: bool,
) -> Result<GpuExecutor, ExecError> {
    let (resident, statistics, early) =
        make_resident(engine, device, &gguf, &graph, options, keep, Mode::One { early })?;
    let mut executor = GpuExecutor::new(resident, graph, options, statistics, early)?;
    // They may have come while the weights travelled.
    executor.prompts_ready()?;
    Ok(executor)
}

/// Opens a model on a device for up to `sequences` sequences (64 at most) that are decoded side by side, each with a context of
/// `options.context` of its own.
///
/// # Errors
/// As [`open`].
pub fn open_batch(
    engine: &Engine,
    device: &Device,
    gguf: Arc<Gguf>,
    graph: Graph,
    options: &ExecOptions,
    sequences: usize,
) -> Result<GpuBatch, ExecError> {
    let mode = Mode::Many { sequences: sequences.max(1) };
    let (resident, statistics, _) = make_resident(engine, device, &gguf, &graph, options, &[], mode)?;
    GpuBatch::new(resident, graph, options, statistics)
}

/// What is opened.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// One sequence; `early`: ready before the kernels for prompts are.
    One { early: bool },
    /// Up to so many.
    Many { sequences: usize },
}

/// Everything on the device, and what comes to it later.
fn make_resident(
    engine: &Engine,
    device: &Device,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    options: &ExecOptions,
    keep: &[&str],
    mode: Mode,
) -> Result<(Resident, Statistics, Option<Early>), ExecError> {
    let sequences = if let Mode::Many { sequences } = mode { sequences } else { 0 };
    let start = Instant::now();
    let before = engine.counts();
    let find = |name: &&str| graph.find(name).ok_or_else(|| ExecError::Device(format!("no value is called '{name}'")));
    let keep = keep.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let kept = Kept::of(engine);
    let request = Request { graph, target: device.target(), options, keep: &keep, tuned: &kept };
    let plan = plan_batch(&request, sequences)?;
    check_memory(device, &request, &plan, sequences)?;
    let stream = device.urgent_stream()?;
    let copies = device.stream()?;
    // All sides at once; the uploader's own few kernels first.
    let (kernels, weights, tables) = std::thread::scope(|scope| {
        let uploading = scope.spawn(|| {
            let done = upload(engine, &copies, gguf, graph, &plan);
            (done, start.elapsed().as_secs_f64())
        });
        let tables = scope.spawn(|| tables(gguf, graph, options.context));
        let early = if mode == (Mode::One { early: true }) { Early::begin(engine, &plan) } else { Ok(None) };
        let kernels = early.and_then(|early| Ok((load(engine, device, &plan, early.as_ref())?, early)));
        let took = start.elapsed().as_secs_f64();
        let ended = || ExecError::Device("a thread that opens the model ended early".to_owned());
        let tables = tables.join().unwrap_or_else(|_| Err(ended()));
        let uploaded = uploading.join().unwrap_or_else(|_| (Err(ended()), 0.0));
        ((kernels, took), uploaded, tables)
    });
    let ((kernels, kernels_s), (weights, upload_s)) = (kernels, weights);
    let ((kernels, early), weights, tables) = (kernels?, weights?, tables?);
    let resident = assemble(plan, options, stream, kernels, weights, &tables)?;
    let after = engine.counts();
    let (free, total) = device.memory()?;
    let statistics = Statistics {
        kernels: CompileCounts {
            compiled: after.compiled - before.compiled,
            cached: after.cached - before.cached,
            failed: after.failed - before.failed,
            seconds: after.seconds - before.seconds,
        },
        weights: resident.plan.memory.weights,
        kv: resident.plan.memory.kv,
        peak: total.saturating_sub(free),
        upload_s,
        kernels_s,
    };
    Ok((resident, statistics, early))
}

/// Refuses what cannot fit before anything is allocated, and says what would.
fn check_memory(device: &Device, request: &Request, plan: &Plan, sequences: usize) -> Result<(), ExecError> {
    let (free, total) = device.memory()?;
    let need = plan.memory.total();
    if need <= free {
        return Ok(());
    }
    let mib = |n: u64| n >> 20;
    // What a token takes: keys, values, its row of each rotation table. The plan of half the context tells it from what is fixed.
    let context = request.options.context.max(2) as u64;
    let half = ExecOptions { context: (context / 2) as usize, ..request.options.clone() };
    let fewer = plan_batch(&Request { options: &half, ..*request }, sequences)?.memory.total();
    let per_token = (need.saturating_sub(fewer) / (context - context / 2)).max(1);
    let fits = free.saturating_sub(need.saturating_sub(per_token.saturating_mul(context))) / per_token;
    let hint = match fits {
        0 => format!(
            "{} MiB of {} MiB are free; a smaller model, or a smaller quantisation of it, is needed",
            mib(free),
            mib(total)
        ),
        n => format!("{} MiB of {} MiB are free; -c {n} would fit", mib(free), mib(total)),
    };
    let each = if sequences > 1 { format!(" for each of {sequences} sequences") } else { String::new() };
    let what = format!("the model with a context of {context}{each} on {}", device.label());
    Err(ExecError::Memory { what, bytes: need, hint })
}

/// The kernels by job; none where one comes later, and for those that the upload alone has use for, which loads them itself.
fn load(
    engine: &Engine,
    device: &Device,
    plan: &Plan,
    early: Option<&Early>,
) -> Result<Vec<Option<Kernel>>, ExecError> {
    let mut others = early.map(Early::jobs).unwrap_or_default();
    others.extend(plan.matrices.iter().filter_map(|(_, job)| *job));
    let wanted = || plan.jobs.iter().enumerate().filter(|(i, _)| !others.contains(&JobId(*i as u32)));
    let jobs: Vec<_> = wanted().map(|(_, j)| j.job.clone()).collect();
    let mut kernels = vec![None; plan.jobs.len()];
    for (module, (i, job)) in engine.load_all(device, &jobs).into_iter().zip(wanted()) {
        if let Some(place) = kernels.get_mut(i) {
            *place = Some(module?.kernel(job.entry)?);
        }
    }
    Ok(kernels)
}

struct Uploaded {
    matrices: HashMap<WeightId, DeviceBuffer<u8>>,
    vectors: HashMap<WeightId, DeviceBuffer<f32>>,
}

fn upload(
    engine: &Engine,
    stream: &Stream,
    gguf: &Arc<Gguf>,
    graph: &Graph,
    plan: &Plan,
) -> Result<Uploaded, ExecError> {
    let device = stream.device();
    let _span = device.trace().map(|t| t.span("upload", "weights"));
    let arena = device.arena(plan.memory.weights)?;
    // In the order of the file, so that it is read from front to back.
    let mut order = plan.matrices.clone();
    let place = |id: &WeightId| gguf.tensor_info(&graph.weight(*id).name).map(|t| (t.part(), t.data_offset()));
    order.sort_by_key(|(id, _)| place(id));
    let repackers = repackers(engine, device, plan, &order)?;
    let mut vectors = HashMap::new();
    for &id in &plan.vectors {
        let values = vector(gguf, graph, id)?;
        let buffer = arena.buffer::<f32>(values.len())?;
        stream.write(&buffer, &values)?;
        vectors.insert(id, buffer);
    }
    let mut uploader = Uploader::new(stream, Arc::clone(gguf))?;
    let mut matrices = HashMap::new();
    for (id, job) in order {
        let w = graph.weight(id);
        let layout =
            Layout::new(w.format, w.cols).map_err(|source| PlanError::Layout { name: w.name.clone(), source })?;
        let bytes =
            layout.bytes(w.rows, w.experts).map_err(|source| PlanError::Layout { name: w.name.clone(), source })?;
        let to = arena.buffer::<u8>(bytes)?;
        let raw_row = w.format.row_bytes(w.cols).unwrap_or(0);
        let matrix = Matrix { name: &w.name, raw_row, row: layout.row_bytes, to: to.clone() };
        match job.and_then(|j| repackers.get(&j)) {
            None => uploader.matrix(&matrix, None)?,
            Some(kernel) => {
                let (spec, units) = (RepackSpec { layout }, device.info().units);
                let mut launch = |stream: &Stream, raw: &DeviceBuffer<u8>, to: &DeviceBuffer<u8>, rows: usize| {
                    let blocks = spec.blocks(rows as u64, units);
                    let shape = spec.geometry(device.target(), rows as u64, units);
                    let shape = shape.map_err(|e| Error::Buffer(e.to_string()))?.dependent(false);
                    stream.launch(kernel, &shape, &kjit_engine::args![raw, to, rows as u64, blocks])
                };
                uploader.matrix(&matrix, Some(&mut launch))?;
            }
        }
        matrices.insert(id, to);
    }
    // The one wait: after it the file's pages are unlocked, and every stream sees the weights.
    stream.synchronize()?;
    Ok(Uploaded { matrices, vectors })
}

/// The kernels that lay rows out, by job.
fn repackers(
    engine: &Engine,
    device: &Device,
    plan: &Plan,
    order: &[(WeightId, Option<JobId>)],
) -> Result<HashMap<JobId, Kernel>, ExecError> {
    let mut ids: Vec<JobId> = order.iter().filter_map(|(_, job)| *job).collect();
    ids.sort_unstable();
    ids.dedup();
    let picked: Vec<_> = ids.iter().filter_map(|id| plan.jobs.get(id.0 as usize)).collect();
    let jobs: Vec<_> = picked.iter().map(|j| j.job.clone()).collect();
    let modules = engine.load_all(device, &jobs);
    let kernels = ids.into_iter().zip(picked).zip(modules);
    kernels.map(|((id, job), module)| Ok((id, module?.kernel(job.entry)?))).collect()
}

/// The table of each rotation: a device's own sine is good for small angles only.
fn tables(gguf: &Gguf, graph: &Graph, context: usize) -> Result<Vec<Vec<f32>>, ExecError> {
    let table = |rope: &Rope| {
        let factors = rope.factors.map(|id| vector(gguf, graph, id)).transpose()?;
        Ok(angles(&rope.frequencies(factors.as_deref()), rope.magnitude(), context))
    };
    graph.ropes.iter().map(table).collect()
}

fn assemble(
    plan: Plan,
    options: &ExecOptions,
    stream: Stream,
    kernels: Vec<Option<Kernel>>,
    weights: Uploaded,
    tables: &[Vec<f32>],
) -> Result<Resident, ExecError> {
    let device = stream.device().clone();
    let bytes = |n: u64| usize::try_from(n).map_err(|_| ExecError::Device(format!("{n} bytes cannot be addressed")));
    let mut caches = vec![];
    let slots = plan.slots;
    let all_slots = |n: u64| bytes(n.saturating_mul(slots as u64));
    let mut kv = 0;
    for c in &plan.caches {
        kv += 2 * Arena::room::<u8>(all_slots(*c)?)?;
    }
    let arena = device.arena(kv)?;
    for c in &plan.caches {
        caches.push((arena.buffer::<u8>(all_slots(*c)?)?, arena.buffer::<u8>(all_slots(*c)?)?));
    }
    let ropes = tables.iter().map(|t| stream.upload(t)).collect::<Result<_, _>>()?;
    let arena = device.buffer(bytes(plan.arena())?)?;
    stream.fill(&arena, 0)?;
    // One more than fit: the token chosen after the last that fits is still handed out.
    let words = options.context + 1;
    let control = Words {
        tokens: device.pinned(words * slots)?,
        position: device.buffer(slots)?,
        numbers: device.pinned(words)?,
        fractions: device.buffer(words * slots)?,
        options: device.buffer(slots)?,
        slots: device.buffer(slots)?,
    };
    control.numbers.write(|to| to.iter_mut().zip(0..).for_each(|(word, n)| *word = n))?;
    let Uploaded { matrices, vectors } = weights;
    Ok(Resident { plan, stream, kernels, matrices, vectors, ropes, caches, arena, control })
}
