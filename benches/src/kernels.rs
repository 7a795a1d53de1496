//! Benches of single kernels: times on a card, or the compiler's statistics without one.

use crate::{Options, Result, Times};
use kjit_engine::{Config, Device, Engine, Error, Target};
use kjit_kernel_cases::matrix;
use kjit_model::gpu::measure::{self, Limits};
use std::io::Write;

/// Architectures to compile for if there is no card and none was named: one of each kind.
const USUAL: [&str; 3] = ["gfx1100", "gfx942", "sm_90"];
/// Number of tokens in the KV cache for attention, as in `kjit bench --kernels`.
const DEPTH: usize = 1024;

/// Runs the bench.
///
/// # Errors
/// A named target, device or compiler is missing, or a kernel does not compile or computes wrong
/// results.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let engine = Engine::new(Config::new());
    if !options.arch.is_empty() {
        return options
            .arch
            .iter()
            .try_for_each(|arch| resources(&engine, &Target::parse(arch)?, options, out));
    }
    match engine.device(&options.device) {
        Ok(device) => times(&engine, &device, options, out),
        Err(why) if options.device != "auto" => Err(why.into()),
        Err(why) => {
            writeln!(out, "no card here ({}): resources of the kernels only", why.brief())?;
            for arch in USUAL {
                let target = Target::parse(arch)?;
                match engine.compiler_for(&target) {
                    Ok(_) => resources(&engine, &target, options, out)?,
                    Err(Error::Miss { .. }) => {
                        writeln!(out, "SKIPPED {arch}: no compiler here supports it")?
                    }
                    Err(other) => return Err(other.into()),
                }
            }
            Ok(())
        }
    }
}

fn resources(
    engine: &Engine,
    target: &Target,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let mut samples = matrix::representative(target)?;
    samples.retain(|s| options.wants(&s.name));
    let jobs: Vec<_> = samples.iter().map(|s| s.kernel.job(target)).collect();
    for (sample, code) in samples.iter().zip(engine.compile_all(&jobs)) {
        let kernel = &sample.kernel;
        let reports = code?.report(target, kernel.shared);
        for r in reports.into_iter().filter(|r| r.kernel == kernel.entry) {
            writeln!(
                out,
                "{:<8} {:<44} {:>3} registers, {} spills, {:>6} B LDS, occupancy {:>3.0} %",
                r.arch,
                sample.name,
                r.registers,
                r.spills.map_or("?".to_owned(), |n| n.to_string()),
                r.lds.saturating_add(kernel.shared),
                r.occupancy.fraction() * 100.0
            )?;
        }
    }
    Ok(())
}

/// Each kernel is checked against the oracle, then timed in a captured graph.
fn times(engine: &Engine, device: &Device, options: &Options, out: &mut dyn Write) -> Result<()> {
    let mut subjects = measure::representative(device.target(), DEPTH)?;
    subjects.retain(|s| options.wants(&s.name));
    let limits = Limits::measure(engine, device)?;
    writeln!(
        out,
        "{} ({}): {:.0} GB/s read",
        device.info().name,
        device.info().arch_id,
        limits.read / 1e9
    )?;
    let mut runs = vec![];
    for run in 0..options.warmup + options.iterations {
        let measured = measure::measure(engine, device, &subjects, &|_| {});
        if run >= options.warmup {
            runs.push(measured);
        }
    }
    let mut wrong = vec![];
    for (i, subject) in subjects.iter().enumerate() {
        let all: Vec<_> = runs.iter().filter_map(|run| run.get(i)).collect();
        if let Some(why) = all.iter().find_map(|m| m.outcome.as_ref().err()) {
            wrong.push(format!("{}: {why}", subject.name));
            continue;
        }
        let seconds =
            all.iter().filter_map(|m| Some(m.outcome.as_ref().ok()?.timing.median)).collect();
        let share = all.last().and_then(|m| m.outcome.as_ref().ok()?.of_limit(&limits));
        let share = share.map_or(String::new(), |(part, memory)| {
            format!(
                ", {:.0} % of the {}'s limit",
                part * 100.0,
                if memory { "memory" } else { "matrix unit" }
            )
        });
        writeln!(out, "{:<56} {}{share}", subject.name, Times::of(seconds))?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
}
