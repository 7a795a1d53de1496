//! `kjit warm MODEL` compiles exactly the kernels of `kjit run MODEL`: each small test model runs
//! on a simulated AMD device from the warmed cache, without any compiler.
//!
//! Each card gets a sixth of the models per run (`KJIT_TEST_ALL=warm`: a third, so that every model
//! is used). Cards differ: waves of 32 and of 64 lanes, with and without matrix units.

use crate::support::machine::{Machine, document, err, failure, simulated};
use crate::support::model;
use std::path::Path;
use std::time::Instant;

/// Every model that `scripts/fetch-test-models` creates.
const GOLDEN: &str = include_str!("../../../tests/data/golden/models.sha256");

fn models() -> Vec<&'static str> {
    GOLDEN.lines().filter_map(|line| line.split_whitespace().nth(1)).collect()
}

/// Runs `warm` with `setup` without a card, then `run` with it without a compiler.
fn warm_and_run(dir: &Path, arch: &'static str, name: &str, setup: &[&str]) {
    let path = model(name);
    let path = path.to_str().unwrap();
    let laptop = Machine::new("", dir.join("cache"));
    let start = Instant::now();
    let warm = laptop
        .kjit(["warm", path, "--arch", arch, "--compiler", "hiprtc", "--json"].iter().chain(setup));
    let warm = document(&warm);
    let of = |what: &str| warm[what].as_u64().unwrap();
    assert_eq!(of("failed"), 0, "{warm}");
    let warmed = start.elapsed();

    let server = Machine { compilers: false, ..Machine::new(arch, dir.join("cache")) };
    let start = Instant::now();
    let args = [
        "run", path, "--raw", "-p", "ab", "-n", "1", "--temp", "0", "--json", "--device", "rocm:0",
    ];
    let run = document(&server.kjit(args.iter().chain(setup)));
    let what = format!("{name} on {arch} {setup:?}");
    assert_eq!(run["kernels"]["compiled"], 0, "{what}: {run}");
    let (all, new) = (of("compiled") + of("cached"), of("compiled"));
    // Exactly the kernels of the model. A mixture of experts has two kernels in one source, which
    // is looked up twice.
    let twice = if name.contains("moe") { 2 } else { 0 };
    assert_eq!(run["kernels"]["cached"], all + twice, "{what}: {run}");
    assert_eq!(run["generated_tokens"], 1, "{what}: {run}");
    eprintln!(
        "{what}: {all} kernels, {new} of them new, warmed in {warmed:.1?}, run in {:.1?}",
        start.elapsed()
    );
}

fn some_of_all(test: &str, arch: &'static str, first: usize) {
    if !simulated(test) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let step = if kjit_tests::all("warm") { 3 } else { 6 };
    if step > 3 {
        eprintln!(
            "SKIPPED: {arch}: all models but each sixth; KJIT_TEST_ALL=warm takes each third"
        );
    }
    for name in models().iter().skip(first).step_by(step) {
        warm_and_run(dir.path(), arch, name, &["-c", "64", "--prefill-chunk", "16"]);
    }
}

#[test]
fn warmed_models_run_on_gfx1100_without_compiler() {
    some_of_all("warmed_models_run_on_gfx1100_without_compiler", "gfx1100", 0);
}

#[test]
fn warmed_models_run_on_gfx942_without_compiler() {
    some_of_all("warmed_models_run_on_gfx942_without_compiler", "gfx942", 1);
}

#[test]
fn warmed_models_run_on_gfx1030_without_compiler() {
    some_of_all("warmed_models_run_on_gfx1030_without_compiler", "gfx1030", 2);
}

#[test]
fn warm_with_run_flags_compiles_its_kernels_only() {
    if !simulated("warm_with_run_flags_compiles_its_kernels_only") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "tiny/tiny-qwen3-q4_k_m.gguf";
    for setup in [
        &["-c", "64", "--prefill-chunk", "16", "--kv-type", "q8_0"][..],
        &["-c", "64", "--prefill-chunk", "16", "--precise"],
        &["-c", "64", "--prefill-chunk", "5"],
        &["-c", "10"],
    ] {
        warm_and_run(dir.path(), "gfx1100", name, setup);
    }
    // If a kernel was not warmed, the error names it.
    let server = Machine { compilers: false, ..Machine::new("gfx1100", dir.path().join("cache")) };
    let path = model(name);
    let other = ["--kv-type", "q8_0", "--precise", "-c", "64", "--prefill-chunk", "33"];
    let args = ["run", path.to_str().unwrap(), "--raw", "-p", "x", "-n", "1", "--device", "rocm:0"];
    let line = failure(&server.kjit(args.iter().chain(&other)));
    assert!(line.contains("gfx1100") && line.contains("no-compiler"), "{line}");
}

#[test]
fn warm_for_sequences_compiles_batched_decoding() {
    if !simulated("warm_for_sequences_compiles_batched_decoding") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = model("tiny/tiny-llama-q4_k_m.gguf");
    let path = path.to_str().unwrap();
    let laptop = Machine::new("", dir.path().join("cache"));
    let warm = |more: &[&str]| {
        let args = ["warm", path, "--arch", "gfx1100", "--compiler", "hiprtc", "--json", "-c", "3"];
        document(&laptop.kjit(args.iter().chain(more)))["compiled"].as_u64().unwrap()
    };
    let server = Machine { compilers: false, ..Machine::new("gfx1100", dir.path().join("cache")) };
    let bench = || {
        let args = [
            "bench", path, "--device", "rocm:0", "-b", "1,2", "-n", "2", "-d", "1", "-r", "1",
            "-o", "json",
        ];
        server.kjit(args)
    };
    assert!(warm(&[]) > 10);
    let line = failure(&bench());
    assert!(line.contains("gfx1100") && line.contains("no-compiler"), "{line}");
    assert!(warm(&["--sequences", "2"]) > 0);
    let output = bench();
    assert!(output.status.success(), "{}", err(&output));
}
