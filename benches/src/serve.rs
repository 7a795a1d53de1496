//! Bench of a server's engine with many clients. Each client asks, waits for its whole answer and
//! asks again (a closed loop), without HTTP. Tokens are counted as they are sent; times start at
//! the request.

use crate::{Options, Result};
use kjit_model::prompt_lookup::MAX_DRAFTS;
use kjit_model::sample::SampleOptions;
use kjit_model::serve::{Event, Request, Scheduler, SchedulerOptions, Status, Stop};
use kjit_model::session::{DecodeControl, OpenOptions, Session, StepOutput, Want, Work};
use kjit_model::tokenizer::EncodeOptions;
use kjit_model::{DeviceChoice, Model};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Instant;

/// A kind of load.
struct Load {
    name: String,
    clients: usize,
    /// Tokens of a prompt, and the number of leading tokens that all prompts share.
    prompt: usize,
    shared: usize,
    answer: usize,
    /// Whether tokens are drafted.
    lookup: bool,
    /// The prompt, if it is not made of random tokens.
    text: Option<Vec<u32>>,
}

/// The results of a load.
struct Seen {
    /// Tokens of answers per second.
    rate: f64,
    /// Seconds to the first token of each request, and seconds between two tokens, both ascending.
    first: Vec<f64>,
    between: Vec<f64>,
}

/// Random tokens: requests share little beyond their common prefix.
fn prompt(load: &Load, number: usize, vocabulary: u64) -> Vec<u32> {
    if let Some(text) = &load.text {
        return text.clone();
    }
    let token = |of: u64, i: usize| {
        u32::try_from((of * 7_919 + (i as u64 + 1) * 104_729) % vocabulary).unwrap_or(0)
    };
    let own = (load.shared..load.prompt).map(|i| token(number as u64 + 2, i * 31 + number));
    (0..load.shared).map(|i| token(1, i)).chain(own).collect()
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted
        .get(((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Runs a number of requests, as many concurrently as there are clients.
fn run_load(
    scheduler: &Scheduler,
    load: &Load,
    requests: usize,
    from: usize,
    vocabulary: u64,
) -> Result<Seen> {
    let (done, ends) = channel();
    let mut asked = 0;
    let mut ask = || -> Result<()> {
        let (submitted, done) = (Instant::now(), done.clone());
        let mut times = vec![];
        let sink = Box::new(move |event| {
            match event {
                Event::Token { .. } => times.push(submitted.elapsed().as_secs_f64()),
                Event::Started { .. } => {}
                // The receiver may be dropped: then it has all that it needs.
                Event::Done { .. } => drop(done.send(Ok(std::mem::take(&mut times)))),
                Event::Failed(failure) => drop(done.send(Err(failure.to_string()))),
            }
            ControlFlow::Continue(())
        });
        let tokens = prompt(load, from + asked, vocabulary);
        asked += 1;
        let (stop, lookup) = (Stop::Never, load.lookup);
        let request =
            Request { max_tokens: Some(load.answer), stop, lookup, ..Request::new(tokens, sink) };
        scheduler.submit(request)?.detach();
        Ok(())
    };
    let start = Instant::now();
    for _ in 0..load.clients.min(requests) {
        ask()?;
    }
    let (mut first, mut between, mut tokens) = (vec![], vec![], 0);
    for ended in 0..requests {
        let times = ends.recv()??;
        if ended + load.clients < requests {
            ask()?;
        }
        tokens += times.len();
        first.extend(times.first());
        between.extend(times.windows(2).filter_map(|w| Some(w.get(1)? - w.first()?)));
    }
    let rate = tokens as f64 / start.elapsed().as_secs_f64();
    first.sort_by(f64::total_cmp);
    between.sort_by(f64::total_cmp);
    Ok(Seen { rate, first, between })
}

/// A repetitive text that ends in the middle, so that a model continues it.
fn copying(model: &Model, tokens: usize) -> Vec<u32> {
    let line = "The harbour master wrote down every ship: the Albatross with timber from Riga, the Heron with salt from Cadiz, the Plover with copper from Falun, and the Curlew with wool from Leith. ";
    let ids = model.tokenizer.encode(line.repeat(8).as_bytes(), EncodeOptions::RAW_PROMPT);
    ids.into_iter().take(tokens).collect()
}

/// The upper bound of the gain of drafts: an answer token by token, then with drafts that are all
/// right, then with drafts that are all wrong.
fn drafts(session: &mut Session, text: &[u32], tokens: usize, out: &mut dyn Write) -> Result<()> {
    let id = session.add(SampleOptions::default())?;
    let (mut plain, mut start) = (vec![], Instant::now());
    session.decode_past_ends(&[(id, text)], &mut |_, token| {
        if plain.is_empty() {
            start = Instant::now();
        }
        plain.push(token);
        if plain.len() <= tokens { DecodeControl::Go } else { DecodeControl::End }
    })?;
    let one = start.elapsed().as_secs_f64() / tokens as f64;
    session.remove(id)?;
    let mut drafted = |right: bool| -> Result<(f64, usize, bool)> {
        let id = session.add(SampleOptions::default())?;
        session.step(&[Work { sequence: id, tokens: text, want: Want::Choose }])?;
        let (mut chosen, mut steps, mut start) =
            (plain.iter().take(1).copied().collect::<Vec<_>>(), 0u32, Instant::now());
        while chosen.len() < tokens {
            let next = plain.get(chosen.len()..).unwrap_or_default().iter().take(MAX_DRAFTS);
            let draft = next.map(|id| if right { *id } else { id ^ 1 });
            let now: Vec<u32> = chosen.last().copied().into_iter().chain(draft).collect();
            let work = Work { sequence: id, tokens: &now, want: Want::Drafted(now.len() - 1) };
            if let Some(StepOutput::Tokens(ids)) = session.step(&[work])?.pop() {
                chosen.extend(ids);
            }
            // The first step captures a graph and is not timed.
            steps += 1;
            if steps == 1 {
                start = Instant::now();
            }
        }
        let took = start.elapsed().as_secs_f64() / f64::from(steps - 1).max(1.0);
        session.remove(id)?;
        Ok((took, steps as usize, plain.starts_with(&chosen) || chosen.starts_with(&plain)))
    };
    let ((right, steps, same), (wrong, _, also)) = (drafted(true)?, drafted(false)?);
    let gives = tokens as f64 / steps as f64;
    writeln!(
        out,
        "drafts           a token {:.2} ms; {} drafted and right {:.2} ms a step, which gives {gives:.1} tokens: {:.2} times; all wrong {:.2} ms; the same tokens: {same}, {also}",
        1e3 * one,
        MAX_DRAFTS,
        1e3 * right,
        gives * one / right,
        1e3 * wrong,
    )?;
    Ok(())
}

/// Runs the bench.
///
/// # Errors
/// When the named model cannot be run.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let usual =
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path: PathBuf = options.model.clone().unwrap_or_else(usual);
    if options.model.is_none() && !path.exists() {
        writeln!(
            out,
            "SKIPPED: no --model, and {} is not there (scripts/quickstart fetches it)",
            path.display()
        )?;
        return Ok(());
    }
    let device: DeviceChoice = options.device.parse()?;
    let open = |on_cpu: bool| {
        let setup = OpenOptions {
            device: device.clone(),
            sequences: if on_cpu { 8 } else { 64 },
            threads: options.threads,
            paged: options.pages.filter(|_| !on_cpu),
            drafts: true,
            ..OpenOptions::new(if on_cpu { 1024 } else { 4096 })
        };
        Model::open(&path, &setup)
    };
    let mut model = open(device == DeviceChoice::Cpu)?;
    // Without a GPU, `auto` has chosen the CPU with the options of a GPU.
    let on_cpu = model.session.cpu().is_some();
    if on_cpu && device != DeviceChoice::Cpu {
        drop(model);
        model = open(true)?;
    }
    let vocabulary = model.session.n_vocab() as u64;
    let text = copying(&model, if on_cpu { 200 } else { 400 });
    let (prompts, answers) = if on_cpu { (32, 32) } else { (512, 128) };
    let (long, shared, short) = if on_cpu { (256, 192, 16) } else { (2048, 1536, 64) };
    let many: &[usize] = if on_cpu { &[1, 4] } else { &[1, 4, 32, 64] };
    let load = |name: String, clients| Load {
        name,
        clients,
        prompt: prompts,
        shared: 0,
        answer: answers,
        lookup: false,
        text: None,
    };
    let mut loads: Vec<Load> = many.iter().map(|&n| load(format!("clients {n}"), n)).collect();
    let most = many.last().copied().unwrap_or(1).min(32);
    for (name, shared) in [("apart", 0), ("shared", shared)] {
        loads.push(Load {
            prompt: long,
            shared,
            answer: short,
            ..load(format!("{name} {long}"), most)
        });
    }
    for (name, lookup) in [("copying plain", false), ("copying lookup", true)] {
        loads.push(Load {
            lookup,
            text: Some(text.clone()),
            answer: 128,
            ..load(name.to_owned(), 1)
        });
    }
    let (kind, mut session) = (model.device().label.clone(), model.session);
    writeln!(out, "{} on {kind}", path.file_name().unwrap_or_default().display())?;
    if options.wants("drafts") {
        drafts(&mut session, &text, if on_cpu { 32 } else { 256 }, out)?;
    }
    let scheduler = Scheduler::start(session, SchedulerOptions::default())?;
    let mut from = 0;
    for load in loads.iter().filter(|l| options.wants(&l.name)) {
        // There are enough requests that the start and the end, with fewer clients, have little
        // influence.
        let requests = if on_cpu { 2 * load.clients.max(2) } else { 4 * load.clients.max(4) };
        let mut go = |requests| {
            from += requests;
            run_load(&scheduler, load, requests, from, vocabulary)
        };
        if options.warmup > 0 {
            go(load.clients)?;
        }
        let before = scheduler.status();
        let seen = go(requests)?;
        let after = scheduler.status();
        let count = |of: fn(&Status) -> u64| of(&after) - of(&before);
        let ms = |x: f64| 1e3 * x;
        writeln!(
            out,
            "{:<16} {:>8.1} tok/s out; first token p50 {:.0} ms, p99 {:.0} ms; between p50 {:.1} ms, p99 {:.1} ms; prompts {} computed, {} there; drafts {} of {}",
            load.name,
            seen.rate,
            ms(quantile(&seen.first, 0.5)),
            ms(quantile(&seen.first, 0.99)),
            ms(quantile(&seen.between, 0.5)),
            ms(quantile(&seen.between, 0.99)),
            count(|s| s.prompt_tokens),
            count(|s| s.cached_tokens),
            count(|s| s.accepted_tokens),
            count(|s| s.drafted_tokens),
        )?;
    }
    Ok(())
}
