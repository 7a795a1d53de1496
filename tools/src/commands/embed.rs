//! `kjit embed`: one embedding per text.

use crate::args::{self, Shared};
use crate::load::{LoadOptions, open};
use anyhow::{Context, bail};
use kjit_model::session::Output;
use kjit_model::tokenizer::EncodeOptions;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn embed(args: &args::Embed, shared: &Shared) -> anyhow::Result<ExitCode> {
    let output = Output::Vector(args.pooling.map(Into::into));
    let how = LoadOptions { output, ..LoadOptions::default() };
    let mut model = open(&args.model.path(shared)?, &args.setup, shared, &how)?;
    let tokenizer = &model.tokenizer;
    let session = &mut model.session;
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let at = || format!("line {number} of stdin");
        let Value::String(text) = crate::input::json(number, line)? else {
            bail!("{} is not a JSON string", at())
        };
        let ids = tokenizer.encode(text.as_bytes(), EncodeOptions::RAW_PROMPT);
        let mut vector = session.embed(&ids).with_context(at)?;
        if args.normalise {
            normalise(&mut vector);
        }
        if let Some(bad) = vector.iter().find(|v| !v.is_finite()) {
            bail!(
                "{}: the vector contains {bad}: \
                 the model is damaged, or computes what its numbers cannot hold",
                at()
            );
        }
        writeln!(out, "{}", serde_json::to_string(&vector)?)?;
        // Each line is flushed, because the reader may be a program that waits for it.
        Ok(out.flush()?)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Scales a vector to length 1. A zero vector has no direction: its result is NaN.
fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
}
