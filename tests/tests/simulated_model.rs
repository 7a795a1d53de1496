//! A real model on simulated AMD devices: SmolLM2's greedy tokens are the host's, on a card with waves of 32 and on one with
//! waves of 64. The whole path: plan, kernels compiled by (simulated) hiprtc in child processes, cache, upload, repacking,
//! graphs, prompt, decode.

use kjit_model::exec::{ExecOptions, Executor, KvType};
use kjit_model::gguf::Gguf;
use kjit_model::host::HostExecutor;
use kjit_model::sample::{SampleOptions, Sampler};
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

const WORKER: &str = env!("CARGO_BIN_EXE_kjit-tests-cc");
const TEMPORARY: &str = env!("CARGO_TARGET_TMPDIR");
const MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// "The capital of France is", in SmolLM2's vocabulary.
const PROMPT: &[u32] = &[504, 3575, 282, 4649, 314];
const TOKENS: usize = 8;

fn model() -> Option<PathBuf> {
    let folder = std::env::var_os("KJIT_TEST_MODELS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.models"), PathBuf::from);
    let path = folder.join(MODEL);
    if !path.exists() {
        eprintln!(
            "SKIPPED: {} is not there (scripts/test fetches it; KJIT_TEST_MODELS names the folder)",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// The next eight tokens, the likeliest each time.
fn greedy(executor: &mut dyn Executor) -> Vec<u32> {
    let mut ids = vec![];
    let mut sampler = Sampler::new(SampleOptions { temperature: 0.0, ..SampleOptions::default() });
    executor
        .decode(PROMPT, &mut sampler, &mut |id| {
            ids.push(id);
            if ids.len() == TOKENS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    ids
}

fn same_as_the_host(test: &str, arch: &str) {
    let Some(path) = model() else { return };
    Setup::devices(arch).set("KJIT_HIPSIM_CLANG", "none").run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = ExecOptions { context: 64, kv: KvType::F16, precise: false, threads: 2, batch: 8 };
        let precise = ExecOptions { precise: true, ..options.clone() };
        let want = greedy(&mut HostExecutor::new(Arc::clone(&gguf), graph.clone(), precise).unwrap());

        let before = Simulated::here().alive();
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let start = Instant::now();
        let mut gpu = kjit_model::gpu::open(&engine, "rocm:0", gguf, graph, &options).unwrap();
        eprintln!("{arch}: opened in {:.1?}: {:?}", start.elapsed(), gpu.statistics());
        let start = Instant::now();
        let got = greedy(&mut gpu);
        eprintln!("{arch}: {TOKENS} tokens in {:.1?}: {got:?}", start.elapsed());
        assert_eq!(Simulated::here().fault(0), "");
        assert_eq!(got, want, "on {arch} and on the host");
        drop(gpu);
        assert_eq!(Simulated::here().alive().bytes, before.bytes, "memory of the device is given back");
    });
}

#[test]
fn smollm2s_greedy_tokens_on_simulated_gfx1100_are_the_hosts() {
    same_as_the_host("smollm2s_greedy_tokens_on_simulated_gfx1100_are_the_hosts", "gfx1100");
}

#[test]
fn smollm2s_greedy_tokens_on_simulated_gfx942_are_the_hosts() {
    same_as_the_host("smollm2s_greedy_tokens_on_simulated_gfx942_are_the_hosts", "gfx942:sramecc+:xnack-");
}
