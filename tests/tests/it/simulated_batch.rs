//! Batches of sequences on simulated AMD devices: logits and answers match the host's for every
//! number and length, and warming compiles the kernels that the batches use.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::gpu::jobs_for;
use kjit_model::session::{KvType, OpenOptions, Session};
use kjit_tests::files::model_path;
use kjit_tests::reproducible::Text;
use kjit_tests::side_by_side;
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;
use std::time::Instant;

/// Compares logits for these numbers of sequences, then answers for the middle number.
/// `KJIT_TEST_ALL=sequences` takes `all`.
fn as_the_host(
    test: &str,
    name: &str,
    arch: &str,
    kv: KvType,
    few: &'static [usize],
    all: &'static [usize],
) {
    let sizes = if kjit_tests::all("sequences") { all } else { few };
    let Some(path) = model_path(name) else { return };
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        if sizes != all {
            eprintln!(
                "SKIPPED: {all:?} sequences, in their place {few:?} (KJIT_TEST_ALL=sequences)"
            );
        }
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            context: Some(24),
            kv,
            precise: false,
            threads: 2,
            prefill_chunk: Some(16),
            ..OpenOptions::default()
        };
        let precise = OpenOptions { precise: true, ..options.clone() };
        let mut host = SoloSession::cpu(&gguf, &graph, &precise);
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let options = OpenOptions { sequences: *sizes.iter().max().unwrap(), ..options };
        let before = Simulated::here().alive();
        let start = Instant::now();
        let jobs = jobs_for(&engine, &graph, device.target(), &options).unwrap();
        engine.compile_all(&jobs).into_iter().for_each(|code| drop(code.unwrap()));
        eprintln!("{name} on {arch}: warmed {} kernels in {:.1?}", jobs.len(), start.elapsed());
        // Poisons memory between runs: old data and unused rows must not influence results.
        let poison = |session: &Session| Simulated::here().poison(session.gpu().unwrap().plan());
        let mut session = Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap();
        assert_eq!(
            session.gpu().unwrap().statistics().kernels.compiled,
            0,
            "what was warmed is all that is asked for"
        );
        // Products of more than eight sequences use f16; keys and values are f16 or q8_0. If
        // another expert is chosen because scores are nearly equal, later logits differ more. So
        // the limit of the median is tight, and the limit of the maximum is not.
        let (middle, most) = if kv == KvType::Q8_0 { (2e-2, 1e-1) } else { (4e-3, 5e-2) };
        for &n in sizes {
            let start = Instant::now();
            poison(&session);
            let mut seen = side_by_side::scores(&mut session, &mut host, n);
            seen.sort_by(f64::total_cmp);
            let (median, worst) = (seen[seen.len() / 2], seen[seen.len() - 1]);
            eprintln!(
                "{n} sequences: median {median:.1e}, worst {worst:.1e}, {:.1?}",
                start.elapsed()
            );
            assert!(
                median < middle && worst < most,
                "{name} on {arch}, {n} sequences: logits are off by {seen:?}"
            );
        }
        poison(&session);
        let gap = side_by_side::answers(&mut session, &mut host, sizes[sizes.len() / 2], 4);
        assert!(gap < 0.05, "{name} on {arch}: a token is {gap} below the host's choice");
        // One architecture is enough to test joining, leaving and sampling.
        if sizes != all && !name.contains("llama") {
            assert_eq!(Simulated::here().fault(0), "");
            return;
        }
        poison(&session);
        let gap = side_by_side::joining(&mut session, &mut host, 3);
        assert!(gap < 0.05, "{name} on {arch}: a token is {gap} below the host's choice");
        poison(&session);
        let seen = side_by_side::mixed(&mut session, &mut host);
        // With few rows one row may have another expert. The limit is the error measured on an
        // H200.
        let most = if name.contains("moe") { 0.3 } else { most };
        assert!(seen.iter().all(|x| *x < most), "{name} on {arch}: logits are off by {seen:?}");
        if options.sequences >= 4 {
            side_by_side::options(&mut session, 3, false);
        }
        side_by_side::limits(&mut session);
        poison(&session);
        let first = side_by_side::draws(&mut session, [7, 8], 5);
        assert_eq!(first, side_by_side::draws(&mut session, [7, 8], 5));
        let other = side_by_side::draws(&mut session, [9, 8], 5);
        assert!(first[0] != other[0] && first[1..] == other[1..], "{first:?} {other:?}");
        assert_eq!(Simulated::here().fault(0), "");
        drop(session);
        assert_eq!(
            Simulated::here().alive().bytes,
            before.bytes,
            "memory of the device is given back"
        );
    });
}

#[test]
fn batched_llama_on_simulated_gfx1100_matches_host() {
    let test = "simulated_batch::batched_llama_on_simulated_gfx1100_matches_host";
    as_the_host(
        test,
        "tiny/tiny-llama-q4_k_m.gguf",
        "gfx1100",
        KvType::F16,
        &[2, 9],
        &[1, 2, 3, 5, 8, 9, 16, 33],
    );
}

#[test]
fn batched_q8_0_kv_on_simulated_gfx942_matches_host() {
    let test = "simulated_batch::batched_q8_0_kv_on_simulated_gfx942_matches_host";
    as_the_host(
        test,
        "tiny/tiny-qwen2-f16.gguf",
        "gfx942:sramecc+:xnack-",
        KvType::Q8_0,
        &[5],
        &[5, 9],
    );
}

#[test]
fn batched_experts_on_simulated_gfx90a_match_host() {
    let test = "simulated_batch::batched_experts_on_simulated_gfx90a_match_host";
    as_the_host(
        test,
        "tiny/tiny-moe-q4_k_m.gguf",
        "gfx90a:sramecc+:xnack-",
        KvType::F16,
        &[5],
        &[1, 3, 9],
    );
}

#[test]
fn batched_windows_on_simulated_gfx1201_match_host() {
    let test = "simulated_batch::batched_windows_on_simulated_gfx1201_match_host";
    as_the_host(test, "tiny/tiny-gemma3-q8_0.gguf", "gfx1201", KvType::F16, &[3], &[3, 16]);
}

/// A model opened as reproducible: logits are bit for bit equal for tokens alone, in a batch, in
/// chunks, after a cached prefix, as drafts, and with streamed layers. `KJIT_TEST_ALL=sequences`
/// takes up to 64 sequences and the cases that are not `always`.
fn reproducible(test: &str, name: &str, arch: &str, always: bool, with: OpenOptions) {
    let whole = kjit_tests::all("sequences");
    let Some(path) = model_path(name) else { return };
    if !whole && !always {
        eprintln!("SKIPPED: {name} on {arch} (KJIT_TEST_ALL=sequences)");
        return;
    }
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let (tokens, sizes): (usize, &[usize]) = match (whole, always) {
            (false, _) => (16, &[3]),
            (true, false) => (24, &[2, 8]),
            (true, true) => (70, &[2, 9, 33, 64]),
        };
        let options = OpenOptions {
            context: Some(tokens + 20),
            threads: 2,
            reproducible: true,
            drafts: true,
            sequences: *sizes.iter().max().unwrap(),
            ..with
        };
        let start = Instant::now();
        let mut session =
            Session::on_gpu(&engine, &device, &gguf, graph.clone(), &options).unwrap();
        eprintln!("{name} on {arch}: opened after {:.1?}", start.elapsed());
        Simulated::here().poison(session.gpu().unwrap().plan());
        let text = Text::new(&mut session, tokens);
        text.in_pieces(&mut session, &[tokens, 7]);
        sizes.iter().for_each(|n| text.side_by_side(&mut session, *n));
        text.forked(&mut session, &[5]);
        if !graph.is_recurrent() {
            let greedy = Text::greedy(&mut session, 6, 16);
            greedy.drafted(&mut session, 6, &[3]);
        }
        drop(session);
        let options = OpenOptions { stream: true, ..options };
        let mut session = Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap();
        text.in_pieces(&mut session, &[7]);
        eprintln!("{name} on {arch}: {:.1?}", start.elapsed());
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn reproducible_llama_on_simulated_gfx1100_is_independent_of_batching() {
    let test =
        "simulated_batch::reproducible_llama_on_simulated_gfx1100_is_independent_of_batching";
    reproducible(test, "tiny/tiny-llama-q4_k_m.gguf", "gfx1100", true, OpenOptions::default());
}

#[test]
fn reproducible_experts_on_simulated_gfx90a_are_independent_of_batching() {
    let test =
        "simulated_batch::reproducible_experts_on_simulated_gfx90a_are_independent_of_batching";
    let options = OpenOptions { kv: KvType::Q8_0, paged: Some(64 * 128), ..OpenOptions::default() };
    reproducible(test, "tiny/tiny-moe-q4_k_m.gguf", "gfx90a:sramecc+:xnack-", true, options);
}

#[test]
fn reproducible_latents_on_simulated_gfx942_are_independent_of_batching() {
    let test =
        "simulated_batch::reproducible_latents_on_simulated_gfx942_are_independent_of_batching";
    reproducible(
        test,
        "archs/deepseek32-wide.gguf",
        "gfx942:sramecc+:xnack-",
        false,
        OpenOptions::default(),
    );
}

#[test]
fn reproducible_states_on_simulated_gfx1201_are_independent_of_batching() {
    let test =
        "simulated_batch::reproducible_states_on_simulated_gfx1201_are_independent_of_batching";
    reproducible(test, "archs/falcon-h1.gguf", "gfx1201", false, OpenOptions::default());
}

#[test]
fn reproducible_windows_on_simulated_gfx1030_are_independent_of_batching() {
    let test =
        "simulated_batch::reproducible_windows_on_simulated_gfx1030_are_independent_of_batching";
    reproducible(test, "tiny/tiny-gemma3-q8_0.gguf", "gfx1030", false, OpenOptions::default());
}
