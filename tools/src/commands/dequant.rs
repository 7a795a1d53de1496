//! `kjit dequant`: decodes quantized blocks in hex to f32 in hex.

use crate::args;
use anyhow::{Context, bail};
use kjit_kernels::format::{ALL, Format};
use std::io::{self, Write};
use std::process::ExitCode;

pub fn dequant(args: &args::Dequant) -> anyhow::Result<ExitCode> {
    let Some(format) = Format::by_name(&args.format) else {
        let known: Vec<&str> = ALL.iter().map(|f| f.name).collect();
        bail!(
            "'{}' is not a format that kjit decodes; it decodes {}",
            args.format,
            known.join(", ")
        );
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    crate::input::lines(|number, line| {
        if line.is_empty() {
            return Ok(());
        }
        let blocks = unhex(line).with_context(|| format!("line {number} of stdin"))?;
        let mut values = vec![0.0f32; blocks.len() / format.block_bytes() * format.block_elems()];
        format.decode(&blocks, &mut values).with_context(|| format!("line {number} of stdin"))?;
        for v in values {
            for b in v.to_le_bytes() {
                write!(out, "{b:02x}")?;
            }
        }
        Ok(writeln!(out)?)
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn unhex(line: &[u8]) -> anyhow::Result<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16);
    let digits: Vec<u8> = line.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    let (pairs, odd) = digits.as_chunks::<2>();
    if !odd.is_empty() {
        bail!("an odd number of hex digits ({})", digits.len());
    }
    pairs
        .iter()
        .map(|pair| match pair.map(digit) {
            [Some(high), Some(low)] => Ok((high << 4 | low) as u8), // both below 16
            _ => bail!("'{}' is not hex", String::from_utf8_lossy(pair).escape_default()),
        })
        .collect()
}
