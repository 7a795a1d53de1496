//! A program that is its own compiler process: it calls `child_main()` first, and there is no
//! `kjit-cc`. It has its own `main`, because the test harness would run before that call.

use kjit_engine::{Config, Constants, Engine, Error, Job, Options, Source, Vendor};
use std::path::Path;
use std::process::Command;

/// Set in a copy of this program that does not call `child_main()` and has no `kjit-cc` beside it.
const ALONE: &str = "TEST_ALONE";

fn main() {
    if let Some(folder) = std::env::var_os(ALONE) {
        return without_child_main(folder.as_ref());
    }
    kjit_engine::child_main();
    a_copy_without_child_main_is_told_what_is_missing();
    let dir = tempfile::tempdir().unwrap();
    let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir.path());
    let engine = Engine::new(Config::new().cache(cache));
    if engine.compilers(Vendor::Nvidia).found.is_empty() {
        eprintln!(
            "SKIPPED a_program_can_be_its_own_compiler_process: no nvrtc; pip install \
             nvidia-cuda-nvrtc"
        );
        return;
    }
    let source =
        Source::new("k", "k.cu", "extern \"C\" __global__ void k(int* x) { *x = N; }").entry("k");
    let job =
        Job::new(source, Constants::new().set("N", 3), Options::wave(32), "sm_90".parse().unwrap());
    assert_eq!(engine.compile(&job).unwrap().kernels().len(), 1);
    // A child process compiled it: this process has not mapped nvrtc.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("nvrtc"), "nvrtc was opened in the program itself");
    eprintln!("test a_program_can_be_its_own_compiler_process ... ok");
}

/// The copy is in another folder, because cargo built `kjit-cc` beside this program's.
fn a_copy_without_child_main_is_told_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (copy, clang) = (dir.path().join("bin/embedder"), dir.path().join("clang-19"));
    std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    // The file is never run.
    std::fs::write(clang, "#!/bin/sh\n").unwrap();
    let output = Command::new(copy).env(ALONE, dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    eprintln!("test a_copy_without_child_main_is_told_what_is_missing ... ok");
}

fn without_child_main(folder: &Path) {
    let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(folder.join("cache"));
    let engine = Engine::new(
        Config::new().cache(cache).compiler_kind("clang").compiler_path(folder.join("clang-19")),
    );
    let source =
        Source::new("k", "k.hip", "extern \"C\" __global__ void k(int* x) { *x = N; }").entry("k");
    let job = Job::new(
        source,
        Constants::new().set("N", 3),
        Options::wave(32),
        "gfx1100".parse().unwrap(),
    );
    let error = engine.compile(&job).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Miss { .. }), "{text}");
    for part in ["clang-19", "found, but cannot be started", "child_main()", "kjit-cc"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("install"), "{text}");
}
