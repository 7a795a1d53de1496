//! `kjit tokenize`, `detokenize` and `template`: one line in, one line out. They only need a
//! vocabulary. kjit need not be able to run the model.

use crate::args::{self, Shared};
use crate::input::json;
use crate::model::ModelName;
use anyhow::{Context, bail};
use kjit_model::gguf::Gguf;
use kjit_model::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;

fn open(model: &ModelName, shared: &Shared) -> anyhow::Result<(Gguf, Tokenizer)> {
    let gguf = Gguf::open(model.path(shared)?)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).with_context(|| model.to_string())?;
    Ok((gguf, tokenizer))
}

pub fn tokenize(args: &args::Tokenize, shared: &Shared) -> anyhow::Result<ExitCode> {
    let (_, tokenizer) = open(&args.model, shared)?;
    let options = if args.plain { EncodeOptions::PLAIN } else { EncodeOptions::PROMPT };
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let Value::String(text) = json(number, line)? else {
            bail!("line {number} of stdin is not a JSON string")
        };
        let ids = tokenizer.encode(text.as_bytes(), options);
        Ok(writeln!(out, "{}", serde_json::to_string(&ids)?)?)
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub fn detokenize(args: &args::Detokenize, shared: &Shared) -> anyhow::Result<ExitCode> {
    let (_, tokenizer) = open(&args.model, shared)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let ids: Vec<u32> = serde_json::from_value(json(number, line)?)
            .with_context(|| format!("line {number} of stdin is not an array of token ids"))?;
        let bytes = tokenizer.decode(&ids).with_context(|| format!("line {number} of stdin"))?;
        if args.hex {
            bytes.iter().try_for_each(|b| write!(out, "{b:02x}"))?;
            writeln!(out)?;
        } else {
            writeln!(out, "{}", serde_json::to_string(&String::from_utf8_lossy(&bytes))?)?;
        }
        Ok(())
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub fn template(args: &args::Template, shared: &Shared) -> anyhow::Result<ExitCode> {
    let (gguf, tokenizer) = open(&args.model, shared)?;
    let template = crate::template::open(args.template.as_deref(), &gguf, &tokenizer)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let text = std::str::from_utf8(line)
            .with_context(|| format!("line {number} of stdin is not UTF-8"))?;
        let prompt = template
            .render_json(text, None, true)
            .with_context(|| format!("line {number} of stdin"))?;
        Ok(writeln!(out, "{}", serde_json::to_string(&prompt)?)?)
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
