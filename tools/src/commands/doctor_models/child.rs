//! The child process of `kjit doctor --run MODEL`: it opens the model on one device. A fault of the
//! device ends only the child.

use super::protocol::{Ask, Back, Opened, SCORES, Said, Step, TOKENS, Tokens};
use super::{options, plan_of};
use crate::args::{self, Shared};
use crate::engine;
use kjit_engine::Engine;
use kjit_model::gguf::Gguf;
use kjit_model::gpu::prove_plan;
use kjit_model::model::OpenError;
use kjit_model::perplexity::perplexity_of_ids;
use kjit_model::session::{DecodeControl, SessionError, Want, check_scores};
use kjit_model::tokenizer::EncodeOptions;
use kjit_model::{DeviceChoice, Model, SampleOptions};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// The prompt of the tokens.
const PROMPT: &str = "The capital of France is";
/// The text of the perplexity.
const TEXT: &str = include_str!("text.txt");
/// Tokens of a window of the text, and the most windows.
const WINDOW: [usize; 2] = [64, 2];
/// Texts of vectors.
const TEXTS: [&str; 3] = [
    "search_query: how deep is the sea?",
    "The deepest place in the sea is about eleven kilometres below its surface.",
    "A recipe for bread needs flour, water, salt and yeast.",
];
/// Tokens between a position and the return to it.
const ROLLBACK_TOKENS: usize = 7;

/// Answers the parent's requests until its input ends.
pub fn serve(
    args: &args::Doctor,
    shared: &Shared,
    path: &Path,
    device: &DeviceChoice,
) -> anyhow::Result<ExitCode> {
    if args.run_for_parent {
        let engine = engine::engine(shared);
        let gpu = engine.device(&device.to_string())?;
        let plan = plan_of(&engine, path, gpu.target(), args, shared)?.1;
        prove_plan::serve(&engine, &gpu, &plan, io::stdin().lock(), io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut open, mut out) = (None, io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let said = match serde_json::from_str(&line?)? {
            Ask::Open => match opened(args, shared, path, device) {
                Ok((model, said)) => {
                    open = Some(model);
                    Said::Open(Box::new(said))
                }
                Err(said) => said,
            },
            ask => match &mut open {
                Some(model) => answer(model, &ask).unwrap_or_else(|why| judged(&why)),
                None => Said::Refused("the model is not open".to_owned()),
            },
        };
        serde_json::to_writer(&mut out, &said)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An error as an answer. Wrong results and lost devices are wrong, everything else is refused.
fn judged(error: &anyhow::Error) -> Said {
    let mut why = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !why.contains(&cause) {
            why = if why.is_empty() { cause } else { format!("{why}: {cause}") };
        }
    }
    let session = |cause: &(dyn std::error::Error + 'static)| -> bool {
        let error = match cause.downcast_ref::<OpenError>() {
            Some(
                OpenError::Asked { source, .. }
                | OpenError::Found { source, .. }
                | OpenError::Cpu(source),
            ) => Some(source),
            _ => cause.downcast_ref::<SessionError>(),
        };
        matches!(
            error,
            Some(SessionError::Wrong(_) | SessionError::Lost(_) | SessionError::Scores { .. })
        )
    };
    if error.chain().any(session) { Said::Wrong(why) } else { Said::Refused(why) }
}

fn opened(
    args: &args::Doctor,
    shared: &Shared,
    path: &Path,
    device: &DeviceChoice,
) -> Result<(Model, Opened), Said> {
    let fail = |e: anyhow::Error| judged(&e);
    let mut said = Opened::default();
    // The device stays open, so that its context is not counted as the model's memory.
    let held = match device {
        DeviceChoice::Gpu { .. } => {
            Some(held(args, shared, path, device, &mut said).map_err(fail)?)
        }
        _ => None,
    };
    let options = options(args, shared, &Gguf::open(path).map_err(|e| fail(e.into()))?, device);
    let model = Model::open_with(path, &options, engine::config(shared));
    let model = model.map_err(|e| fail(e.into()))?;
    if let Some((gpu, free)) = held {
        let (after, _) = gpu.memory().map_err(|e| fail(e.into()))?;
        said.taken = Some(free.saturating_sub(after));
    }
    let taken = model.device();
    said.device = format!("{} ({})", taken.name, taken.arch);
    said.notes.extend(taken.remarks.iter().cloned());
    said.notes.extend(model.gguf.remarks().iter().map(ToString::to_string));
    said.form = model.session.gpu().map(|gpu| gpu.form().name().replace('_', " "));
    said.load_s = model.took().as_secs_f64();
    said.kernels = [model.kernels().compiled, model.kernels().cached];
    said.encoder = model.session.graph().pooling.is_some();
    Ok((model, said))
}

/// The open GPU with its free bytes before the model. Notes `inspect`'s estimate.
fn held(
    args: &args::Doctor,
    shared: &Shared,
    path: &Path,
    device: &DeviceChoice,
    said: &mut Opened,
) -> anyhow::Result<(kjit_engine::Device, u64)> {
    let engine: Engine = engine::engine(shared);
    let gpu = engine.device(&device.to_string())?;
    let (free, _) = gpu.memory()?;
    let (graph, mut plan) = plan_of(&engine, path, gpu.target(), args, shared)?;
    // If no part of the model fits, opening reports it.
    if plan.fit(&graph, free, false).is_ok() {
        said.estimate = Some(plan.memory.total());
    }
    Ok((gpu, free))
}

fn answer(model: &mut Model, ask: &Ask) -> anyhow::Result<Said> {
    let prompt = ids_of(model, PROMPT);
    Ok(match ask {
        Ask::Open => Said::Refused("the model is open already".to_owned()),
        Ask::Oracle => Said::Oracle(oracle(model, &prompt)?),
        Ask::Tokens(want) => Said::Tokens(tokens(model, &prompt, want)?),
        Ask::Perplexity => {
            let [window, windows] = WINDOW;
            let window = window.min(model.session.context());
            let mut ids = model.tokenizer.encode(TEXT.as_bytes(), EncodeOptions::RAW_PROMPT);
            ids.truncate(window * windows);
            let sequence = model.session.add(SampleOptions::default())?;
            let (session, tokenizer) = (&mut model.session, &model.tokenizer);
            let found =
                perplexity_of_ids(session, sequence, tokenizer, &ids, window, &mut |_, _, _| {});
            model.session.remove(sequence)?;
            Said::Perplexity(found?.perplexity)
        }
        Ask::Back => Said::Back(back(model, &prompt)?),
        Ask::Vectors => {
            let context = model.session.context();
            let vector = |text| {
                let mut ids = ids_of(model, text);
                ids.truncate(context);
                model.session.embed(&ids)
            };
            Said::Vectors(TEXTS.into_iter().map(vector).collect::<Result<_, _>>()?)
        }
    })
}

/// The ids of a text. A vocabulary without any of its letters gets its first token.
fn ids_of(model: &Model, text: &str) -> Vec<u32> {
    let ids = model.tokenizer.encode(text.as_bytes(), EncodeOptions::RAW_PROMPT);
    if ids.is_empty() { vec![model.tokenizer.bos().unwrap_or(0)] } else { ids }
}

/// Generates tokens step by step, with their scores.
fn oracle(model: &mut Model, prompt: &[u32]) -> Result<Vec<Step>, SessionError> {
    let session = &mut model.session;
    let sequence = session.add(SampleOptions::default())?;
    let mut steps: Vec<Step> = vec![];
    let mut row = session.feed(sequence, prompt, Want::Last)?;
    loop {
        check_scores(&row)?;
        let step = step(&row);
        let id = step.id;
        steps.push(step);
        if steps.len() == TOKENS {
            break;
        }
        row = session.feed(sequence, &[id], Want::Last)?;
    }
    session.remove(sequence)?;
    Ok(steps)
}

fn step(row: &[f32]) -> Step {
    let mut best: Vec<(u32, f32)> = (0u32..).zip(row.iter().copied()).collect();
    let falling = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if best.len() > SCORES {
        best.select_nth_unstable_by(SCORES, falling);
        best.truncate(SCORES);
    }
    best.sort_by(falling);
    let n = row.len().max(1) as f64;
    let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let square = row.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
    let id = best.first().map_or(0, |(id, _)| *id);
    Step { id, best, deviation: square.sqrt() }
}

/// Generates tokens as `kjit run` does, and again after each token that differs from the oracle's
/// token.
fn tokens(model: &mut Model, prompt: &[u32], want: &[u32]) -> Result<Tokens, SessionError> {
    let session = &mut model.session;
    let sequence = session.add(SampleOptions::default())?;
    let mut said = Tokens::default();
    // The first run may compile and is not timed.
    for timed in [false, true] {
        session.truncate(sequence, 0)?;
        let (began, mut times, mut ids) = (Instant::now(), vec![], vec![]);
        session.decode_past_ends(&[(sequence, prompt)], &mut |_, token| {
            times.push(began.elapsed().as_secs_f64());
            ids.push(token);
            if ids.len() >= want.len() { DecodeControl::End } else { DecodeControl::Go }
        })?;
        if !timed {
            said.ids = ids;
        } else if let (Some(first), Some(last)) = (times.first(), times.last()) {
            said.first_token_s = *first;
            said.decode_tok_s = (times.len() - 1) as f64 / (last - first).max(1e-9);
        }
    }
    let (mut ids, mut settled) = (std::mem::take(&mut said.ids), 0);
    let differs = |ids: &[u32], from: usize| {
        (from..want.len().min(ids.len())).find(|at| ids.get(*at) != want.get(*at))
    };
    while let Some(at) = differs(&ids, settled) {
        settled = at + 1;
        ids.truncate(settled);
        if settled == want.len() {
            break;
        }
        let start = [prompt, want.get(..settled).unwrap_or(&[])].concat();
        session.truncate(sequence, 0)?;
        session.decode_past_ends(&[(sequence, &start)], &mut |_, token| {
            ids.push(token);
            if ids.len() >= want.len() { DecodeControl::End } else { DecodeControl::Go }
        })?;
    }
    session.remove(sequence)?;
    Ok(Tokens { ids, ..said })
}

/// Computes the scores after the prompt, continues for some tokens, rolls back, and computes the
/// scores again.
fn back(model: &mut Model, prompt: &[u32]) -> Result<Back, SessionError> {
    let session = &mut model.session;
    let recurrent = session.graph().is_recurrent();
    let sequence = session.add(SampleOptions::default())?;
    let (text, last) = ([prompt, prompt].concat(), prompt.get(..1).unwrap_or(&[]));
    session.feed(sequence, &text, Want::Nothing)?;
    session.checkpoint(sequence)?;
    let before = session.feed(sequence, last, Want::Last)?;
    check_scores(&before)?;
    let mut on = 0;
    session.decode_past_ends(&[(sequence, prompt)], &mut |_, _| {
        on += 1;
        if on >= ROLLBACK_TOKENS { DecodeControl::End } else { DecodeControl::Go }
    })?;
    let kept = session.truncate(sequence, text.len())?;
    let again = [text.get(kept..).unwrap_or(&[]), last].concat();
    let after = session.feed(sequence, &again, Want::Last)?;
    session.remove(sequence)?;
    let (mut difference, mut norm) = (0.0, 0.0);
    for (a, b) in before.iter().zip(&after) {
        let (a, b) = (f64::from(*a), f64::from(*b));
        difference += (a - b) * (a - b);
        norm += a * a;
    }
    let off = (difference / norm.max(f64::MIN_POSITIVE)).sqrt();
    Ok(Back { at: text.len(), kept, off, recurrent })
}
