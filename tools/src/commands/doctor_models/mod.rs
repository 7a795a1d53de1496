//! `kjit doctor --run MODEL…`: tests models on the devices of this machine and compares them with
//! the precise CPU.
//!
//! Each model is open in a child process for each device, and each kernel case runs in another one,
//! so that a device that dies ends no more than one test.

mod child;
mod judge;
mod protocol;
mod show;

use crate::args::{self, Shared};
use crate::engine;
use crate::report::say;
use anyhow::Context;
pub use child::serve;
use judge::{Check, Verdict};
use kjit_engine::{Engine, Target};
use kjit_model::DeviceChoice;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::plan::Plan;
use kjit_model::gpu::plan_for;
use kjit_model::gpu::process::Process;
use kjit_model::gpu::prove_plan;
use kjit_model::graph::Graph;
use kjit_model::session::OpenOptions;
use protocol::{Ask, Opened, Said, Step};
use show::Row;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The most tokens of a context, unless `-c` sets more.
const CONTEXT: usize = 512;
/// The fewest tokens of a context: a window of the perplexity.
const MIN_CONTEXT: usize = 64;
/// The time limit of a test. Opening a large model may take minutes, and so may its tokens on a
/// slow CPU.
const TEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// Options of opening the model.
fn options(
    args: &args::Doctor,
    shared: &Shared,
    gguf: &Gguf,
    device: &DeviceChoice,
) -> OpenOptions {
    let trained = kjit_model::arch::build(gguf).map_or(CONTEXT, |graph| graph.context);
    OpenOptions {
        device: device.clone(),
        context: Some(args.context.unwrap_or(trained.min(CONTEXT)).max(MIN_CONTEXT)),
        prefill_chunk: args.prefill_chunk,
        precise: args.precise_for_parent,
        threads: shared.threads.map_or_else(kjit_model::host::default_threads, usize::from),
        // Measured rates must not decide what the CPU computes.
        host_ffn: Some(0),
        ..OpenOptions::default()
    }
}

/// The model's graph, and its plan on a target.
fn plan_of(
    engine: &Engine,
    path: &Path,
    target: &Target,
    args: &args::Doctor,
    shared: &Shared,
) -> anyhow::Result<(Graph, Plan)> {
    let gguf = Gguf::open(path)?;
    let graph = kjit_model::arch::build(&gguf)?;
    let plan =
        plan_for(engine, &graph, target, &options(args, shared, &gguf, &DeviceChoice::Auto))?;
    Ok((graph, plan))
}

/// The oracle's answers about a model.
struct Oracle {
    steps: Vec<Step>,
    perplexity: Option<Result<f64, String>>,
    vectors: Vec<Vec<f32>>,
}

/// Tests all models on all devices.
pub fn doctor(args: &args::Doctor, shared: &Shared) -> anyhow::Result<ExitCode> {
    if let Some(context) = args.context.filter(|context| *context < MIN_CONTEXT) {
        anyhow::bail!(
            "-c {context} is too small: \
                       the tests need a context of {MIN_CONTEXT} tokens"
        );
    }
    let engine = engine::engine(shared);
    let (devices, notes) = devices(&engine, shared)?;
    let mut rows = vec![];
    for model in &args.models {
        let name = model.short().into_owned();
        match model.path(shared) {
            Ok(path) => test(&engine, args, shared, (&name, &path), &devices, &mut rows),
            Err(e) => rows.push(refused(&name, "cpu", format!("{e:#}"))),
        }
    }
    if let Some(file) = &args.junit {
        std::fs::write(file, show::junit(&rows))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", show::json(&rows, &notes))?,
        false => out.write_all(show::table(&rows, &notes).as_bytes())?,
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(!show::good(&rows))))
}

/// A device to test, with the target of its kernels.
struct Place {
    choice: DeviceChoice,
    /// The target of a GPU, or the reason why there is none.
    target: Option<Result<Target, String>>,
}

/// The devices to test, and notes about missing devices. A device that a flag names must exist.
fn devices(engine: &Engine, shared: &Shared) -> anyhow::Result<(Vec<Place>, Vec<String>)> {
    let cpu = || Place { choice: DeviceChoice::Cpu, target: None };
    if shared.device == DeviceChoice::Cpu {
        return Ok((vec![cpu()], vec![]));
    }
    let found = engine.devices();
    let mut all = vec![];
    for device in &found.devices {
        let choice: DeviceChoice = device.label().parse()?;
        let target = device.target.clone();
        let target = target.ok_or_else(|| format!("kjit does not know {}", device.arch_id));
        all.push(Place { choice, target: Some(target) });
    }
    if shared.device == DeviceChoice::Auto {
        let mut notes = found.missing.clone();
        if all.is_empty() {
            notes = vec![format!("no GPU: {}", found.why_none())];
        }
        all.push(cpu());
        return Ok((all, notes));
    }
    all.retain(|place| place.choice == shared.device);
    if all.is_empty() {
        // The engine's error lists the devices of this machine.
        engine.device(&shared.device.to_string())?;
        anyhow::bail!("--device {}: not here", shared.device);
    }
    Ok((all, vec![]))
}

/// A row of a model that was not opened.
fn refused(model: &str, device: &str, why: String) -> Row {
    Row {
        model: model.to_owned(),
        device: device.to_owned(),
        product: String::new(),
        form: None,
        checks: vec![Check::new("open", Verdict::Refused, why)],
        notes: vec![],
        speeds: [None; 3],
        seconds: 0.0,
    }
}

/// Tests one model on all devices.
fn test(
    engine: &Engine,
    args: &args::Doctor,
    shared: &Shared,
    (name, path): (&str, &Path),
    devices: &[Place],
    rows: &mut Vec<Row>,
) {
    let tell = |what: &str| {
        if io::stderr().is_terminal() && !shared.quiet {
            say(format_args!("{name}: {what} …"));
        }
    };
    tell("the CPU's results");
    let oracle = match oracle(path) {
        Ok(oracle) => oracle,
        Err(why) => {
            let why = format!("the CPU, which is the oracle: {why}");
            rows.extend(devices.iter().map(|p| refused(name, &p.choice.to_string(), why.clone())));
            return;
        }
    };
    for place in devices {
        let label = place.choice.to_string();
        tell(&label);
        let began = Instant::now();
        let mut row = refused(name, &label, String::new());
        row.checks.clear();
        match &place.target {
            Some(Err(why)) => row.checks.push(Check::new("open", Verdict::Refused, why)),
            Some(Ok(target)) => {
                row.checks.extend(kernels(engine, args, shared, path, (&label, target)));
            }
            None => {}
        }
        if !matches!(place.target, Some(Err(_))) {
            model(path, &label, &oracle, &mut row);
        }
        row.seconds = began.elapsed().as_secs_f64();
        rows.push(row);
    }
}

/// A child of this program with its own flags.
fn command(path: &Path, device: &str, precise: bool) -> Result<Command, String> {
    let program: PathBuf =
        std::env::current_exe().map_err(|e| format!("this program cannot be found: {e}"))?;
    let mut child = Command::new(program);
    child.args(std::env::args_os().skip(1)).arg("--model-for-parent").arg(path);
    child.args(["--device-for-parent", device]);
    if precise {
        child.arg("--precise-for-parent");
    }
    Ok(child)
}

/// Sends a request to the child. A child that ends is a wrong answer.
fn ask(child: &mut Option<Process<Said>>, ask: &Ask) -> Said {
    let Some(process) = child.as_mut() else {
        return Said::Refused("its process had ended".to_owned());
    };
    match process.exchange(ask, TEST_TIMEOUT) {
        Ok(said) => said,
        Err(why) => {
            let why = child.take().map_or(why.clone(), |process| process.end(&why));
            Said::Wrong(format!("the process that ran it failed: {why}"))
        }
    }
}

/// The oracle's answers.
fn oracle(path: &Path) -> Result<Oracle, String> {
    let mut child = Some(Process::start(command(path, "cpu", true)?)?);
    let mut answer = |question: &Ask| match ask(&mut child, question) {
        Said::Refused(why) | Said::Wrong(why) => Err(why),
        said => Ok(said),
    };
    let Said::Open(opened) = answer(&Ask::Open)? else { return Err("no answer".to_owned()) };
    let mut oracle = Oracle { steps: vec![], perplexity: None, vectors: vec![] };
    if opened.encoder {
        if let Said::Vectors(vectors) = answer(&Ask::Vectors)? {
            oracle.vectors = vectors;
        }
        return Ok(oracle);
    }
    if let Said::Oracle(steps) = answer(&Ask::Oracle)? {
        oracle.steps = steps;
    }
    oracle.perplexity = Some(match answer(&Ask::Perplexity) {
        Ok(Said::Perplexity(perplexity)) => Ok(perplexity),
        Ok(_) => Err("no answer".to_owned()),
        Err(why) => Err(why),
    });
    Ok(oracle)
}

/// Runs the model's kernels at its own shapes.
fn kernels(
    engine: &Engine,
    args: &args::Doctor,
    shared: &Shared,
    path: &Path,
    (label, target): (&str, &Target),
) -> Vec<Check> {
    let failed = |why: String| vec![Check::new("kernels", Verdict::Refused, why)];
    let plan = match plan_of(engine, path, target, args, shared) {
        Ok((_, plan)) => plan,
        Err(e) => return failed(format!("{e:#}")),
    };
    // The path of this program is known, since the oracle's process was started.
    let spawn = || {
        let mut child = command(path, label, false).unwrap_or_else(|_| Command::new("kjit"));
        child.arg("--run-for-parent");
        child
    };
    match prove_plan::run(engine, &plan, &spawn, &|_, _| {}) {
        Err(why) => vec![Check::new("kernels", Verdict::Wrong, why)],
        Ok(all) => vec![
            judge::kernels("kernels", &all.kernels),
            judge::kernels("fp16", std::slice::from_ref(&all.fp16)),
        ],
    }
}

/// Runs the model on a device.
fn model(path: &Path, label: &str, oracle: &Oracle, row: &mut Row) {
    let began = command(path, label, false).and_then(Process::start);
    let mut child = match began {
        Ok(child) => Some(child),
        Err(why) => return row.checks.push(Check::new("open", Verdict::Refused, why)),
    };
    match ask(&mut child, &Ask::Open) {
        Said::Open(opened) => opened_as(&opened, row),
        Said::Refused(why) => return row.checks.push(Check::new("open", Verdict::Refused, why)),
        Said::Wrong(why) => return row.checks.push(Check::new("open", Verdict::Wrong, why)),
        _ => return row.checks.push(Check::new("open", Verdict::Wrong, "another answer")),
    }
    if !oracle.vectors.is_empty() {
        row.checks.push(match ask(&mut child, &Ask::Vectors) {
            Said::Vectors(vectors) => judge::vectors(&vectors, &oracle.vectors),
            other => failed("vectors", other),
        });
        return;
    }
    let want: Vec<u32> = oracle.steps.iter().map(|step| step.id).collect();
    row.checks.push(match ask(&mut child, &Ask::Tokens(want)) {
        Said::Tokens(tokens) => {
            row.speeds[1] = Some(tokens.first_token_s);
            row.speeds[2] = Some(tokens.decode_tok_s);
            judge::tokens(&tokens, &oracle.steps)
        }
        other => failed("tokens", other),
    });
    if let Some(want) = &oracle.perplexity {
        row.checks.push(match (want, ask(&mut child, &Ask::Perplexity)) {
            (Ok(want), Said::Perplexity(got)) => judge::perplexity(got, *want),
            (Err(why), _) => Check::new("perplexity", Verdict::Refused, format!("the CPU: {why}")),
            (_, other) => failed("perplexity", other),
        });
    }
    row.checks.push(match ask(&mut child, &Ask::Back) {
        Said::Back(back) => judge::back(&back),
        other => failed("state", other),
    });
}

fn opened_as(opened: &Opened, row: &mut Row) {
    let [compiled, cached] = opened.kernels;
    let mut said = format!("{}, {:.2} s", opened.device, opened.load_s);
    if compiled + cached > 0 {
        said += &format!(", {compiled} kernels compiled, {cached} in the cache");
    }
    row.checks.insert(0, Check::new("open", Verdict::Right, said));
    row.product = opened.device.clone();
    row.form = opened.form.clone();
    row.notes.extend(opened.notes.iter().cloned());
    row.speeds[0] = Some(opened.load_s);
    row.checks.extend(judge::memory(opened));
}

/// A test without the answer that it needs.
fn failed(name: &'static str, said: Said) -> Check {
    match said {
        Said::Refused(why) => Check::new(name, Verdict::Refused, why),
        Said::Wrong(why) => Check::new(name, Verdict::Wrong, why),
        _ => Check::new(name, Verdict::Wrong, "its process gave another answer"),
    }
}
