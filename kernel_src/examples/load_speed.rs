//! How long it takes to look up and load kernels that are in the cache: 300 of them, each another.
//!
//! `cargo run --release -p kjit-kernels --example load_speed [-- DEVICE]` (default `cuda:0`); without a GPU `-- sm_90` or `-- gfx1100` looks
//! up only. Prints one line; the first run compiles, into `KJIT_CACHE_DIR`.

#![allow(clippy::print_stdout, reason = "a program that prints what it measured")]

use kjit_engine::{Config, Engine, Job, Target};
use kjit_kernels::format::Format;
use kjit_kernels::matrix::representative;
use kjit_kernels::matvec::MatvecSpec;
use std::error::Error;
use std::time::Instant;

const KERNELS: usize = 300;

/// The representative ones, and as many products of other shapes as are missing.
fn jobs(target: &Target) -> Result<Vec<Job>, Box<dyn Error>> {
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

fn main() -> Result<(), Box<dyn Error>> {
    kjit_engine::child_main();
    let asked = std::env::args().nth(1).unwrap_or_else(|| "cuda:0".to_owned());
    let first = Engine::new(Config::new());
    let device = asked.contains(':').then(|| first.device(&asked)).transpose()?;
    let target = match &device {
        Some(device) => device.target().clone(),
        None => Target::parse(&asked)?,
    };
    let jobs = jobs(&target)?;
    for code in first.compile_all(&jobs) {
        code?;
    }
    println!("{} kernels for {target}, {} of them compiled now", jobs.len(), first.counts().compiled);
    for _ in 0..5 {
        // A new engine, as a new process has it: the search for compilers is part of the look-up.
        let engine = Engine::new(Config::new());
        let began = Instant::now();
        let codes = engine.compile_all(&jobs).into_iter().collect::<Result<Vec<_>, _>>()?;
        let found = began.elapsed();
        let bytes: usize = codes.iter().map(|c| c.bytes().len()).sum();
        let loaded = match &device {
            None => None,
            Some(device) => {
                let began = Instant::now();
                let modules = codes.iter().map(|c| device.load(c)).collect::<Result<Vec<_>, _>>()?;
                Some((began.elapsed(), modules.len()))
            }
        };
        let load = loaded.map_or(String::new(), |(took, n)| format!(", {n} loaded in {took:.1?}"));
        println!("{} looked up and verified ({bytes} bytes) in {found:.1?}{load}", codes.len());
        if engine.counts().compiled != 0 {
            return Err("something was compiled".into());
        }
    }
    Ok(())
}
