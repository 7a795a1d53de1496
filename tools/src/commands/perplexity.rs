//! `kjit perplexity`: how well a model predicts a text.

use crate::args::{self, Setup, Shared};
use crate::load::Loaded;
use crate::report::say;
use anyhow::Context;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

pub fn perplexity(args: &args::Perplexity, shared: &Shared) -> anyhow::Result<ExitCode> {
    let setup = Setup { context: Some(args.context), kv_type: args.kv_type, precise: args.precise };
    let text = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let mut loaded = Loaded::open(&args.model, &setup, shared)?;
    let show = !shared.quiet && io::stderr().is_terminal();
    let result = kjit_model::perplexity::perplexity(
        loaded.exec.as_mut(),
        &loaded.tokenizer,
        &text,
        args.context,
        &mut |done, of, so_far| {
            if show {
                say(format_args!("window {done} of {of}: {so_far:.4}"));
            }
        },
    )?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", json!({ "perplexity": result.perplexity, "tokens": result.tokens }))?;
    } else {
        writeln!(out, "perplexity {:.4} over {} predictions", result.perplexity, result.scored)?;
    }
    Ok(ExitCode::SUCCESS)
}
