//! A program that is its own compiler process: `child_main()` first, and no `kjit-cc` anywhere. It has a `main` of its
//! own, since the test harness would run before ours.

use kjit_engine::{Config, Constants, Engine, Job, Options, Source, Vendor};

fn main() {
    kjit_engine::child_main();
    let dir = tempfile::tempdir().unwrap();
    let cache = kjit_cache::Config::for_app("kjit").ignore_environment().dir(dir.path());
    let engine = Engine::new(Config::new().cache(cache));
    if engine.compilers(Vendor::Nvidia).found.is_empty() {
        eprintln!("SKIPPED a_program_can_be_its_own_compiler_process: no nvrtc; pip install nvidia-cuda-nvrtc");
        return;
    }
    let source = Source::new("k", "k.cu", "extern \"C\" __global__ void k(int* x) { *x = N; }").entry("k");
    let job = Job::new(source, Constants::new().set("N", 3), Options::wave(32), "sm_90".parse().unwrap());
    assert_eq!(engine.compile(&job).unwrap().kernels().len(), 1);
    // It really was a child of ours: this process has no nvrtc mapped.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("nvrtc"), "nvrtc was opened in the program itself");
    eprintln!("test a_program_can_be_its_own_compiler_process ... ok");
}
