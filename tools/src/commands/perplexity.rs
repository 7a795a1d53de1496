//! `kjit perplexity`: measures how well a model predicts a text.

use crate::args::{self, PersistentMode, Setup, Shared};
use crate::input;
use crate::load::{LoadOptions, open_one};
use crate::ranks::answers;
use crate::report::say;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

pub fn perplexity(args: &args::Perplexity, shared: &Shared) -> anyhow::Result<ExitCode> {
    let setup = Setup {
        context: Some(args.context),
        kv_type: args.kv_type,
        precise: args.precise,
        reproducible: args.reproducible,
        persistent: PersistentMode::default(),
        prefill_chunk: None,
        lora: args.lora.clone(),
        room: args.room.clone(),
        placing: args.placing.clone(),
    };
    let text = input::raw_text(&args.file)?;
    let (mut model, sequence) = open_one(
        &args.model.path(shared)?,
        &setup,
        shared,
        &LoadOptions { steady: true, ..LoadOptions::default() },
    )?;
    let show = !shared.quiet && io::stderr().is_terminal();
    let result = kjit_model::perplexity::perplexity(
        &mut model.session,
        sequence,
        &model.tokenizer,
        &text,
        args.context,
        &mut |done, of, so_far| {
            if show {
                say(format_args!("window {done} of {of}: {so_far:.4}"));
            }
        },
    )?;
    let mut out = answers();
    if args.json {
        writeln!(out, "{}", json!({ "perplexity": result.perplexity, "tokens": result.tokens }))?;
    } else {
        writeln!(out, "perplexity {:.4} over {} predictions", result.perplexity, result.scored)?;
    }
    Ok(ExitCode::SUCCESS)
}
