//! `--tune`: measures the variants of each kernel on the card, in child processes of this program.

use super::selection::{DEPTH, Filter, open_device, plan_of};
use crate::args::{self, BenchOutput, Shared};
use crate::report::say;
use anyhow::Context;
use kjit_engine::{Device, Engine, Target};
use kjit_model::gpu::measure::representative;
use kjit_model::gpu::settled;
use kjit_model::gpu::tune::{Options, Progress, Tuned, TuningSet, serve, tune};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, ExitCode};

/// `kjit bench --kernels --tune`, and the child process that measures.
pub fn tuning(
    engine: &Engine,
    args: &args::Bench,
    filter: &Filter,
    shared: &Shared,
) -> anyhow::Result<ExitCode> {
    let device = open_device(engine, shared, "--tune")?;
    let depth = if args.depth > 0 { args.depth } else { DEPTH };
    let course = match &args.model {
        Some(model) => course(
            engine,
            &model.path(shared)?,
            &args.setup,
            args.most_sequences(),
            depth,
            &device,
        )?,
        None => TuningSet {
            subjects: representative(&settled(engine, device.target()), depth)?,
            token: vec![],
        },
    };
    if args.measure_for_parent {
        return measure(engine, &device, &course);
    }
    let all = run(engine, &device, &course, filter, args.tries, shared)?;
    if let Some(file) = &args.rows {
        rows(&all, &device, file)?;
    }
    print(&all, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Result of [`tune_for`].
pub enum Tuning {
    /// The target of the device. Its kernels use the new choices from now on.
    Done(Target),
    /// This process was the child that measures, and it is finished.
    Measured(ExitCode),
}

/// `kjit warm MODEL --tune`: the variants are measured at the sizes of the model's plan, and
/// kernels that are compiled afterwards use the choices. The child process answers its parent until
/// there are no more requests.
///
/// # Errors
/// The model or the device cannot be opened.
pub fn tune_for(engine: &Engine, args: &args::Warm, shared: &Shared) -> anyhow::Result<Tuning> {
    let model =
        args.model.as_ref().context("--tune needs a MODEL: it tunes the model's kernels")?;
    let device = open_device(engine, shared, "--tune")?;
    let course = course(
        engine,
        &model.path(shared)?,
        &args.setup,
        args.sequences.unwrap_or(1),
        DEPTH,
        &device,
    )?;
    if args.measure_for_parent {
        return measure(engine, &device, &course).map(Tuning::Measured);
    }
    let all = run(engine, &device, &course, &Filter(None), args.tries, shared)?;
    if !shared.quiet {
        let better = all.iter().filter(|t| t.chosen != t.default).count();
        say(format_args!(
            "{} kernels tuned, {better} of them with a variant other than the default",
            all.len()
        ));
    }
    Ok(Tuning::Done(device.target().clone()))
}

fn course(
    engine: &Engine,
    model: &Path,
    setup: &args::Setup,
    sequences: usize,
    depth: usize,
    device: &Device,
) -> anyhow::Result<TuningSet> {
    Ok(TuningSet::of_plan(&plan_of(engine, model, setup, sequences, device.target())?, depth))
}

fn measure(engine: &Engine, device: &Device, course: &TuningSet) -> anyhow::Result<ExitCode> {
    serve(engine, device, course, io::stdin().lock(), io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

fn run(
    engine: &Engine,
    device: &Device,
    course: &TuningSet,
    filter: &Filter,
    tries: Option<usize>,
    shared: &Shared,
) -> anyhow::Result<Vec<Tuned>> {
    if !shared.quiet {
        say(format_args!(
            "device: {}, {} ({})",
            device.label(),
            device.info().name,
            device.info().arch_id
        ));
    }
    let program = std::env::current_exe()
        .context("cannot find this program's file, which is needed to start a child process")?;
    let spawn = || {
        let mut child = Command::new(&program);
        child.args(std::env::args_os().skip(1)).arg("--measure-for-parent");
        child
    };
    let options = Options { variants: tries.unwrap_or(usize::MAX), ..Options::default() };
    let live = io::stderr().is_terminal() && !shared.quiet;
    let told = |p: &Progress<'_>| match p.tuned {
        Some(t) if !shared.quiet => say(format_args!("{}: {}", p.subject.spec, outcome(t))),
        None if live && p.done.is_multiple_of(10) => {
            say(format_args!("{}: {} of {} variants", p.subject.spec, p.done, p.all));
        }
        _ => {}
    };
    let all = tune(engine, device, course, &|s| filter.wants(s), &options, &spawn, &told)
        .map_err(anyhow::Error::msg)?;
    if all.is_empty() { Err(filter.nothing()) } else { Ok(all) }
}

/// The result as a sentence.
fn outcome(t: &Tuned) -> String {
    let failed = t.candidates.iter().filter(|c| c.outcome.is_err()).count();
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    let what = match t.duel {
        Some((usual, best, chance)) if t.chosen != t.default => {
            format!(
                "{} ({:.2} → {:.2} µs, chance {:.2})",
                t.chosen,
                usual * 1e6,
                best * 1e6,
                chance * 1e6
            )
        }
        Some((usual, best, chance)) => format!(
            "the default stays ({:.2} µs, the best other {:.2}, chance {:.2})",
            usual * 1e6,
            best * 1e6,
            chance * 1e6
        ),
        None => "the default stays".to_string(),
    };
    format!("{what}; {} variants{failed}", t.candidates.len())
}

fn print(all: &[Tuned], output: BenchOutput) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let micros = |s: f64| format!("{:.2}", s * 1e6);
    let duel = |t: &Tuned| {
        t.duel.map_or([String::new(), String::new(), String::new()], |(a, b, c)| {
            [a, b, c].map(micros)
        })
    };
    match output {
        BenchOutput::Md => {
            writeln!(
                out,
                "| kernel | variants | failed | default µs | best µs | chance µs | chosen | of \
                 |\n|---|---|---|---|---|---|---|---|"
            )?;
            for t in all {
                let [usual, best, chance] = duel(t);
                let failed = t.candidates.iter().filter(|c| c.outcome.is_err()).count();
                let chosen = if t.chosen == t.default { "the default" } else { &t.chosen };
                writeln!(
                    out,
                    "| {} | {} | {failed} | {usual} | {best} | {chance} | {chosen} | {} |",
                    t.subject.spec,
                    t.candidates.len(),
                    t.context
                )?;
            }
        }
        BenchOutput::Csv => {
            writeln!(out, "kernel,tuning,us,spread_us,chosen,error")?;
            for t in all {
                for c in &t.candidates {
                    let (us, spread, error) = match &c.outcome {
                        Ok(t) => (micros(t.median), micros(t.spread), ""),
                        Err(why) => (String::new(), String::new(), why.as_str()),
                    };
                    let chosen = c.tuning == t.chosen;
                    let error = error.replace('"', "'");
                    writeln!(
                        out,
                        "\"{}\",\"{}\",{us},{spread},{chosen},\"{error}\"",
                        t.subject.spec, c.tuning
                    )?;
                }
            }
        }
        BenchOutput::Json => {
            let candidate = |t: &Tuned, c: &kjit_model::gpu::tune::Candidate| -> Value {
                let timing = c.outcome.as_ref().ok();
                json!({
                    "tuning": c.tuning, "us": timing.map(|t| t.median * 1e6), "spread_us": timing.map(|t| t.spread * 1e6),
                    "chosen": c.tuning == t.chosen, "error": c.outcome.as_ref().err(),
                })
            };
            let tuned = |t: &Tuned| {
                json!({
                    "kernel": t.subject.spec.to_string(), "context": t.context, "default": t.default, "chosen": t.chosen,
                    "duel_us": t.duel.map(|(a, b, c)| json!({ "default": a * 1e6, "best": b * 1e6, "chance": c * 1e6 })),
                    "candidates": t.candidates.iter().map(|c| candidate(t, c)).collect::<Vec<_>>(),
                })
            };
            writeln!(out, "{}", Value::from(all.iter().map(tuned).collect::<Vec<_>>()))?;
        }
    }
    Ok(out.flush()?)
}

/// Appends choices that are faster than the default, as lines of the shipped table.
fn rows(all: &[Tuned], device: &Device, file: &Path) -> anyhow::Result<()> {
    let lines: String = all
        .iter()
        .filter(|t| t.chosen != t.default)
        .map(|t| {
            format!(
                "{}\t{}\t{}\t{}\n",
                device.target().id(),
                t.subject.spec,
                t.chosen,
                t.measured(&device.info().name)
            )
        })
        .collect();
    let open = std::fs::File::options().create(true).append(true).open(file);
    open.and_then(|mut f| f.write_all(lines.as_bytes()))
        .with_context(|| format!("cannot write {}", file.display()))
}
