//! The benches: their options, and the lines that they print.

use kjit_benches::{Options, Times, host, kernels};

#[test]
fn every_host_benchmark_has_a_line() {
    let path = host::usual().with_file_name("tiny/tiny-llama-q8_0.gguf");
    assert!(path.exists(), "{} is missing: run scripts/fetch-test-models", path.display());
    let options = Options {
        model: Some(path),
        iterations: 1,
        warmup: 0,
        threads: 1,
        ..Options::parse(["--filter=open|vocab|tok|prompt|decode".to_owned()]).unwrap()
    };
    let mut out = vec![];
    host::run(&options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for name in ["open", "vocabulary", "tokenize", "prompt of 512", "decode, 64 tokens"] {
        assert_eq!(text.lines().filter(|l| l.starts_with(name)).count(), 1, "{name}: {text}");
    }
}

#[test]
fn kernel_resources_are_printed_without_gpu() {
    let options =
        Options::parse(["--arch=gfx1100", "--filter=^argmax"].map(str::to_owned)).unwrap();
    let mut out = vec![];
    let engine = kjit_engine::Engine::new(kjit_engine::Config::new());
    if engine.compiler_for(&"gfx1100".parse().unwrap()).is_err() {
        eprintln!("SKIPPED: no compiler for gfx1100 here (Debian: clang-19 lld-19)");
        return;
    }
    kernels::run(&options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(
        !text.is_empty()
            && text.lines().all(|l| l.starts_with("gfx1100") && l.contains(" registers, 0 spills")),
        "{text}"
    );
    let options = Options { arch: vec!["gfx0".to_owned()], ..options };
    assert!(kernels::run(&options, &mut vec![]).unwrap_err().to_string().contains("gfx0"));
}

fn parse(line: &str) -> kjit_benches::Result<Options> {
    Options::parse(line.split_whitespace().map(str::to_owned))
}

#[test]
fn flags_are_parsed_in_both_forms() {
    let options =
        parse("--bench --arch gfx1100,sm_90 --filter=^mat --iterations 3 --warmup 0").unwrap();
    assert_eq!(
        (options.arch.join(" ").as_str(), options.iterations, options.warmup),
        ("gfx1100 sm_90", 3, 0)
    );
    assert!(options.wants("matvec") && !options.wants("a matvec"));
    for (line, word) in [
        ("--nope", "--nope"),
        ("--warmup", "needs a value"),
        ("--iterations x", "whole number"),
        ("--filter (", "--filter"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn median_excludes_warm_up_runs() {
    let mut run = 0;
    let options = Options { warmup: 2, iterations: 3, ..Options::default() };
    let times = options.time(|| {
        run += 1;
        Ok(())
    });
    assert_eq!((run, times.unwrap().0.len()), (5, 3));
    assert_eq!(Times::of(vec![3.0, 1.0, 2.0]).median(), 2.0);
}
