//! On a card: each kernel checked, then timed, beside the card's limits.

use super::{DEPTH, Filter, open_device, plan_of};
use crate::args::{self, BenchOutput, GPU_BATCH, Shared};
use crate::report::say;
use kjit_engine::{Device, Engine};
use kjit_model::gpu::measure::{Limits, Measured, measure, of_plan, representative};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub fn device(engine: &Engine, args: &args::Bench, filter: &Filter, shared: &Shared) -> anyhow::Result<ExitCode> {
    let device = open_device(engine, shared, "--kernels")?;
    let depth = if args.depth > 0 { args.depth } else { DEPTH };
    let mut subjects = match &args.model {
        Some(model) => of_plan(&plan_of(engine, model, &args.setup, GPU_BATCH, device.target())?, depth),
        None => representative(device.target(), depth)?,
    };
    subjects.retain(|s| filter.wants(s));
    if subjects.is_empty() {
        return Err(filter.nothing());
    }
    let limits = Limits::measure(engine, &device).map_err(anyhow::Error::msg)?;
    let (done, all, show) = (AtomicUsize::new(0), subjects.len(), io::stderr().is_terminal() && !shared.quiet);
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

/// The figures of a row as text; empty where there are none.
struct Figures {
    micros: String,
    spread: String,
    gbytes: String,
    tflops: String,
    percent: String,
    bound: &'static str,
}

fn figures(row: &Measured, limits: &Limits) -> Figures {
    let none = || Figures {
        micros: String::new(),
        spread: String::new(),
        gbytes: String::new(),
        tflops: String::new(),
        percent: String::new(),
        bound: "",
    };
    let Ok(timed) = &row.outcome else { return none() };
    let seconds = timed.timing.median;
    let (percent, bound) = match timed.of_limit(limits) {
        // What a cache serves is not held against the memory.
        Some((_, true)) if timed.cached => (String::new(), "cache"),
        Some((part, memory)) => (format!("{:.0}", part * 100.0), if memory { "memory" } else { "matrix" }),
        None => (String::new(), ""),
    };
    let matrix = timed.work.operations / seconds;
    Figures {
        micros: format!("{:.2}", seconds * 1e6),
        spread: format!("{:.2}", timed.timing.spread * 1e6),
        gbytes: format!("{:.0}", timed.work.bytes / seconds / 1e9),
        // Products with one vector do two operations for each weight: a rate of no interest.
        tflops: if bound == "matrix" { format!("{:.1}", matrix / 1e12) } else { String::new() },
        percent,
        bound,
    }
}

fn print(rows: &[Measured], limits: &Limits, device: &Device, output: BenchOutput) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let info = device.info();
    let product = limits.product.as_ref();
    let driver = format!("{}.{}", info.driver.0, info.driver.1);
    match output {
        BenchOutput::Md => {
            writeln!(
                out,
                "{} ({}), driver {driver}. Limits, measured now: {:.0} GB/s read; {}.\n",
                info.name,
                info.arch_id,
                limits.read / 1e9,
                product.map_or("no product of matrices".to_string(), |p| format!(
                    "{:.0} TFLOP/s ({})",
                    p.rate / 1e12,
                    p.what
                ))
            )?;
            writeln!(
                out,
                "| program | launches | kernel | µs | ± | GB/s | TFLOP/s | % | of | registers | spills | LDS | occupancy |"
            )?;
            writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
            for row in rows {
                let (f, c) = (figures(row, limits), cost(row));
                writeln!(
                    out,
                    "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    row.subject.program,
                    launches(row),
                    row.subject.spec,
                    if row.outcome.is_ok() { f.micros } else { "failed".to_string() },
                    f.spread,
                    f.gbytes,
                    f.tflops,
                    f.percent,
                    f.bound,
                    c[0],
                    c[1],
                    c[2],
                    c[3]
                )?;
            }
        }
        BenchOutput::Csv => {
            writeln!(
                out,
                "program,launches,name,kernel,us,spread_us,gb_s,tflop_s,percent,limit,registers,spills,lds,occupancy_percent,tuning"
            )?;
            for row in rows {
                let (f, c) = (figures(row, limits), cost(row));
                let tuning = row.tuning.as_deref().unwrap_or_default();
                writeln!(
                    out,
                    "{},{},\"{}\",\"{}\",{},{},{},{},{},{},{},{},{},{},\"{tuning}\"",
                    row.subject.program,
                    launches(row),
                    row.subject.name,
                    row.subject.spec,
                    f.micros,
                    f.spread,
                    f.gbytes,
                    f.tflops,
                    f.percent,
                    f.bound,
                    c[0],
                    c[1],
                    c[2],
                    c[3].trim_end_matches(" %")
                )?;
            }
        }
        BenchOutput::Json => {
            let doc = json!({
                "device": { "name": info.name, "arch": info.arch_id, "driver": driver },
                "limits": {
                    "read_gb_s": limits.read / 1e9, "product_tflop_s": product.map(|p| p.rate / 1e12), "product": product.map(|p| &p.what),
                },
                "kernels": rows.iter().map(|r| line(r, limits)).collect::<Vec<_>>(),
            });
            writeln!(out, "{doc}")?;
        }
    }
    Ok(out.flush()?)
}

fn launches(row: &Measured) -> String {
    if row.subject.launches > 0 { row.subject.launches.to_string() } else { String::new() }
}

/// Registers, spills, LDS (with what the launch adds), occupancy.
fn cost(row: &Measured) -> [String; 4] {
    let Some(r) = &row.report else { return std::array::from_fn(|_| String::new()) };
    let spills = r.spills.map_or("?".to_string(), |n| n.to_string());
    let percent = format!("{:.0} %", r.occupancy.fraction() * 100.0);
    [r.registers.max(r.agprs).to_string(), spills, r.lds.saturating_add(row.shared).to_string(), percent]
}

fn line(row: &Measured, limits: &Limits) -> Value {
    let timed = row.outcome.as_ref().ok();
    let part = timed.and_then(|t| t.of_limit(limits));
    let report = row.report.as_ref();
    json!({
        "name": row.subject.name, "kernel": row.subject.spec.to_string(), "family": row.subject.spec.family(),
        "program": row.subject.program, "launches": row.subject.launches, "tokens": row.subject.size.tokens,
        "past": row.subject.size.past, "tuning": row.tuning,
        "timed": timed.is_some(), "error": row.outcome.as_ref().err(),
        "us": timed.map(|t| t.timing.median * 1e6), "spread_us": timed.map(|t| t.timing.spread * 1e6),
        "bytes": timed.map(|t| t.work.bytes), "operations": timed.map(|t| t.work.operations),
        "percent_of_limit": part.filter(|(_, memory)| !(*memory && timed.is_some_and(|t| t.cached))).map(|(p, _)| p * 100.0),
        "limit": part.map(|(_, memory)| if memory { "memory" } else { "matrix" }), "cached": timed.map(|t| t.cached),
        "registers": report.map(|r| r.registers), "agprs": report.map(|r| r.agprs), "spills": report.and_then(|r| r.spills),
        "lds": report.map(|r| r.lds.saturating_add(row.shared)), "occupancy": report.map(|r| r.occupancy.fraction()),
    })
}
