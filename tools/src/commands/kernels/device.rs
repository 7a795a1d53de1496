//! Checks and times each kernel on a card, and compares it with the card's limits.

use super::selection::{DEPTH, Filter, open_device, plan_of};
use crate::args::{self, BenchOutput, Shared};
use crate::report::say;
use crate::table::{self, Cell, cell};
use kjit_engine::{Device, Engine};
use kjit_model::gpu::measure::{Limits, Measurement, measure, of_plan, representative};
use kjit_model::gpu::settled;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub fn device(
    engine: &Engine,
    args: &args::Bench,
    filter: &Filter,
    shared: &Shared,
) -> anyhow::Result<ExitCode> {
    let device = open_device(engine, shared, "--kernels")?;
    let depth = if args.depth > 0 { args.depth } else { DEPTH };
    let mut subjects = match &args.model {
        Some(model) => of_plan(
            &plan_of(
                engine,
                &model.path(shared)?,
                &args.setup,
                args.most_sequences(),
                device.target(),
            )?,
            depth,
        ),
        None => representative(&settled(engine, device.target()), depth)?,
    };
    subjects.retain(|s| filter.wants(s));
    if subjects.is_empty() {
        return Err(filter.nothing());
    }
    let limits = Limits::measure(engine, &device).map_err(anyhow::Error::msg)?;
    let (done, all, show) =
        (AtomicUsize::new(0), subjects.len(), io::stderr().is_terminal() && !shared.quiet);
    let rows = measure(engine, &device, &subjects, &|m| {
        let n = done.fetch_add(1, Relaxed) + 1;
        if let Err(why) = &m.outcome {
            say(format_args!("error: {}: {why}", m.subject.name));
        } else if show && n.is_multiple_of(20) {
            say(format_args!("{n} of {all} kernels"));
        }
    });
    print(&rows, &limits, &device, args.output)?;
    Ok(ExitCode::from(u8::from(rows.iter().any(|r| r.outcome.is_err()))))
}

/// Values of a row. Values without meaning are shown as unknown: the arithmetic rate if memory is
/// the limit (a matrix-vector product has two operations per weight), and the percentage of the
/// memory bandwidth if the data are in a cache.
fn cells(row: &Measurement, limits: &Limits) -> Vec<Cell> {
    let timed = row.outcome.as_ref().ok();
    let part = timed.and_then(|t| t.of_limit(limits));
    let cached = timed.is_some_and(|t| t.cached);
    let limit = part.map(|(_, memory)| match memory {
        true if cached => "cache",
        true => "memory",
        false => "matrix",
    });
    let seconds = timed.map(|t| t.timing.median);
    let rate = |amount: Option<f64>| amount.zip(seconds).map(|(amount, seconds)| amount / seconds);
    let bytes = timed.map(|t| t.work.bytes as f64);
    let operations = timed.map(|t| t.work.operations as f64);
    let subject = &row.subject;
    let report = row.report.as_ref();
    vec![
        cell("program", subject.program.as_str()).titled("program"),
        cell("launches", Some(subject.launches).filter(|n| *n > 0)).titled("launches"),
        cell("name", subject.name.as_str()),
        cell("kernel", subject.spec.to_string()).titled("kernel"),
        cell("family", subject.spec.family()),
        cell("tokens", subject.size.tokens),
        cell("past", subject.size.past),
        cell("us", seconds.map(|s| s * 1e6)).titled("µs").digits(2),
        cell("spread_us", timed.map(|t| t.timing.spread * 1e6)).titled("±").digits(2),
        cell("bytes", bytes),
        cell("operations", operations),
        cell("gb_s", rate(bytes).map(|r| r / 1e9)).titled("GB/s").digits(0),
        cell("tflop_s", rate(operations).filter(|_| limit == Some("matrix")).map(|r| r / 1e12))
            .titled("TFLOP/s")
            .digits(1),
        cell("percent_of_limit", part.filter(|_| limit != Some("cache")).map(|(p, _)| p * 100.0))
            .titled("%")
            .digits(0),
        cell("limit", limit).titled("of"),
        cell("registers", report.map(|r| r.registers)).titled("registers"),
        cell("agprs", report.map(|r| r.agprs)),
        cell("spills", report.and_then(|r| r.spills)).titled("spills").unknown("?"),
        cell("lds", report.map(|r| r.lds.saturating_add(row.shared))).titled("LDS"),
        cell("occupancy_percent", report.map(|r| r.occupancy.fraction() * 100.0))
            .titled("occupancy %")
            .digits(0),
        cell("tuning", row.tuning.as_deref()),
        cell("error", row.outcome.as_ref().err().map(String::as_str)),
    ]
}

fn print(
    rows: &[Measurement],
    limits: &Limits,
    device: &Device,
    output: BenchOutput,
) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let info = device.info();
    let product = limits.product.as_ref();
    let driver = format!("{}.{}", info.driver.0, info.driver.1);
    let rows: Vec<_> = rows.iter().map(|row| cells(row, limits)).collect();
    if output == BenchOutput::Json {
        let doc = json!({
            "device": { "name": info.name, "arch": info.arch_id, "driver": driver },
            "limits": {
                "read_gb_s": limits.read / 1e9, "product_tflop_s": product.map(|p| p.rate / 1e12), "product": product.map(|p| &p.what),
            },
            "kernels": table::values(&rows),
        });
        writeln!(out, "{doc}")?;
        return Ok(out.flush()?);
    }
    if output == BenchOutput::Md {
        let matrix = product.map_or("no matrix product".to_string(), |p| {
            format!("{:.0} TFLOP/s ({})", p.rate / 1e12, p.what)
        });
        let read = limits.read / 1e9;
        writeln!(
            out,
            "{} ({}), driver {driver}. Limits, measured now: {read:.0} GB/s read; {matrix}.\n",
            info.name, info.arch_id
        )?;
    }
    table::write(&rows, output, &mut out)?;
    Ok(out.flush()?)
}
