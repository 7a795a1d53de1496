//! Whole models as machine code: the simulated device runs every launch on `gfxemu`. Uploads,
//! repacking, graphs, prompts and decoding are those of the real executor.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::session::{KvType, OpenOptions, Want};
use kjit_tests::files::model_path;
use kjit_tests::near::off;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;
use std::time::Instant;

/// "The capital of France is", in SmolLM2's vocabulary.
const PROMPT: &[u32] = &[504, 3575, 282, 4649, 314];

fn likeliest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

/// Compares logits after a prompt and after each of the next tokens (the most likely on the host)
/// between the device and the host.
fn as_the_host(test: &str, arch: &str, name: &str, prompt: &[u32], tokens: usize, norm: f64) {
    if !kjit_tests::all("emulate") {
        eprintln!("SKIPPED: {name} as machine code of {arch} (KJIT_TEST_ALL=emulate runs it)");
        return;
    }
    if let Err(why) = gfxemu::llvm::available() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let Some(path) = model_path(name) else { return };
    Setup::devices(arch).set("HIPSIM_OPTIMISE", "-O0").run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            context: Some(64),
            kv: KvType::F16,
            precise: false,
            threads: 2,
            prefill_chunk: Some(8),
            ..OpenOptions::default()
        };
        let precise = OpenOptions { precise: true, ..options.clone() };
        let mut host = SoloSession::cpu(&gguf, &graph, &precise);
        let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "clang");
        let simulated = Simulated::here();
        simulated.emulate();
        let mut gpu =
            SoloSession::gpu(&engine, &engine.device("rocm:0").unwrap(), &gguf, &graph, &options);
        let mut ids = prompt.to_vec();
        for step in 0..=tokens {
            let (before, start) = (kjit_tests::emulated::counts(), Instant::now());
            let got = gpu.feed(&ids, Want::Last).unwrap();
            let (launches, instructions) = kjit_tests::emulated::counts();
            assert_eq!(simulated.fault(0), "");
            let want = host.feed(&ids, Want::Last).unwrap();
            let (off, next) = (off(&got, &want), likeliest(&want));
            eprintln!(
                "{name} on {arch}, step {step}: \
                 {} launches, {} instructions, {:.1?}, off by {off:.1e}, token {next}",
                launches - before.0,
                instructions - before.1,
                start.elapsed()
            );
            assert!(launches > before.0, "nothing was emulated");
            assert!(off < norm, "{name} on {arch}, step {step}: off by {off} of the norm");
            assert_eq!(likeliest(&got), next, "{name} on {arch}, step {step}");
            ids = vec![next as u32];
        }
    });
}

#[test]
fn tiny_llama_machine_code_of_gfx1100_matches_host() {
    let prompt: Vec<u32> = (0..9).map(|i| (i * 37 + 5) % 100).collect();
    let test = "emulated_model::tiny_llama_machine_code_of_gfx1100_matches_host";
    as_the_host(test, "gfx1100", "tiny/tiny-llama-q4_k_m.gguf", &prompt, 3, 1e-2);
}

#[test]
fn smollm2_machine_code_of_gfx1100_matches_host() {
    let test = "emulated_model::smollm2_machine_code_of_gfx1100_matches_host";
    as_the_host(test, "gfx1100", "SmolLM2-135M-Instruct.Q4_1.gguf", PROMPT, 2, 2e-2);
}

#[test]
fn smollm2_machine_code_of_gfx942_matches_host() {
    let test = "emulated_model::smollm2_machine_code_of_gfx942_matches_host";
    as_the_host(test, "gfx942:sramecc+:xnack-", "SmolLM2-135M-Instruct.Q4_1.gguf", PROMPT, 2, 2e-2);
}
