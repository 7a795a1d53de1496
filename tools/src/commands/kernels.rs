//! `kjit bench --kernels --arch A`: what every kernel costs on a card that is not there. Nothing is timed.

use crate::args::{self, BenchOutput, Shared};
use crate::engine::engine;
use crate::report::say;
use anyhow::{Context, bail};
use kjit_engine::{Job, KernelReport, Target};
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

/// A kernel, by what it is for, and its cost.
struct Row {
    name: String,
    report: KernelReport,
}

pub fn kernels(args: &args::Bench, shared: &Shared) -> anyhow::Result<ExitCode> {
    let engine = engine(shared);
    let filter = args.filter.as_deref().unwrap_or_default();
    let (mut rows, mut failed) = (vec![], 0);
    for arch in &args.arch {
        let target = Target::parse(arch)?;
        let mut all = kjit_kernels::matrix::representative(&target).with_context(|| format!("for {target}"))?;
        all.retain(|(name, _)| name.contains(filter));
        if all.is_empty() {
            bail!("no kernel's name contains '{filter}'");
        }
        let jobs: Vec<Job> = all.iter().map(|(_, kernel)| kernel.job(&target)).collect();
        for ((name, kernel), result) in all.iter().zip(engine.compile_all(&jobs)) {
            match result {
                Ok(code) => {
                    let reports = code.report(&target, kernel.shared);
                    rows.extend(reports.into_iter().map(|report| Row { name: name.clone(), report }));
                }
                Err(e) => {
                    failed += 1;
                    say(format_args!("error: {name}: {e}"));
                }
            }
        }
    }
    print(&rows, args.output)?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn print(rows: &[Row], output: BenchOutput) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let spills = |r: &KernelReport| r.spills.map_or("?".to_string(), |n| n.to_string());
    let percent = |r: &KernelReport| (r.occupancy.fraction() * 100.0).round();
    match output {
        BenchOutput::Md => {
            writeln!(
                out,
                "| arch | kernel | wave | compiler | bytes | VGPR | AGPR | SGPR | spills | scratch | LDS | occupancy |"
            )?;
            writeln!(out, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
            for Row { name, report: r } in rows {
                writeln!(
                    out,
                    "| {} | {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} % |",
                    r.arch,
                    r.wave,
                    r.compiler,
                    r.bytes,
                    r.registers,
                    r.agprs,
                    r.sgprs,
                    spills(r),
                    r.scratch,
                    r.lds,
                    percent(r)
                )?;
            }
        }
        BenchOutput::Csv => {
            // Without seconds and compiler version: two runs of one compiler give the same file, so a change shows in review.
            writeln!(out, "arch,kernel,wave,bytes,vgpr,agpr,sgpr,spills,scratch,lds,occupancy_percent")?;
            for Row { name, report: r } in rows {
                writeln!(
                    out,
                    "{},{name},{},{},{},{},{},{},{},{},{}",
                    r.arch,
                    r.wave,
                    r.bytes,
                    r.registers,
                    r.agprs,
                    r.sgprs,
                    spills(r),
                    r.scratch,
                    r.lds,
                    percent(r)
                )?;
            }
        }
        BenchOutput::Json => {
            let all: Vec<_> = rows
                .iter()
                .map(|Row { name, report: r }| {
                    json!({
                        "kernel": name, "arch": r.arch, "wave": r.wave, "compiler": r.compiler, "seconds": r.seconds, "bytes": r.bytes,
                        "registers": r.registers, "agprs": r.agprs, "sgprs": r.sgprs, "spills": r.spills, "scratch": r.scratch,
                        "lds": r.lds, "threads": r.threads, "occupancy": r.occupancy.fraction(), "timed": false,
                    })
                })
                .collect();
            writeln!(out, "{}", serde_json::Value::from(all))?;
        }
    }
    Ok(out.flush()?)
}
