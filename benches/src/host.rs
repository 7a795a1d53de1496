//! Benches of the CPU: steps of its threads, single matrix products, reading a model file and its
//! vocabulary, tokenizing, the chat template, a prompt, decoding.

use crate::{Options, Result, Times};
use kjit_kernels::format::Format;
use kjit_model::SampleOptions;
use kjit_model::chat::{ChatTemplate, Message};
use kjit_model::gguf::Gguf;
use kjit_model::host::{Isa, ProductRate, StepRate, read_bandwidth};
use kjit_model::session::{OpenOptions, Session, Want};
use kjit_model::tokenizer::{EncodeOptions, Tokenizer};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The token counts of llama-bench: a prompt into an empty context, and single tokens.
const PROMPT: usize = 512;
const TOKENS: usize = 64;

/// Number of thread steps in one measurement.
const STEPS: usize = 1000;

/// The model that scripts/quickstart fetches.
pub fn usual() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Runs the bench.
///
/// # Errors
/// When the named model cannot be run.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    if options.wants("memory") {
        writeln!(
            out,
            "{:<24} {:.1} GB/s by {} threads",
            "memory",
            read_bandwidth(options.threads) / 1e9,
            options.threads
        )?;
    }
    if options.wants("steps") {
        let mut steps = StepRate::new(options.threads);
        for tasks in [options.threads, 8 * options.threads] {
            let times = options.time(|| {
                steps.run(STEPS, tasks);
                Ok(())
            })?;
            let micros = times.median() / STEPS as f64 * 1e6;
            writeln!(
                out,
                "{:<24} {micros:.2} µs each, {} threads",
                format!("steps of {tasks}"),
                options.threads
            )?;
        }
    }
    if options.wants("products") {
        products(options, out)?;
    }
    let path = options.model.clone().unwrap_or_else(usual);
    if options.model.is_none() && !path.exists() {
        writeln!(
            out,
            "SKIPPED: no --model, and {} is not there (scripts/quickstart fetches it)",
            path.display()
        )?;
        return Ok(());
    }
    let mut say =
        |name: &str, times: &Times, rate: String| writeln!(out, "{name:<24} {times}{rate}");
    if options.wants("open") {
        say("open", &options.time(|| Ok(Gguf::open(&path)?))?, String::new())?;
    }
    let file = Arc::new(Gguf::open(&path)?);
    if options.wants("vocabulary") {
        say("vocabulary", &options.time(|| Ok(Tokenizer::from_gguf(&file)?))?, String::new())?;
    }
    let tokenizer = Tokenizer::from_gguf(&file)?;
    if options.wants("tokenize") {
        let text =
            "The quick brown fox jumps over the lazy dog; 31337 times, he said. ".repeat(4000);
        let times =
            options.time(|| Ok(tokenizer.encode(text.as_bytes(), EncodeOptions::PROMPT)))?;
        say("tokenize", &times, format!(", {:.1} MB/s", text.len() as f64 / 1e6 / times.median()))?;
    }
    if options.wants("template") {
        let template = ChatTemplate::from_gguf(&file, &tokenizer)?;
        let messages = [
            Message::new("user", "Why is the sky blue?"),
            Message::new("assistant", "It scatters."),
            Message::new("user", "What does?"),
        ];
        say("template", &options.time(|| Ok(template.render(&messages, true)?))?, String::new())?;
    }
    if !options.wants("prompt") && !options.wants("decode") {
        return Ok(());
    }
    let graph = kjit_model::arch::build(&file)?;
    let setup = OpenOptions {
        threads: options.threads,
        prefill_chunk: Some(PROMPT),
        ..OpenOptions::new(1024)
    };
    let mut session = Session::on_cpu(file, graph, &setup)?;
    let sequence = session.add(SampleOptions::default())?;
    let vocabulary = session.n_vocab() as u64;
    // Ids spread over the vocabulary, so that no row of the embedding stays in the CPU cache.
    let ids: Vec<u32> =
        (0..PROMPT as u64).map(|i| u32::try_from(i * 7919 % vocabulary).unwrap_or(0)).collect();
    let rate =
        |tokens: usize, times: &Times| format!(", {:.1} tokens/s", tokens as f64 / times.median());
    if options.wants("prompt") {
        let times = options.time(|| {
            session.truncate(sequence, 0)?;
            Ok(session.feed(sequence, &ids, Want::Last)?)
        })?;
        say(&format!("prompt of {PROMPT}"), &times, rate(PROMPT, &times))?;
    }
    if options.wants("decode") {
        let times = options.time(|| {
            session.truncate(sequence, 0)?;
            ids.iter()
                .take(TOKENS)
                .try_for_each(|id| session.feed(sequence, &[*id], Want::Last).map(drop))?;
            Ok(())
        })?;
        say(&format!("decode, {TOKENS} tokens"), &times, rate(TOKENS, &times))?;
    }
    Ok(())
}

/// Products of one token (60 matrices of a small model's sizes) and of a prompt, by format and
/// instruction set.
fn products(options: &Options, out: &mut dyn Write) -> Result<()> {
    for name in ["Q4_0", "Q4_1", "Q8_0", "F16", "Q4_K", "Q6_K"] {
        let Some(format) = Format::by_name(name) else { continue };
        let cols = if format.block_elems() == 256 { 512 } else { 576 };
        for isa in Isa::available().into_iter().filter(|i| i.name() != "plain") {
            let (mut line, threads) = (format!("products {name} {}", isa.name()), options.threads);
            line = format!("{line:<24}");
            let few = || ProductRate::new(isa, threads, format, [60, 1536, cols], 1);
            for (what, rate) in
                [(" one token", few()), ("; laid out", few().and_then(ProductRate::laid_out))]
            {
                let Some(mut rate) = rate else { continue };
                let times = options.time(|| {
                    rate.run();
                    Ok(())
                })?;
                let (seconds, codes) = (times.least(), rate.products() as f64);
                line += &format!("{what} {:.1} GB/s", rate.bytes() as f64 / seconds / 1e9);
                line += &format!(
                    ", {:.2} ns for 64 codes of a thread",
                    seconds / codes * 64e9 * threads as f64
                );
            }
            if let Some(mut rate) = ProductRate::new(isa, threads, format, [1, 1536, 1536], PROMPT)
            {
                let times = options.time(|| {
                    rate.run();
                    Ok(())
                })?;
                line += &format!(
                    "; {PROMPT} tokens {:.0} GFLOP/s",
                    2.0 * rate.products() as f64 / times.least() / 1e9
                );
            }
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}
