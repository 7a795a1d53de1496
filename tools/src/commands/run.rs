//! `kjit run`: generates from a prompt.

use super::statistics::{early_of, prompt_rate, rate, statistics, told};
use crate::args::{self, Sampling, Shared};
use crate::grammar::AnswerForm;
use crate::images::{Encoder, encode};
use crate::input;
use crate::interrupt::Interrupt;
use crate::load::{LoadOptions, open_one, weights};
use crate::model::Wanted;
use crate::ranks::{answers, silent};
use crate::report::{INTERRUPTED, say};
use anyhow::{Context, bail};
use kjit_engine::Trace;
use kjit_model::Model;
use kjit_model::chat::{Form, Message};
use kjit_model::generate::{Answer, Request, StopReason, generate, generate_constrained};
use kjit_model::gpu::BackgroundCompiling;
use kjit_model::host::peak_memory;
use kjit_model::images::{ImagePrompt, Images, marker};
use kjit_model::sample::{SampleOptions, Sampler};
use kjit_model::session::{SessionError, Split, StageRunner};
use kjit_model::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

pub fn run(args: &args::Run, shared: &Shared) -> anyhow::Result<ExitCode> {
    let trace = match &args.trace {
        Some(file) => Some(started(file)?),
        None => None,
    };
    let prompt = prompt(args, shared)?;
    if prompt.is_none() && args.setup.options().split == Split::Ranks {
        bail!("--split ranks does not support a chat: give each rank the same prompt (-p or -f)");
    }
    let form = AnswerForm::read(&args.grammar)?;
    let form_text = form.as_ref().map(AnswerForm::text);
    // --seed and --temp 0 promise the same tokens each time, so kernels must not change during
    // generation.
    let steady = args.sampling.temp <= 0.0 || args.sampling.seed.is_some();
    let early = !args.wait_compile && !steady;
    let wanted = match (args.mmproj.is_some() || args.no_mmproj, &prompt) {
        (true, _) => Wanted::No,
        _ if !args.image.is_empty() => Wanted::Needed,
        // A chat may get images later.
        (_, None) => Wanted::IfThere,
        (_, Some(_)) => Wanted::No,
    };
    let (path, found) = args.model.with_encoder(shared, wanted)?;
    let asked = args.mmproj.as_deref().map(Encoder::Asked);
    let encoder = asked.or(found.as_deref().map(Encoder::Found));
    let images = match encoder {
        Some(encoder) => encoder.open(shared)?,
        None => None,
    };
    let how = LoadOptions {
        image_rows: images.as_ref().map_or(0, Images::rows_that_see_each_other),
        trace: trace.as_ref(),
        early,
        steady,
        drafts: args.lookup.is_on(),
        ..LoadOptions::default()
    };
    let (mut model, sequence) = open_one(&path, &args.setup, shared, &how)?;
    let images = match encoder.zip(images) {
        Some((encoder, images)) => encoder.attach(images, &mut model, shared)?,
        None => None,
    };
    if images.is_none() && !args.image.is_empty() {
        bail!(
            "--image needs the encoder of the model's images: give --mmproj FILE, or a model of \
             the hub that has one"
        );
    }
    // All ranks draw the same random numbers.
    let seed = model.session.gpu().and_then(|gpu| gpu.common_seed());
    let sampling = Sampling { seed: args.sampling.seed.or(seed), ..args.sampling.clone() };
    *model.session.sampler(sequence)? = sampler(&sampling, &model.tokenizer);
    let mut grammar = match form {
        Some(form) => Some(form.open(&model, shared.quiet)?),
        None => None,
    };
    let Some(prompt) = prompt else {
        return super::chat::chat(args, shared, (model, images), sequence, grammar);
    };
    let interrupt = Interrupt::watch();
    let (shown, rendered) = prompt_ids(args, &model, &prompt, images.as_ref())?;
    let ids = &shown.ids;
    let mut constraint = match &mut grammar {
        Some(grammar) => {
            let prompt = rendered.as_ref().map(|(form, text)| (*form, text.as_str()));
            Some(grammar.constraint(&model, prompt)?)
        }
        None => None,
    };
    let mut stdout = answers();
    let mut broken = None;
    let span = trace.as_ref().map(|t| t.span("host", "generate"));
    let answer = {
        let mut show = |text: &str| match args.json {
            true => ControlFlow::Continue(()),
            // Each piece is flushed, because the reader may be a person, or a program that waits
            // for it.
            false => match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(e) => {
                    broken = Some(e);
                    ControlFlow::Break(())
                }
            },
        };
        let request = Request {
            prompt: ids,
            max_tokens: args.tokens,
            stop: &args.stop,
            lookup: args.lookup.is_on(),
            ..Request::default()
        };
        if let Some(gpu) = model.session.gpu() {
            gpu.given_besides(&(args.tokens, &args.stop, &form_text));
        }
        let stop = || interrupt.came();
        let (session, tokenizer) = (&mut model.session, &model.tokenizer);
        let answer: anyhow::Result<Answer> = match constraint.as_deref_mut() {
            None => generate(session, sequence, tokenizer, &request, &mut show, &stop)
                .map_err(Into::into),
            Some(constraint) => generate_constrained(
                session, sequence, tokenizer, &request, constraint, &mut show, &stop,
            )
            .map_err(Into::into),
        };
        // Ctrl-C reaches all ranks. A rank that is one token behind fails, because the others have
        // ended.
        if answer.is_err() && stop() && args.setup.options().split == Split::Ranks {
            say("interrupted");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        answer?
    };
    drop(span);
    if let (Some(trace), Some(file)) = (&trace, &args.trace) {
        trace.write(file)?;
    }
    if let Some(e) = broken {
        return Err(e).context("cannot write the answer");
    }
    // After Ctrl-C the program waits for nothing.
    let finished = if answer.reason == StopReason::Interrupted { Ok(()) } else { model.finish() };
    if args.json {
        writeln!(stdout, "{}", document(&answer, ids.len(), &model))?;
    } else {
        writeln!(stdout)?;
    }
    if silent() && answer.reason == StopReason::Interrupted {
        say("interrupted");
    }
    if !shared.quiet {
        statistics(&answer, ids.len(), &model);
    }
    if shared.verbose > 0
        && let Some(early) = early_of(&model)
    {
        told(&early.status()).iter().for_each(say);
    }
    if shared.verbose > 0
        && let Some(hot) = model.session.gpu().and_then(|gpu| gpu.hot())
    {
        say(hot);
    }
    finished?;
    Ok(match answer.reason {
        StopReason::Interrupted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::SUCCESS,
    })
}

/// Creates the file of a trace before the work, so that an error is reported early.
fn started(file: &Path) -> anyhow::Result<Trace> {
    let open = std::fs::File::options().write(true).create(true).truncate(false).open(file);
    open.with_context(|| format!("cannot write the trace {}", file.display()))?;
    Ok(Trace::new())
}

/// The prompt. `None` means a chat: no prompt is given, and stdin and stdout are terminals. Piped
/// text is put before the given prompt.
fn prompt(args: &args::Run, shared: &Shared) -> anyhow::Result<Option<String>> {
    // A launcher passes its stdin to one rank or to none, so ranks do not read stdin.
    let ranks = args.setup.options().split == Split::Ranks;
    let dash = |text: &Option<String>| text.as_deref() == Some("-");
    if ranks
        && (dash(&args.prompt)
            || dash(&args.text)
            || args.file.as_ref().is_some_and(|f| f.as_os_str() == "-"))
    {
        bail!(
            "--split ranks does not read stdin: \
             give the prompt with -p TEXT or -f FILE, the same to every rank"
        );
    }
    let stdin = || input::text(input::stdin("the prompt")?, "the prompt on stdin");
    let piped = || input::text(input::piped("the prompt", shared)?, "the text on stdin");
    let given = match (args.prompt.as_ref().or(args.text.as_ref()), &args.file) {
        (Some(p), _) if p == "-" => return stdin().map(Some),
        (Some(p), _) => Some(p.clone()),
        (None, Some(f)) if f.as_os_str() == "-" => return stdin().map(Some),
        (None, Some(f)) => Some(input::text(input::file(f)?, &f.display().to_string())?),
        (None, None) => None,
    };
    match given {
        Some(prompt) => {
            let before = if ranks { String::new() } else { piped()? };
            let between = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
            Ok(Some(format!("{before}{between}{prompt}")))
        }
        None if ranks => Ok(None),
        None if io::stdin().is_terminal() => match args.json {
            true => bail!("--json needs a prompt: give -p, -f or pipe one"),
            // The prompts of the chat would be mixed with the answers.
            false if !io::stdout().is_terminal() => {
                bail!(
                    "no prompt, and no terminal on stdout to chat on: \
                     give -p TEXT or -f FILE, or pipe one"
                )
            }
            false => Ok(None),
        },
        None => stdin().map(Some),
    }
}

/// Tokens of the prompt, with the chat template unless `--raw` is given, and the rendered text with
/// the format of its answer. Images stand before the text.
fn prompt_ids(
    args: &args::Run,
    model: &Model,
    prompt: &str,
    images: Option<&Images>,
) -> anyhow::Result<(ImagePrompt, Option<(Form, String)>)> {
    let empty = "the prompt is empty: give -p TEXT or -f FILE, or pipe one";
    if !args.raw && prompt.trim().is_empty() {
        // With a template around an empty prompt, the model would answer a question that was not
        // asked.
        bail!(empty);
    }
    let mut files = vec![];
    for path in &args.image {
        let file = std::fs::read(path).with_context(|| format!("--image {}", path.display()))?;
        files.push((marker(), file));
    }
    let (mut shown, mut text) = (ImagePrompt::default(), None);
    shown.ids = if args.raw {
        model.tokenizer.encode(prompt.as_bytes(), EncodeOptions::RAW_PROMPT)
    } else {
        let template =
            crate::template::open(args.template.as_deref(), &model.gguf, &model.tokenizer)?;
        let mut messages = vec![];
        messages.extend(args.system.as_ref().map(|s| Message::new("system", s)));
        let markers: String = files.iter().map(|(marker, _)| marker.as_str()).collect();
        messages.push(Message::new("user", format!("{markers}{prompt}")));
        let rendered = template.render(&messages, true)?;
        let rendered = &text.insert((template.form(), rendered)).1;
        shown = encode(&model.tokenizer, images, &files, rendered)?;
        std::mem::take(&mut shown.ids)
    };
    if shown.ids.is_empty() {
        bail!(empty);
    }
    let context = model.session.context();
    if shown.ids.len() > context {
        return Err(SessionError::Context { tokens: shown.ids.len(), context }.into());
    }
    Ok((shown, text))
}

/// The sampler for these flags.
fn sampler(s: &Sampling, tokenizer: &Tokenizer) -> Sampler {
    let seed = match s.seed {
        Some(seed) => seed,
        None => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos() as u64),
    };
    let mut options = SampleOptions {
        temperature: s.temp,
        top_k: s.top_k,
        top_p: s.top_p,
        min_p: s.min_p,
        repeat_penalty: s.repeat_penalty,
        presence_penalty: s.presence_penalty,
        frequency_penalty: s.frequency_penalty,
        seed,
        ..SampleOptions::default()
    };
    s.more.set(&mut options, tokenizer);
    Sampler::new(options)
}

fn document(a: &Answer, prompt: usize, model: &Model) -> serde_json::Value {
    let device = model.device();
    let of = |stage: &StageRunner<'_>| {
        if let StageRunner::Cpu(cpu) = stage { cpu.laid_out_bytes() } else { 0 }
    };
    let laid_out: usize = model.session.stages().iter().map(of).sum();
    let mut memory = json!({
        "weights": weights(model).0,
        "laid_out": laid_out,
        "kv": model.kv_bytes(),
        "peak": peak_memory(),
    });
    let gpu = model.session.gpu().map(|gpu| gpu.statistics());
    if let (Some(gpu), Some(memory)) = (gpu, memory.as_object_mut()) {
        memory.insert("on_device".into(), gpu.peak.into());
        memory.insert("streamed".into(), gpu.streamed.map(|s| s.bytes).into());
    }
    json!({
        "text": a.text,
        "ids": a.ids,
        "prompt_tokens": prompt,
        "generated_tokens": a.ids.len(),
        "stop_reason": a.reason.as_str(),
        "drafted_tokens": a.drafts.drafted,
        "accepted_tokens": a.drafts.accepted,
        "device": { "kind": device.kind, "name": device.name, "arch": device.arch },
        "kernels": kernels(model),
        "timings": {
            "load_s": model.took().as_secs_f64(),
            "first_token_s": a.first_token.as_secs_f64(),
            "prompt_tok_s": prompt_rate(a, prompt),
            "decode_tok_s": rate(a.ids.len().saturating_sub(1), a.decode.as_secs_f64()),
        },
        "memory": memory,
    })
}

/// Counts of compiled kernels, and of an early start: the run did not wait for `late` kernels,
/// `single` tokens of the prompt were computed one by one before they were ready, and the late
/// kernels were used after `swapped_at` tokens of the sequence (null: never). `one_launch_late` and
/// `one_launch_at` are the same for the kernel of a whole token.
fn kernels(model: &Model) -> serde_json::Value {
    let counts = model.kernels();
    let early = early_of(model).map(BackgroundCompiling::status).unwrap_or_default();
    json!({
        "compiled": counts.compiled, "cached": counts.cached, "seconds": counts.seconds,
        "late": early.late, "single": early.single, "swapped_at": early.swapped_at,
        "one_launch_late": early.one_launch_late, "one_launch_at": early.one_launch_at,
    })
}
