//! Prompt chunks of several sequences in one pass on simulated AMD devices: the host's logits for
//! random lengths, fewer launches than one pass for each, and nothing of a neighbour.

use crate::common::{TEMPORARY, WORKER};
use kjit_model::gguf::Gguf;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{OpenOptions, Session, StepOutput, Want, Work};
use kjit_tests::files::model_path;
use kjit_tests::near::off;
use kjit_tests::paged::{PAGE, text};
use kjit_tests::simulator::{Setup, Simulated, cache, engine};
use kjit_tests::solo_session::SoloSession;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Rows of a pass.
const CHUNK: usize = 256;

fn packs_as_the_host(test: &str, name: &str, arch: &str, paged: bool) {
    let Some(path) = model_path(name) else { return };
    let setup = Setup::devices(arch).set("HIPSIM_CLANG", "none").set("HIPSIM_OPTIMISE", "-Og");
    setup.run(test, TEMPORARY, || {
        let gguf = Arc::new(Gguf::open(&path).unwrap());
        let graph = kjit_model::arch::build(&gguf).unwrap();
        let options = OpenOptions {
            sequences: 4,
            prefill_chunk: Some(CHUNK),
            paged: paged.then_some(12 * PAGE),
            threads: 2,
            ..OpenOptions::new(300)
        };
        let precise = OpenOptions { precise: true, ..options.clone() };
        let mut host = SoloSession::cpu(&gguf, &graph, &precise);
        let engine = engine(&cache(TEMPORARY).join("none"), WORKER, "hiprtc");
        let device = engine.device("rocm:0").unwrap();
        let mut session = Session::on_gpu(&engine, &device, &gguf, graph, &options).unwrap();
        let plan = session.gpu().unwrap().plan();
        let align = plan.prompts.last().and_then(|p| p.packs()).expect("the plan packs") as usize;
        let launches = plan.prompts.last().unwrap().launches.len();
        let vocab = session.n_vocab();
        // Other lengths in each run; a failure prints them.
        let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let mut below = |n: usize| {
            seed = seed.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
            (seed >> 96) as usize % n
        };
        for round in 0..2 {
            Simulated::here().poison(session.gpu().unwrap().plan());
            // Two chunks of each, of which the second begins behind the first; the last of three
            // ends where the pass ends.
            let ids: Vec<_> =
                (0..3).map(|_| session.add(SampleOptions::default()).unwrap()).collect();
            let mut lens = [0; 3].map(|_| 2 + below(align));
            lens[2] = lens[2].min(CHUNK - 2 * align).max(2);
            let texts: Vec<Vec<u32>> =
                lens.iter().zip(0..).map(|(n, i)| text(10 * round + i, 2 * n, vocab)).collect();
            let mut seen = vec![];
            for half in 0..2 {
                let piece = |i: usize| &texts[i][half * lens[i]..(half + 1) * lens[i]];
                let work: Vec<_> = (0..3)
                    .map(|i| Work { sequence: ids[i], tokens: piece(i), want: Want::Last })
                    .collect();
                let before = Simulated::here().calls(c"hipModuleLaunchKernel");
                let given = session.step(&work).unwrap();
                let made = Simulated::here().calls(c"hipModuleLaunchKernel") - before;
                if round + half > 0 {
                    assert!((made as usize) < 2 * launches, "{made} launches for three prompts");
                }
                for (i, given) in given.into_iter().enumerate() {
                    let StepOutput::Logits(row) = given else { panic!("{given:?}") };
                    host.truncate(0);
                    let want = host.feed(&texts[i][..(half + 1) * lens[i]], Want::Last).unwrap();
                    seen.push(off(&row, &want));
                }
            }
            eprintln!("{name} on {arch}, {lens:?} of {align}: {seen:.5?}");
            // As for prompts that run alone: products and attention in f16.
            assert!(seen.iter().all(|x| *x < 2e-2), "{name} on {arch}, {lens:?}: {seen:?}");
            ids.iter().for_each(|&id| session.remove(id).unwrap());
        }
        assert_eq!(Simulated::here().fault(0), "");
    });
}

#[test]
fn llama_prompts_share_a_pass_on_gfx1100() {
    packs_as_the_host(
        "simulated_packed::llama_prompts_share_a_pass_on_gfx1100",
        "tiny/tiny-llama-q4_k_m.gguf",
        "gfx1100",
        true,
    );
}

#[test]
fn gemma_prompts_share_a_pass_on_gfx942() {
    if !kjit_tests::all("sequences") {
        eprintln!("SKIPPED: prompts of Gemma in one pass, waves of 64 (KJIT_TEST_ALL=sequences)");
        return;
    }
    packs_as_the_host(
        "simulated_packed::gemma_prompts_share_a_pass_on_gfx942",
        "tiny/tiny-gemma3-q8_0.gguf",
        "gfx942:sramecc+:xnack-",
        false,
    );
}
