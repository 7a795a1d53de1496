//! `kjit warm`: fills the cache, also for cards of other machines.

use super::emit::describe;
use crate::args::{self, Shared};
use crate::commands::kernels::{Tuning, tune_for};
use crate::engine;
use crate::interrupt;
use crate::load::named_gpu;
use crate::report::{FailureReport, bytes, say};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use kjit_engine::{CodeObject, Engine, Job, Origin, Target};
use kjit_model::DeviceChoice;
use kjit_model::catalogue::COMMON;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::{self, plan::Plan};
use kjit_model::graph::Graph;
use kjit_model::model::with_adapters;
use kjit_model::placement::{ExpertsError, FfnError, HostExpertsGraph, HostFfnGraph};
use kjit_model::session::{OpenOptions, Persistence};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A note about a chip that has no entry in kjit's table.
fn family(target: &Target) -> String {
    let said = |row| {
        format!(
            "; kjit has no table row for {} and uses the properties of {row}'s family",
            target.id()
        )
    };
    target.fallback_row().map_or(String::new(), said)
}

pub fn warm(args: &args::Warm, shared: &Shared) -> anyhow::Result<ExitCode> {
    let mut targets: Vec<Target> = vec![];
    for arch in &args.arch {
        let target = Target::parse(arch)?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    let engine = Engine::new(config(args, shared));
    if args.tune || args.measure_for_parent {
        match tune_for(&engine, args, shared)? {
            Tuning::Measured(code) => return Ok(code),
            Tuning::Done(target) => targets.push(target),
        }
    } else if targets.is_empty() {
        targets = here(&engine, shared)?;
    }
    let (jobs, plans) = wanted(&engine, args, &targets, shared)?;
    if !shared.quiet {
        for target in &targets {
            match engine.compiler_for(target) {
                Ok(choice) => say(format_args!("{target}: {}{}", choice.reason, family(target))),
                // All kernels may be in the cache already. If one is missing, it fails with the
                // reason.
                Err(_) => say(format_args!("{target}: no compiler, only cached kernels are used")),
            }
        }
    }
    let start = Instant::now();
    let results = compile(&engine, &jobs, shared);
    let seconds = start.elapsed().as_secs_f64();
    if let Some(dir) = &args.emit {
        super::emit::emit(dir, &jobs, &results, &plans)?;
    }
    let failed: Vec<_> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    let (cached, compiled) =
        results.iter().flatten().fold((0, 0), |(h, c), code| match code.origin() {
            Origin::Cached(_) | Origin::Given => (h + 1, c),
            Origin::Compiled => (h, c + 1),
        });
    // If the cache is full or read-only, new kernels are lost when this process ends, so `warm`
    // must report that.
    let counters = engine.cache().counters();
    let lost = counters.made.saturating_sub(counters.published);
    let mut out = io::stdout().lock();
    if args.json {
        let kernels: Vec<Value> = jobs
            .iter()
            .zip(&results)
            .filter_map(|(j, r)| Some(describe(j, r.as_ref().ok()?)))
            .collect();
        let doc = json!({
            "compiled": compiled, "cached": cached, "failed": failed.len(), "seconds": seconds, "not_kept": lost,
            "errors": failed.iter().map(ToString::to_string).collect::<Vec<_>>(), "kernels": kernels,
        });
        writeln!(out, "{doc}")?;
    } else {
        let home = match (engine.cache().home(), lost) {
            (None, _) => "memory only".to_owned(),
            (Some(home), 0) => home.display().to_string(),
            (Some(home), lost) => format!("{}, which did not store {lost} of them", home.display()),
        };
        writeln!(
            out,
            "{compiled} compiled, {cached} already cached, {} failed in {seconds:.1} s: {home}",
            failed.len()
        )?;
    }
    out.flush()?;
    let mut told = FailureReport::default();
    failed.iter().for_each(|e| told.failed(e));
    if lost > 0 && !shared.no_cache {
        let why = engine.cache().warnings().pop().map_or(String::new(), |w| format!(": {w}"));
        told.say(format!(
            "{lost} kernels were compiled but not stored{why}; \
            give --cache-dir a writable folder with free space"
        ));
    }
    Ok(told.code())
}

/// Architectures of the cards in this machine, each once. With --device, the architecture of that
/// card.
fn here(engine: &Engine, shared: &Shared) -> anyhow::Result<Vec<Target>> {
    let found = engine.devices();
    if shared.device == DeviceChoice::Cpu {
        bail!("--device cpu has no kernels to compile: give --arch, for example gfx1100 or sm_90");
    }
    let wanted = named_gpu(shared);
    let mut targets: Vec<Target> = vec![];
    for device in
        found.devices.iter().filter(|d| wanted.as_ref().is_none_or(|label| *label == d.label()))
    {
        let target = device.target.clone();
        let target = target.with_context(|| {
            format!("{} is {}, which kjit cannot compile for", device.name, device.arch_id)
        })?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    if targets.is_empty() {
        let label = wanted.map_or("GPU".to_owned(), |label| format!("device {label}"));
        bail!(
            "no --arch is given, and no {label} was found ({}): \
             give --arch, for example gfx1100 or sm_90",
            found.why_none()
        );
    }
    Ok(targets)
}

fn config(args: &args::Warm, shared: &Shared) -> kjit_engine::Config {
    let mut config = engine::config(shared);
    if let Some(jobs) = args.jobs {
        config = config.jobs(jobs);
    }
    args.compiler.choose(config)
}

/// The jobs that `run` will request, for each architecture, and the plans. Without a model: the
/// jobs of the catalogue's models, and no plans. Each job occurs once.
fn wanted(
    engine: &Engine,
    args: &args::Warm,
    targets: &[Target],
    shared: &Shared,
) -> anyhow::Result<(Vec<Job>, Vec<Plan>)> {
    let graphs = match &args.model {
        Some(model) => {
            let gguf = Gguf::open(model.path(shared)?)?;
            let graph = kjit_model::arch::build(&gguf).with_context(|| model.to_string())?;
            vec![with_adapters(graph, gguf, &args.setup.options())?.0]
        }
        None => COMMON.iter().map(|c| c.graph().context(c.name)).collect::<anyhow::Result<_>>()?,
    };
    let (mut jobs, mut plans) = (Vec::<Job>::new(), vec![]);
    let options = OpenOptions { sequences: args.sequences.unwrap_or(1), ..args.setup.options() };
    // With experts on the CPU, the GPU has other operations.
    let graphs: Vec<Graph> = match (options.host_experts, options.hot_experts) {
        (0, None) => match options.host_ffn.filter(|n| *n > 0) {
            None => graphs,
            Some(n) => {
                let apart = graphs.into_iter().map(|graph| match HostFfnGraph::of(&graph, n) {
                    Ok(apart) => Ok(apart.graph),
                    Err(FfnError::None { .. }) if args.model.is_none() => Ok(graph),
                    Err(other) => Err(other.into()),
                });
                apart.collect::<anyhow::Result<_>>()?
            }
        },
        _ => {
            let apart =
                graphs.into_iter().map(|graph| match HostExpertsGraph::of(&graph, &options) {
                    Ok(apart) => Ok(apart.graph),
                    // Most of the common models have no experts.
                    Err(ExpertsError::None { .. }) if args.model.is_none() => Ok(graph),
                    Err(other) => Err(other.into()),
                });
            apart.collect::<anyhow::Result<_>>()?
        }
    };
    for (target, graph) in targets.iter().flat_map(|t| graphs.iter().map(move |g| (t, g))) {
        let options = options.clone();
        let plan = gpu::plan_for(engine, graph, target, &options);
        let plan = plan.with_context(|| format!("for {target}"))?;
        let mut add = |plan: &Plan| {
            for job in plan.compiled() {
                if !jobs.contains(job) {
                    jobs.push(job.clone());
                }
            }
        };
        add(&plan);
        if let (Persistence::On, Some(why), false) =
            (options.persistent, &plan.no_persistent, shared.quiet)
        {
            say(format_args!("{target}: --persistent on has no effect: {why}"));
        }
        // If the model does not fit, rates measured at startup decide whether the CPU has a part.
        let alone = options.sequences == 1 && options.host_experts == 0 && !options.stream;
        let by_rates = alone && options.memory.is_some() && options.host_ffn.is_none();
        if by_rates
            && let Ok(apart) = HostFfnGraph::of(graph, usize::MAX)
            && let Ok(parts) = gpu::plan_for(engine, &apart.graph, target, &options)
        {
            add(&parts);
        }
        // Sequences of a server have paged keys and values, if the model supports them.
        if args.sequences.is_some() && options.may_page(graph).is_ok() {
            let paged = Some(options.context_of(graph));
            let plan = gpu::plan_for(engine, graph, target, &OpenOptions { paged, ..options });
            add(&plan.with_context(|| format!("for {target}"))?);
        }
        if args.model.is_some() {
            plans.push(plan);
        }
    }
    Ok((jobs, plans))
}

/// Compiles, with a progress bar on a terminal, and with a line per kernel if `-v` is given.
fn compile(engine: &Engine, jobs: &[Job], shared: &Shared) -> Vec<kjit_engine::Result<CodeObject>> {
    let show = io::stderr().is_terminal() && !shared.quiet;
    let bar = if show { ProgressBar::new(jobs.len() as u64) } else { ProgressBar::hidden() };
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len} kernels, {msg}, {elapsed}")
    {
        bar.set_style(style);
    }
    // Finished kernels are complete in the cache, so Ctrl-C need not wait.
    let (shown, all) = (bar.clone(), jobs.len());
    interrupt::leaves(move || {
        // A cleared bar means that all are done.
        let done = shown.position();
        shown.finish_and_clear();
        format!("{done} of {all} kernels are compiled; run the command again to continue")
    });
    let (hits, size) = (AtomicU64::new(0), AtomicU64::new(0));
    let results = engine.compile_each(jobs, &|index, result| {
        if let Ok(code) = result {
            size.fetch_add(code.bytes().len() as u64, Relaxed);
            hits.fetch_add(u64::from(*code.origin() != Origin::Compiled), Relaxed);
        }
        let (hits, size) = (hits.load(Relaxed), bytes(size.load(Relaxed)));
        bar.set_message(format!(
            "{hits} hits, {:.1} s of compiling, {size}",
            engine.counts().seconds
        ));
        bar.inc(1);
        if shared.verbose > 0
            && let (Ok(code), Some(job)) = (result, jobs.get(index))
        {
            bar.suspend(|| say(line(job, code)));
        }
    });
    bar.finish_and_clear();
    results
}

fn line(job: &Job, code: &CodeObject) -> String {
    let d = describe(job, code);
    let text = |key: &str| {
        d.get(key)
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_string))
            .unwrap_or_default()
    };
    format!(
        "{:<10} {:<22} {} s by {}, wave {}, {} registers, {} spills, {} B LDS, occupancy {}, {} B",
        text("arch"),
        text("name"),
        text("seconds"),
        text("compiler"),
        text("wave"),
        text("registers"),
        text("spills"),
        text("lds"),
        text("occupancy"),
        text("bytes"),
    )
}
