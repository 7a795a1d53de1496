//! A program that embeds the engine, for the tests of `embedded.rs`. Without arguments it is its
//! own compiler process: it calls `child_main()` first. With a folder as argument it does not call
//! it, and prints the error of a compile with the clang of that folder.
#![allow(clippy::print_stdout, reason = "the test reads its result")]

use kjit_engine::{Config, Constants, Engine, Job, Options, Source, Target};
use std::path::Path;

fn job(language: &str, target: Target) -> Job {
    let text = "extern \"C\" __global__ void k(int* x) { *x = N; }";
    let source = Source::new("k", format!("k.{language}"), text).entry("k");
    Job::new(source, Constants::new().set("N", 3), Options::wave(32), target)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::args_os().nth(1) {
        let folder = Path::new(&folder);
        let config = Config::new().cache_dir(folder.join("cache"));
        let clang = config.compiler_kind("clang").compiler_path(folder.join("clang-19"));
        match Engine::new(clang).compile(&job("hip", "gfx1100".parse()?)) {
            Ok(_) => println!("compiled"),
            Err(error) => println!("{error:?}\n{error}"),
        }
        return Ok(());
    }
    kjit_engine::child_main();
    let target: Target = "sm_90".parse()?;
    let engine = Engine::new(Config::new());
    if engine.compilers(target.vendor()).found.is_empty() {
        println!("no nvrtc");
        return Ok(());
    }
    let kernels = engine.compile(&job("cu", target))?.kernels().len();
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    println!(
        "{kernels} kernel, nvrtc {}",
        if maps.contains("nvrtc") { "here" } else { "not here" }
    );
    Ok(())
}
