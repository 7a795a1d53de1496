//! Opens a runner on a GPU: plans, then compiles and uploads at the same time.

mod fit;
mod load;

pub use fit::free_memory;
pub(crate) use fit::{budget, room_in, system_memory};

use super::exchange::Exchange;
use super::expert_cache::ExpertCache;
use super::host_part::{HostPart, PromptCopy};
use super::loaded_plan::Persistent;
use super::plan::{Plan, Request, plan};
use super::target_probe::settled;
use super::trial::Trial;
use super::tune::StoredTunings;
use super::verify;
use super::verify::Proofs;
use super::{BackgroundCompiling, GpuRunner};
use crate::source::Source;
use crate::statistics::Statistics;
use fit::{as_many_as_fit, fit_memory, what_helps};
use kjit_engine::{CompileCounts, Device, Engine, Target};
use kjit_exec::{HostPrompts, OpenOptions, Persistence, SessionError};
use kjit_graph::is_host_ffn;
use kjit_graph::{Graph, ValueId};
use kjit_kernels::agpr_copy_check;
use load::{assemble, load, load_ones, tables, upload};
use std::time::Instant;

/// The compile jobs of opening this graph on a target with this engine's cache, for `kjit warm`.
///
/// # Errors
/// An operation without a kernel, by name; too many sequences.
pub fn jobs_for(
    engine: &Engine,
    graph: &Graph,
    target: &Target,
    options: &OpenOptions,
) -> Result<Vec<kjit_engine::Job>, SessionError> {
    let mut jobs: Vec<_> = plan_for(engine, graph, target, options)?.compiled().cloned().collect();
    jobs.extend(agpr_copy_check::probe_job(target));
    Ok(jobs)
}

/// The plan of a session of this graph on a target with this engine's cache.
///
/// # Errors
/// See [`jobs_for`].
pub fn plan_for(
    engine: &Engine,
    graph: &Graph,
    target: &Target,
    options: &OpenOptions,
) -> Result<Plan, SessionError> {
    let target = &settled(engine, target);
    // The kernel of a whole token. A trial may choose it at the first start.
    let tried = options.persistent == Persistence::Auto && engine.tries_forms(target.vendor());
    let persistent = if tried { Persistence::Tried } else { options.persistent };
    let options = &OpenOptions { persistent, ..options.clone() };
    Ok(plan(&Request { graph, target, options, keep: &[], tuned: &StoredTunings::of(engine) })?)
}

impl GpuRunner {
    /// Opens a model on a device. Kernels are compiled or found in the cache while weights are
    /// uploaded.
    pub fn open(
        engine: &Engine,
        device: &Device,
        source: Source<'_>,
        graph: Graph,
        options: &OpenOptions,
    ) -> Result<GpuRunner, SessionError> {
        GpuRunner::open_planned(engine, device, source, graph, options, None)
    }

    /// Like [`GpuRunner::open`], with an existing plan.
    ///
    /// # Errors
    /// See [`GpuRunner::open`].
    pub fn open_planned(
        engine: &Engine,
        device: &Device,
        source: Source<'_>,
        graph: Graph,
        options: &OpenOptions,
        planned: Option<Plan>,
    ) -> Result<GpuRunner, SessionError> {
        GpuRunner::open_at(engine, device, source, graph, options, (None, planned))
    }

    /// Like [`GpuRunner::open`], with exchange buffers if devices compute together, and with an
    /// optional existing plan.
    pub(crate) fn open_at(
        engine: &Engine,
        device: &Device,
        source: Source<'_>,
        graph: Graph,
        options: &OpenOptions,
        (meeting, mut planned): (Option<Exchange>, Option<Plan>),
    ) -> Result<GpuRunner, SessionError> {
        let (mut remarks, ladder) = (vec![], verify::ladder(&settled(engine, device.target())));
        for (i, target) in ladder.iter().enumerate() {
            let known = (meeting.as_ref(), planned.take().filter(|plan| plan.target == *target));
            let wrong = match GpuRunner::open_as(
                engine,
                (device, target),
                source,
                &graph,
                options,
                known,
            ) {
                Ok(mut runner) => {
                    runner.remark(remarks);
                    return Ok(runner);
                }
                Err(SessionError::Wrong(lines)) => lines,
                Err(other) if remarks.is_empty() => return Err(other),
                // The first warning is the reason for trying an alternative.
                Err(other) => {
                    remarks.push(other.to_string());
                    return Err(SessionError::Wrong(remarks));
                }
            };
            let next = ladder
                .get(i + 1)
                .map_or("there are no more variants".to_owned(), |t| format!("trying {t}"));
            remarks.extend(wrong.iter().map(|line| format!("{line}; {next}")));
        }
        Err(SessionError::Wrong(remarks))
    }

    /// Opens a model for one of the targets that the device supports. [`SessionError::Wrong`] means
    /// that kernels have wrong results.
    fn open_as(
        engine: &Engine,
        (device, target): (&Device, &Target),
        source: Source<'_>,
        graph: &Graph,
        options: &OpenOptions,
        (meeting, planned): (Option<&Exchange>, Option<Plan>),
    ) -> Result<GpuRunner, SessionError> {
        let start = Instant::now();
        let before = engine.counts();
        let (kept, keep) = (StoredTunings::of(engine), kept_values(graph, options)?);
        let request = Request { graph, target, options, keep: &keep, tuned: &kept };
        let mut asked = planned.map_or_else(|| plan(&request), Ok)?;
        let trial = match meeting {
            None => Trial::of(engine, device, &asked, options),
            Some(_) => None,
        };
        let tried = OpenOptions { persistent: Persistence::Tried, ..options.clone() };
        let options = match &trial {
            Some(trial) if trial.wants_one_launch() => &tried,
            _ => options,
        };
        let request = Request { options, ..request };
        if options.persistent == Persistence::Tried {
            asked = plan(&request)?;
        }
        // A lack of memory for copies of experts must not prevent opening. The CPU computes prompts
        // instead.
        let computing = OpenOptions { host_prompts: HostPrompts::Compute, ..options.clone() };
        let mut request = request;
        let mut left_out = None;
        if let Some(ring) =
            asked.streaming.as_ref().filter(|_| asked.copying().is_some() && !is_host_ffn(graph))
            && asked.memory.total() > budget(device, options)?
        {
            let mib = ring.ring() >> 20;
            left_out = Some(format!(
                "the CPU also computes experts for prompts: \
                 copying them would need {mib} MiB of GPU memory"
            ));
            request.options = &computing;
            asked = plan(&request)?;
        }
        let (options, mut plan) = as_many_as_fit(device, &request, asked)?;
        let (options, request) = (&options, Request { options: &options, ..request });
        fit_memory(device, &request, &mut plan)?;
        let memory = plan.memory;
        let opened = GpuRunner::open_plan(
            engine,
            device,
            source,
            &request,
            (plan, meeting),
            (start, before),
        );
        let mut runner = opened.map_err(|error| what_helps(error, memory, options))?;
        runner.remark(left_out.into_iter().collect());
        if let Some(trial) = trial {
            trial.settle(engine, device, &mut runner)?;
        }
        Ok(runner)
    }

    /// Opens a model with a plan whose estimate fits.
    fn open_plan(
        engine: &Engine,
        device: &Device,
        source: Source<'_>,
        request: &Request,
        (plan, meeting): (Plan, Option<&Exchange>),
        (start, before): (Instant, CompileCounts),
    ) -> Result<GpuRunner, SessionError> {
        let (graph, options) = (request.graph, request.options);
        let context = options.context_of(graph);
        // Free memory for verification during the upload. State and working memory are allocated
        // later.
        let room = free_memory(device)?.0.saturating_sub(plan.memory.weights);
        let target = plan.target.clone();
        let proofs = Proofs::of(engine, device, &target, room);
        let stream = device.urgent_stream()?;
        let copies = device.stream()?;
        // All parts run at the same time. The few kernels of the uploader are compiled first.
        let (kernels, weights, tables) = std::thread::scope(|scope| {
            let uploading = scope.spawn(|| {
                let done = upload(engine, &copies, source.gguf, graph, (&plan, &proofs));
                (done, start.elapsed().as_secs_f64())
            });
            let tables = scope.spawn(|| tables(source.gguf, graph, context));
            // There is no early start with streamed layers (they would be copied for every prompt
            // token) or with bidirectional attention (it cannot run token by token).
            let early = options.early && plan.streaming.is_none() && !graph.is_bidirectional();
            // A persistent kernel that was not requested is skipped if it is not in the cache and
            // cannot be compiled.
            let asked = options.persistent == Persistence::On;
            let ones = if device.info().cooperative { plan.persistent.as_slice() } else { &[] };
            let can = asked || ones.iter().all(|one| engine.cached(&one.job).is_ok());
            let ones = if can { ones } else { &[] };
            let early = if early {
                BackgroundCompiling::begin(engine, &plan, ones, asked)
            } else {
                Ok(None)
            };
            let late = early
                .as_ref()
                .is_ok_and(|e| e.as_ref().is_some_and(BackgroundCompiling::lacks_one_launch));
            let kernels =
                early.and_then(|early| Ok((load(engine, &plan, early.as_ref(), &proofs)?, early)));
            let ones = if late { &[] } else { ones };
            let persistent = load_ones(engine, device, ones);
            let persistent = if asked { persistent } else { Ok(persistent.unwrap_or_default()) };
            let took = start.elapsed().as_secs_f64();
            let ended =
                || SessionError::Device("a thread that opens the model has failed".to_owned());
            let tables = tables.join().unwrap_or_else(|_| Err(ended()));
            let uploaded = uploading.join().unwrap_or_else(|_| (Err(ended()), 0.0));
            ((kernels, persistent, took), uploaded, tables)
        });
        let ((kernels, persistent, kernels_s), (weights, upload_s)) = (kernels, weights);
        let (((kernels, remarks), early), weights, tables) = (kernels?, weights?, tables?);
        let proven = proofs.end();
        let (remark, repackers) = (weights.remark.clone(), weights.repackers.clone());
        let mut loaded = assemble(plan, context, stream, kernels, weights, &tables, graph)?;
        loaded.meeting = meeting.cloned();
        let hot = ExpertCache::new(
            device,
            source.gguf,
            (graph, &loaded.plan),
            &loaded.matrices,
            repackers,
        )?;
        loaded.aside = HostPart::new(device, source, graph, &loaded.plan, options, hot)?;
        let copied = match (&loaded.aside, &loaded.ring) {
            (Some(aside), Some(ring)) if ring.copies_for_prompts() => {
                PromptCopy::of(aside, &loaded.plan, ring, options.host_prompts)?
            }
            _ => None,
        };
        let wanted = loaded.plan.room().unwrap_or_default();
        if !meeting.map(Exchange::room).unwrap_or_default().holds(wanted) {
            return Err(SessionError::Device(
                "the exchange buffers are smaller than the plan needs".to_owned(),
            ));
        }
        loaded.persistent = Persistent::all(&loaded, persistent?)?;
        let after = engine.counts();
        let (free, total) = device.memory()?;
        let statistics = Statistics {
            kernels: CompileCounts {
                compiled: after.compiled - before.compiled,
                cached: after.cached - before.cached,
                failed: after.failed - before.failed,
                seconds: after.seconds - before.seconds,
            },
            weights: loaded.plan.memory.weights,
            // Experts that are copied only for prompts are not part of a step.
            streamed: loaded.ring.as_ref().map(|ring| ring.streamed).filter(|s| s.layers > 0),
            kv: loaded.plan.memory.kv,
            peak: total.saturating_sub(free),
            upload_s,
            kernels_s,
            proven,
        };
        let mut runner = GpuRunner::new(loaded, graph.clone(), context, statistics, early)?;
        runner.copy_experts(copied);
        runner.remark(remarks);
        runner.remark(remark.into_iter().collect());
        Ok(runner)
    }
}

/// The values to keep after each run.
pub(super) fn kept_values(
    graph: &Graph,
    options: &OpenOptions,
) -> Result<Vec<ValueId>, SessionError> {
    let find = |name: &String| {
        graph
            .find(name)
            .ok_or_else(|| SessionError::Device(format!("no value has the name '{name}'")))
    };
    options.keep.iter().map(find).collect()
}

/// Available bytes of system memory; 0 if unknown.
pub(super) fn system_memory() -> u64 {
    let said = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = said.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().split(' ').next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// Free and total bytes for a model. For an integrated GPU, drivers often report only the memory
/// that the firmware reserved. The usable part of the rest is known only by allocation. The limit
/// is the available system memory.
pub fn free_memory(device: &Device) -> Result<(u64, u64), SessionError> {
    let (free, total) = device.memory()?;
    let system = if device.info().integrated { system_memory() } else { 0 };
    Ok((free.max(system), total))
}

/// Bytes that a model may use.
pub(super) fn budget(device: &Device, options: &OpenOptions) -> Result<u64, SessionError> {
    let free = free_memory(device)?.0;
    Ok(options.memory.unwrap_or(free).min(free))
}

/// The budget with streamed layers. It is reduced by the rounding of allocations, because a plan
/// for this size must fit.
pub(super) fn room_in(device: &Device, options: &OpenOptions) -> Result<u64, SessionError> {
    let free = free_memory(device)?.0;
    let room = free.saturating_sub((free / 256).max(1 << 20));
    Ok(options.memory.unwrap_or(room).min(room))
}

/// With [`OpenOptions::fewer`]: the options with the largest number of sequences that fit in
/// addition to all weights, and their plan.
fn as_many_as_fit(
    device: &Device,
    request: &Request,
    asked: Plan,
) -> Result<(OpenOptions, Plan), SessionError> {
    let mut options = request.options.clone();
    if !options.fewer || options.stream {
        return Ok((options, asked));
    }
    let budget = budget(device, &options)?;
    let mut fewer = None;
    while fewer.as_ref().unwrap_or(&asked).memory.total() > budget
        && options.sequences > OpenOptions::FEW
    {
        options.sequences = (options.sequences / 2).max(OpenOptions::FEW);
        fewer = Some(plan(&Request { options: &options, ..*request })?);
    }
    Ok(match fewer {
        Some(fewer) if fewer.memory.total() <= budget => (options, fewer),
        // Layers are streamed in any case, and all sequences share the copies.
        _ => (request.options.clone(), asked),
    })
}

/// Checks before any allocation that the plan fits the budget, with streamed layers if needed. If
/// it does not fit, the error suggests options with which it fits.
fn fit_memory(device: &Device, request: &Request, plan: &mut Plan) -> Result<(), SessionError> {
    let (free, total) = free_memory(device)?;
    let OpenOptions { memory, stream, .. } = *request.options;
    if plan.memory.total() <= memory.unwrap_or(free).min(free) && !stream {
        return Ok(());
    }
    // The number of host experts is explicit, and it determines which weights stay resident.
    if !plan.decode.pauses.is_empty() && !is_host_ffn(request.graph) {
        let (need, room) = (plan.memory.total(), memory.unwrap_or(free).min(free) >> 20);
        let hint = match stream {
            true => "--host-experts needs resident layers: remove --stream".to_owned(),
            false => format!(
                "{room} MiB are available; {} needs less",
                less_aside(request.graph, request.options)
            ),
        };
        return Err(SessionError::Memory {
            what: format!("all weights except the CPU's experts on {}", device.label()),
            bytes: need,
            hint,
        });
    }
    let room = free.saturating_sub((free / 256).max(1 << 20));
    let budget = room_in(device, request.options)?;
    let Err(need) = plan.fit(request.graph, budget, stream) else { return Ok(()) };
    let mib = |n: u64| n >> 20;
    let less = what_would_fit(request, plan, need, budget)?;
    let limited = memory.filter(|m| *m < room);
    let there = match limited {
        Some(memory) => format!("--memory allows {} MiB", mib(memory)),
        None => format!("{} MiB of {} MiB are free", mib(free), mib(total)),
    };
    let more = format!("--memory {}MiB is enough, with all layers streamed", mib(need) + 1);
    let hint = match (less, limited.filter(|_| need <= room)) {
        (None, Some(_)) => format!("{there}; {more}"),
        (None, None) => {
            format!("{there}; use a smaller model or a smaller quantisation")
        }
        (Some(less), Some(_)) => format!("{there}; {more}, and {less} also fits"),
        (Some(less), None) => format!("{there}; {less} fits"),
    };
    let sequences = plan.slots;
    let each = if let Some(tokens) = request.options.paged {
        format!(" and {tokens} tokens of all sequences")
    } else if sequences > 1 {
        format!(" for each of {sequences} sequences")
    } else {
        String::new()
    };
    let context = request.context();
    let what = format!("the model with a context of {context}{each} on {}", device.label());
    Err(SessionError::Memory { what, bytes: need, hint })
}

/// Flags with which a plan that needs at least `need` bytes fits the budget. `None` if even the
/// smallest context does not fit.
fn what_would_fit(
    request: &Request,
    plan: &Plan,
    need: u64,
    budget: u64,
) -> Result<Option<String>, SessionError> {
    let (options, context) = (request.options, request.context().max(2) as u64);
    let least = |options: &OpenOptions| -> Result<u64, SessionError> {
        let mut plan = super::plan::plan(&Request { options, ..*request })?;
        Ok(plan.fit(request.graph, 0, options.stream).err().unwrap_or(0))
    };
    // The flag for pages counts bytes of keys and values.
    let token = options.kv_stored().bytes(request.graph.kv_elems_per_token());
    let named = |tokens: u64| match tokens.saturating_mul(token) >> 20 {
        0 => (format!("--kv-memory {}B", tokens * token), tokens),
        mib => (format!("--kv-memory {mib}MiB"), (mib << 20) / token.max(1)),
    };
    let (mut need, pages) = (need, plan.pages.map(|pages| pages as u64));
    if let Some(pages) = pages.filter(|_| token > 0) {
        let in_pages = plan
            .caches
            .iter()
            .zip(&plan.parts)
            .filter(|(_, parts)| matches!(parts, Parts::Pages(_)));
        let each = in_pages.flat_map(|(bytes, _)| bytes).sum::<u64>().max(1);
        let fit = budget.saturating_sub(need.saturating_sub(each.saturating_mul(pages))) / each;
        let (flag, tokens) = named(fit.saturating_mul(PAGE as u64));
        if tokens >= context {
            return Ok(Some(flag));
        }
        // Not even one context fits, so the context must be smaller.
        need = least(&OpenOptions { paged: Some(context as usize), ..options.clone() })?;
    }
    // Bytes for each token: keys, values, a row of each rotation table. A plan with half the
    // context separates these bytes from fixed sizes.
    let half = (context / 2) as usize;
    let fewer =
        least(&OpenOptions { context: Some(half), paged: pages.map(|_| half), ..options.clone() })?;
    let per_token = (need.saturating_sub(fewer) / (context - context / 2)).max(1);
    let fits =
        budget.saturating_sub(need.saturating_sub(per_token.saturating_mul(context))) / per_token;
    Ok(match (fits, pages) {
        (0, _) => None,
        (n, None) => Some(format!("-c {n}")),
        // Whole pages, minus one for rounding.
        (n, Some(_)) => match (n / PAGE as u64).saturating_sub(1) * PAGE as u64 {
            0 => None,
            n => Some(format!("-c {n} with --kv-memory {}B", n * token)),
        },
    })
}

/// Flags that reduce the device memory of a model with host parts.
fn less_aside(graph: &Graph, options: &OpenOptions) -> String {
    let more = graph.ops.iter().any(|op| matches!(op, Op::ExpertMatMul(_)));
    let kept = if options.paged.is_some() { "a smaller --kv-memory" } else { "a smaller -c" };
    if options.hot_experts.is_some() {
        return format!("a larger --host-experts, a smaller --hot-experts, or {kept},");
    }
    if more { format!("a larger --host-experts, or {kept},") } else { kept.to_owned() }
}

/// Adds the flag that reduces memory to an allocation error.
fn what_helps(error: SessionError, need: MemoryNeed, options: &OpenOptions) -> SessionError {
    let SessionError::Memory { what, bytes, hint } = error else { return error };
    let mib = |n: u64| n >> 20;
    let kept = if options.kv_stored() == KvType::Q8_0 { "" } else { " or --kv-type q8_0" };
    let help = match need.kv.saturating_add(need.rest) > need.total() / 8 {
        true if options.paged.is_some() => {
            format!("use a smaller --kv-memory{kept}")
        }
        true => format!("use a smaller -c{kept}"),
        false if options.hot_experts.is_some() => {
            "use a larger --host-experts or a smaller --hot-experts".to_owned()
        }
        false if options.host_experts > 0 => "use a larger --host-experts".to_owned(),
        false => format!("use --memory with less than {} MiB to stream layers", mib(need.total())),
    };
    let (all, weights, kv) = (mib(need.total()), mib(need.weights), mib(need.kv));
    let hint = format!(
        "{hint}; the whole plan needs {all} MiB ({weights} of weights, {kv} of keys and values): \
         {help}, or stop other programs that use the device"
    );
    SessionError::Memory { what, bytes, hint }
}

/// Loads kernels by job. `None` for kernels that arrive later and for the upload's kernels (the
/// upload loads them).
fn load(
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
fn load_ones(
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

struct Uploaded {
    matrices: HashMap<WeightId, DeviceBuffer<u8>>,
    vectors: HashMap<WeightId, DeviceBuffer<f32>>,
    ring: Option<StagingRing>,
    /// Kernels that repack experts loaded later.
    repackers: HashMap<JobId, Repacker>,
    /// A warning about the host memory of streamed layers.
    remark: Option<String>,
}

fn upload(
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
                    "the CPU also computes its host parts for prompts: the file's pages cannot be \
                     locked for {label} ({why})"
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
    let repacker = |((id, job), kernel): ((JobId, &super::plan::Job), Kernel)| match &job.spec {
        Spec::Repack(spec) => {
            Ok((id, Repacker { kernel, spec: spec.clone(), target: plan.target.clone() }))
        }
        other => Err(SessionError::Device(format!("'{other}' does not repack rows"))),
    };
    ids.into_iter().zip(picked).zip(kernels).map(repacker).collect()
}

/// The table of each rotation. The host computes it, because a device's sine is accurate only for
/// small angles.
fn tables(gguf: &Gguf, graph: &Graph, context: usize) -> Result<Vec<Vec<f32>>, SessionError> {
    let table = |rope: &Rope| {
        let factors = rope.factors_for(context).map(|id| vector(gguf, graph, id)).transpose()?;
        Ok(angles(&rope.frequencies(factors.as_deref()), f64::from(rope.magnitude), context))
    };
    graph.ropes.iter().map(table).collect()
}

fn assemble(
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
