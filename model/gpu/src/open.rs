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
