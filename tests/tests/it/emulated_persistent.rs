//! A whole token as one launch, as machine code: clang compiles the kernel of many steps, and
//! `gfxemu` runs its blocks together. Its rules of visibility are those of a device on which each
//! block may have second-level caches of its own, so the dies of an MI300 are covered. The logits
//! must match those of the host.
//!
//! `KJIT_TEST_ALL=emulate` runs every model on every architecture, also with an order of stores by
//! seed. Other runs take one.

use crate::common::{TEMPORARY, WORKER};
use kjit_kernels::persistent::Probe;
use kjit_model::gguf::Gguf;
use kjit_model::session::{KvType, OpenOptions, Persistence, Want};
use kjit_tests::emulated;
use kjit_tests::files::model_path;
use kjit_tests::near::off;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;
use std::time::Instant;

/// Architectures whose barriers, caches or matrix units differ. gfx1201 is missing: code of clang
/// 19 breaks gfx12's rule of scalar registers that are kept.
const ARCHS: [&str; 4] = ["gfx1100", "gfx1151", "gfx90a:sramecc+:xnack-", "gfx942:sramecc+:xnack-"];

/// Number of seeds for the order of stores.
const SEEDS: u64 = 2;

/// Compares tokens as one launch each with the host. `archs` are the ones that each run takes;
/// with `KJIT_TEST_ALL=emulate` all are.
fn as_the_host(test: &str, name: &str, usual: &[&str]) {
    let all = kjit_tests::all("emulate");
    if let Err(why) = gfxemu::llvm::available() {
        return eprintln!("SKIPPED: {why}");
    }
    let Some(path) = model_path(name) else { return };
    // Each architecture has a process. In it only its own turn runs.
    let here = std::env::var("HIPSIM_DEVICES").ok().filter(|_| Setup::inside(test));
    let archs = if all { &ARCHS[..] } else { usual };
    for arch in archs.iter().filter(|arch| here.as_ref().is_none_or(|here| here == *arch)) {
        // The simulated clang passes the source to clang 19; the CPU's code is not run.
        let setup = Setup::devices(arch).set("HIPSIM_OPTIMISE", "-O0");
        setup.run(test, TEMPORARY, || on_one(arch, name, &path, all));
    }
    if !all {
        eprintln!("SKIPPED: {name}: the other architectures (KJIT_TEST_ALL=emulate runs them)");
    }
}

fn on_one(arch: &str, name: &str, path: &std::path::Path, all: bool) {
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let options = OpenOptions {
        kv: KvType::F16,
        threads: 2,
        prefill_chunk: Some(8),
        persistent: Persistence::On,
        probe: Probe::Patient,
        ..OpenOptions::new(32)
    };
    let precise = OpenOptions { precise: true, persistent: Persistence::Off, ..options.clone() };
    let mut host = SoloSession::cpu(&gguf, &graph, &precise);
    let engine = engine(&cache(TEMPORARY).join("real"), WORKER, "clang");
    let simulated = Simulated::here();
    let mut gpu =
        SoloSession::gpu(&engine, &engine.device("rocm:0").unwrap(), &gguf, &graph, &options);
    let launches = gpu.on_gpu().plan().decode.launches.len();
    let why = format!("{:?}", gpu.on_gpu().plan().no_persistent);
    assert_eq!(gpu.on_gpu().persistent(), Some((launches, 1)), "{why}");
    simulated.emulate();
    let mut token = 5;
    for (step, seed) in (0..=SEEDS).filter(|&seed| seed == 0 || all).enumerate() {
        // Seed 0 checks the rules of visibility; other seeds choose when stores arrive.
        emulated::choose_order_of_stores(seed > 0);
        gpu.on_gpu().poison().unwrap();
        let (before, start) = (emulated::counts(), Instant::now());
        let got = gpu.feed(&[token], Want::Last).unwrap();
        let (ran, instructions) = emulated::counts();
        assert_eq!(simulated.fault(0), "");
        assert_eq!(ran - before.0, 1, "a token is not one launch");
        let want = host.feed(&[token], Want::Last).unwrap();
        let off = off(&got, &want);
        eprintln!(
            "{name} on {arch}, token {step}, stores {}: {} instructions, {:.1?}, off by {off:.1e}",
            if seed > 0 { "in an order by seed" } else { "by the rules" },
            instructions - before.1,
            start.elapsed()
        );
        // Keys, values and the factors of products are f16: 2^-11 each.
        assert!(off < 1e-2, "{name} on {arch}, token {step}: off by {off} of the norm");
        token = (token * 41 + 3) % gpu.n_vocab() as u32;
    }
}

#[test]
fn llama_token_as_one_launch_is_correct_machine_code() {
    let test = "emulated_persistent::llama_token_as_one_launch_is_correct_machine_code";
    as_the_host(test, "tiny/tiny-llama-q4_k_m.gguf", &["gfx942:sramecc+:xnack-"]);
}

#[test]
fn qwen3_token_as_one_launch_is_correct_machine_code() {
    let test = "emulated_persistent::qwen3_token_as_one_launch_is_correct_machine_code";
    as_the_host(test, "tiny/tiny-qwen3-q8_0.gguf", &[]);
}

#[test]
fn gemma3_token_as_one_launch_is_correct_machine_code() {
    let test = "emulated_persistent::gemma3_token_as_one_launch_is_correct_machine_code";
    as_the_host(test, "tiny/tiny-gemma3-q8_0.gguf", &[]);
}

#[test]
fn mixture_token_as_one_launch_is_correct_machine_code() {
    let test = "emulated_persistent::mixture_token_as_one_launch_is_correct_machine_code";
    as_the_host(test, "tiny/tiny-moe-q4_k_m.gguf", &[]);
}
