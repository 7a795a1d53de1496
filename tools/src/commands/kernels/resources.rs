//! `kjit bench --kernels --arch A`: the resources of each kernel on a card of another machine,
//! without times. A row has the compiler's figures, the work of a launch, and its minimum time at
//! the card's stated peak rates. Products that were counted on the emulator also have the minimum
//! time to issue their instructions.

use super::selection::Filter;
use crate::args::{self, BenchOutput};
use crate::report::FailureReport;
use crate::table::{self, Cell, cell};
use anyhow::Context;
use kjit_engine::arch::issue::IssueBound;
use kjit_engine::arch::{ARCHS, Card};
use kjit_engine::{Engine, Job, KernelReport, Target};
use kjit_kernel_cases::matrix::{Sample, representative};
use kjit_kernels::launch::Work;
use std::io::{self, Write};
use std::process::ExitCode;

/// A kernel with its purpose, resources and work.
struct Row {
    name: String,
    report: KernelReport,
    /// Bytes of dynamic LDS.
    dynamic: u32,
    work: Work,
    card: Option<&'static Card>,
}

pub fn resources(engine: &Engine, args: &args::Bench, filter: &Filter) -> anyhow::Result<ExitCode> {
    let (mut rows, mut told) = (vec![], FailureReport::default());
    for arch in &args.arch {
        let target = kjit_model::gpu::settled(engine, &Target::parse(arch)?);
        let mut all = representative(&target).with_context(|| format!("for {target}"))?;
        all.retain(|s| filter.takes(&s.name));
        if all.is_empty() {
            return Err(filter.nothing());
        }
        let jobs: Vec<Job> = all.iter().map(|s| s.kernel.job(&target)).collect();
        for (Sample { name, kernel, work, .. }, result) in
            all.into_iter().zip(engine.compile_all(&jobs))
        {
            match result {
                Ok(code) => {
                    // A source may contain several kernels. The sample uses one of them.
                    let reports = code
                        .report(&target, kernel.shared)
                        .into_iter()
                        .filter(|r| r.kernel == kernel.entry);
                    let (dynamic, card) = (kernel.shared, target.arch().card.as_ref());
                    rows.extend(reports.map(|report| Row {
                        name: name.clone(),
                        report,
                        dynamic,
                        work,
                        card,
                    }));
                }
                Err(e) => told.failed(&e),
            }
        }
    }
    print(&rows, args.output)?;
    Ok(told.code())
}

impl Row {
    /// Minimum time in microseconds at the card's peak rates.
    fn floor(&self) -> Option<f64> {
        self.card.map(|c| self.work.floor_us(c.gb_per_s, c.tflop_per_s))
    }

    /// Minimum time to issue the instructions, if this code object was counted.
    fn issue(&self) -> Option<IssueBound> {
        let card = self.card?;
        let arch = ARCHS.iter().find(|a| a.id == card.arch)?;
        kjit_kernels::issue::executed(card.arch, &self.name, self.report.bytes)?.bound(
            arch,
            card,
            self.report.wave,
        )
    }

    fn cells(&self) -> Vec<Cell> {
        let (r, issue) = (&self.report, self.issue());
        vec![
            cell("arch", r.arch.as_str()).titled("arch"),
            cell("kernel", self.name.as_str()).titled("kernel"),
            cell("wave", r.wave).titled("wave"),
            cell("block", r.threads).titled("block"),
            cell("compiler", r.compiler.as_str()).titled("compiler"),
            cell("seconds", r.seconds).titled("compile s").digits(2),
            cell("bytes", r.bytes).titled("bytes"),
            cell("vgpr", r.registers).titled("VGPR"),
            cell("agpr", r.agprs).titled("AGPR"),
            cell("sgpr", r.sgprs).titled("SGPR"),
            cell("spills", r.spills).titled("spills").unknown("?"),
            cell("scratch", r.scratch).titled("scratch"),
            cell("lds", r.lds).titled("LDS"),
            cell("dynamic_lds", self.dynamic).titled("dynamic LDS"),
            cell("occupancy_percent", r.occupancy.fraction() * 100.0)
                .titled("occupancy %")
                .digits(0),
            cell("moves_bytes", self.work.bytes).titled("must move B"),
            cell("operations", self.work.operations).titled("operations"),
            cell("floor_us", self.floor()).titled("floor µs").digits(2).unknown("?"),
            cell("issue_us", issue.map(|i| i.us))
                .titled("issue µs")
                .digits(2)
                .unknown("?")
                .not_in_csv(),
            cell("issue_by", issue.map(|i| i.by)).titled("busiest").unknown("?").not_in_csv(),
        ]
    }
}

fn print(rows: &[Row], output: BenchOutput) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let cells: Vec<_> = rows.iter().map(Row::cells).collect();
    table::write(&cells, output, &mut out)?;
    if output == BenchOutput::Md {
        let mut cards: Vec<&Card> = rows.iter().filter_map(|r| r.card).collect();
        cards.dedup();
        writeln!(out)?;
        for c in cards {
            let (arch, name, memory, arithmetic) = (c.arch, c.name, c.gb_per_s, c.tflop_per_s);
            writeln!(
                out,
                "Computed, not measured. The floor on {arch} is that of a {name}, \
                 according to its data sheet: {memory} GB/s, {arithmetic} TFLOP/s."
            )?;
            if c.units > 0 {
                let (units, mhz) = (c.units, c.mhz);
                writeln!(
                    out,
                    "Issue is the minimum time for the instructions that a launch executes, \
                     counted on an emulator: {units} units at {mhz} MHz (docs/amd-kernels.md)."
                )?;
            }
        }
    }
    Ok(out.flush()?)
}
