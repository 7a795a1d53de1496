//! `kjit bench --kernels --arch A`: what every kernel costs on a card that is not there. Nothing is timed: beside what the compiler made of
//! a kernel stands what a launch has to do, and the least time for that at a card's stated peak rates.

use super::Filter;
use crate::args::{self, BenchOutput};
use crate::report::say;
use anyhow::Context;
use kjit_engine::arch::Card;
use kjit_engine::{Engine, Job, KernelReport, Target};
use kjit_kernels::matrix::{Sample, Work, representative};
use serde_json::json;
use std::io::{self, Write};
use std::process::ExitCode;

/// A kernel, by what it is for, its cost and its work.
struct Row {
    name: String,
    report: KernelReport,
    /// Dynamic LDS.
    dynamic: u32,
    work: Work,
    card: Option<&'static Card>,
}

pub fn resources(engine: &Engine, args: &args::Bench, filter: &Filter) -> anyhow::Result<ExitCode> {
    let (mut rows, mut failed) = (vec![], 0);
    for arch in &args.arch {
        let target = Target::parse(arch)?;
        let mut all = representative(&target).with_context(|| format!("for {target}"))?;
        all.retain(|s| filter.takes(&s.name));
        if all.is_empty() {
            return Err(filter.nothing());
        }
        let jobs: Vec<Job> = all.iter().map(|s| s.kernel.job(&target)).collect();
        for (Sample { name, kernel, work, .. }, result) in all.into_iter().zip(engine.compile_all(&jobs)) {
            match result {
                Ok(code) => {
                    // A source may hold several kernels; the sample is of one.
                    let reports = code.report(&target, kernel.shared).into_iter().filter(|r| r.kernel == kernel.entry);
                    let (dynamic, card) = (kernel.shared, target.arch().card.as_ref());
                    rows.extend(reports.map(|report| Row { name: name.clone(), report, dynamic, work, card }));
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

impl Row {
    /// Microseconds at the card's peak rates.
    fn floor(&self) -> Option<f64> {
        self.card.map(|c| self.work.floor_us(c.gb_per_s, c.tflop_per_s))
    }

    /// The same cells for tables and for spreadsheets.
    fn cells(&self) -> [String; COLUMNS.len()] {
        let r = &self.report;
        [
            r.arch.clone(),
            self.name.clone(),
            r.wave.to_string(),
            r.threads.to_string(),
            r.compiler.clone(),
            format!("{:.2}", r.seconds),
            r.bytes.to_string(),
            r.registers.to_string(),
            r.agprs.to_string(),
            r.sgprs.to_string(),
            r.spills.map_or("?".to_string(), |n| n.to_string()),
            r.scratch.to_string(),
            r.lds.to_string(),
            self.dynamic.to_string(),
            format!("{:.0}", r.occupancy.fraction() * 100.0),
            self.work.bytes.to_string(),
            self.work.operations.to_string(),
            self.floor().map_or("?".to_string(), |us| format!("{us:.2}")),
        ]
    }
}

/// What a table says of a kernel; the CSV file has the first name, a page the second.
const COLUMNS: [(&str, &str); 18] = [
    ("arch", "arch"),
    ("kernel", "kernel"),
    ("wave", "wave"),
    ("block", "block"),
    ("compiler", "compiler"),
    ("seconds", "compile s"),
    ("bytes", "bytes"),
    ("vgpr", "VGPR"),
    ("agpr", "AGPR"),
    ("sgpr", "SGPR"),
    ("spills", "spills"),
    ("scratch", "scratch"),
    ("lds", "LDS"),
    ("dynamic_lds", "dynamic LDS"),
    ("occupancy_percent", "occupancy %"),
    ("moves_bytes", "must move B"),
    ("operations", "operations"),
    ("floor_us", "floor µs"),
];

fn print(rows: &[Row], output: BenchOutput) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    match output {
        BenchOutput::Md => {
            writeln!(out, "| {} |", COLUMNS.map(|c| c.1).join(" | "))?;
            writeln!(out, "|{}", "---|".repeat(COLUMNS.len()))?;
            rows.iter().try_for_each(|r| writeln!(out, "| {} |", r.cells().join(" | ")))?;
            let mut cards: Vec<&Card> = rows.iter().filter_map(|r| r.card).collect();
            cards.dedup();
            writeln!(out)?;
            for c in cards {
                let (arch, name, memory, arithmetic) = (c.arch, c.name, c.gb_per_s, c.tflop_per_s);
                writeln!(
                    out,
                    "Untimed. The floor on {arch} is that of a {name} by its data sheet: {memory} GB/s, {arithmetic} TFLOP/s."
                )?;
            }
        }
        BenchOutput::Csv => {
            writeln!(out, "{}", COLUMNS.map(|c| c.0).join(","))?;
            rows.iter().try_for_each(|r| writeln!(out, "{}", r.cells().join(",")))?;
        }
        BenchOutput::Json => {
            let all: Vec<_> = rows
                .iter()
                .map(|row| {
                    let r = &row.report;
                    json!({
                        "kernel": row.name, "arch": r.arch, "wave": r.wave, "compiler": r.compiler, "seconds": r.seconds, "bytes": r.bytes,
                        "registers": r.registers, "agprs": r.agprs, "sgprs": r.sgprs, "spills": r.spills, "scratch": r.scratch,
                        "lds": r.lds, "dynamic_lds": row.dynamic, "threads": r.threads, "occupancy": r.occupancy.fraction(),
                        "moves_bytes": row.work.bytes, "operations": row.work.operations, "floor_us": row.floor(),
                        "card": row.card.map(|c| c.name), "timed": false,
                    })
                })
                .collect();
            writeln!(out, "{}", serde_json::Value::from(all))?;
        }
    }
    Ok(out.flush()?)
}
