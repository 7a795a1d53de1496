//! Bench of looking up and loading cached kernels: 300 different ones. Without a card, or with
//! `--arch`, they are only looked up. The first run compiles them into `KJIT_CACHE_DIR`.

use crate::{Options, Result, Times};
use kjit_engine::{Config, Engine, Job, Target};
use kjit_kernel_cases::matrix::representative;
use kjit_kernels::Family;
use kjit_kernels::format::Format;
use kjit_kernels::matvec::MatvecSpec;
use std::io::Write;
use std::time::Instant;

const KERNELS: usize = 300;

/// The representative kernels, and products of other shapes to reach the number.
fn jobs(target: &Target) -> Result<Vec<Job>> {
    let mut kernels: Vec<_> = representative(target)?.into_iter().map(|s| s.kernel).collect();
    let format = Format::by_name("Q4_K").ok_or("no Q4_K")?;
    for rows in (1024..).step_by(256).take(KERNELS) {
        kernels.push(MatvecSpec::new(format, rows, 4096).kernel(target)?);
    }
    let mut jobs: Vec<Job> = vec![];
    for k in kernels {
        let job = k.job(target);
        if jobs.len() < KERNELS && !jobs.contains(&job) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// Runs the bench.
///
/// # Errors
/// A target, device or compiler is missing, or the cache does not keep an entry.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<()> {
    let first = Engine::new(Config::new());
    let (device, target) = match options.arch.first() {
        Some(arch) => (None, Target::parse(arch)?),
        None => match first.device(&options.device) {
            Ok(device) => {
                let target = device.target().clone();
                (Some(device), target)
            }
            Err(why) if options.device == "auto" => {
                writeln!(out, "SKIPPED: no card here ({}), and --arch is not set", why.brief())?;
                return Ok(());
            }
            Err(why) => return Err(why.into()),
        },
    };
    let jobs = jobs(&target)?;
    for code in first.compile_all(&jobs) {
        code?;
    }
    writeln!(
        out,
        "{} kernels for {target}, {} of them compiled now",
        jobs.len(),
        first.counts().compiled
    )?;
    let (mut found, mut loaded) = (vec![], vec![]);
    for run in 0..options.warmup + options.iterations {
        // A new engine, as in a new process: the look-up includes the search for compilers.
        let engine = Engine::new(Config::new());
        let began = Instant::now();
        let codes =
            engine.compile_all(&jobs).into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        let looked = began.elapsed();
        let began = Instant::now();
        if let Some(device) = &device {
            codes.iter().map(|c| device.load(c)).collect::<std::result::Result<Vec<_>, _>>()?;
        }
        if engine.counts().compiled != 0 {
            return Err("a kernel was compiled that should have been in the cache".into());
        }
        if run >= options.warmup {
            found.push(looked.as_secs_f64());
            loaded.push(began.elapsed().as_secs_f64());
        }
    }
    writeln!(out, "looked up and verified {}", Times::of(found))?;
    if device.is_some() {
        writeln!(out, "loaded                 {}", Times::of(loaded))?;
    }
    Ok(())
}
