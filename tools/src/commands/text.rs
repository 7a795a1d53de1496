//! `kjit tokenize`, `detokenize` and `template`: a line in, a line out. They need a vocabulary, not a model that kjit can run.

use crate::args;
use crate::render::bounded;
use anyhow::{Context, bail};
use kjit_model::chat::ChatTemplate;
use kjit_model::gguf::Gguf;
use kjit_model::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

fn open(path: &Path) -> anyhow::Result<(Gguf, Tokenizer)> {
    let gguf = Gguf::open(path)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).with_context(|| path.display().to_string())?;
    Ok((gguf, tokenizer))
}

fn json(number: usize, line: &[u8]) -> anyhow::Result<Value> {
    serde_json::from_slice(line).with_context(|| format!("line {number} of stdin is no JSON"))
}

pub fn tokenize(args: &args::Tokenize) -> anyhow::Result<ExitCode> {
    let (_, tokenizer) = open(&args.model)?;
    let options = if args.plain { EncodeOptions::PLAIN } else { EncodeOptions::PROMPT };
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let Value::String(text) = json(number, line)? else { bail!("line {number} of stdin is no JSON string") };
        let ids = tokenizer.encode(text.as_bytes(), options);
        Ok(writeln!(out, "{}", serde_json::to_string(&ids)?)?)
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

pub fn detokenize(args: &args::Detokenize) -> anyhow::Result<ExitCode> {
    let (_, tokenizer) = open(&args.model)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let ids: Vec<u32> = serde_json::from_value(json(number, line)?)
            .with_context(|| format!("line {number} of stdin is no array of token ids"))?;
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

pub fn template(args: &args::Template) -> anyhow::Result<ExitCode> {
    let (gguf, tokenizer) = open(&args.model)?;
    let template = ChatTemplate::from_gguf(&gguf, &tokenizer)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        let text = std::str::from_utf8(line).with_context(|| format!("line {number} of stdin is no UTF-8"))?;
        let prompt =
            bounded(|| template.render_json(text, None, true)).with_context(|| format!("line {number} of stdin"))?;
        Ok(writeln!(out, "{}", serde_json::to_string(&prompt)?)?)
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
