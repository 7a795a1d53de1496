//! A token as one launch: the logits of many launches, whichever waves are late, and one error where a block never comes.

use super::{open, options, tiny_models};
use crate::support::near::off;
use kjit_model::sample::SampleOptions;
use kjit_model::session::{OpenOptions, Persistence, Probe, SessionError, Want};

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn one_launch_a_token_has_the_logits_of_many() {
    let mut whole = 0;
    for path in tiny_models() {
        // For racecheck: the ring of weights as that sees its order, or as it is; and fewer tokens.
        let set = |name| std::env::var_os(name).is_some();
        let probe = match (set("KJIT_ORDERED"), set("KJIT_PATIENT")) {
            (true, _) => Probe::Ordered,
            (false, true) => Probe::Patient,
            (false, false) => Probe::None,
        };
        let tokens = std::env::var("KJIT_TOKENS").map_or(24, |n| n.parse().expect("KJIT_TOKENS is a number"));
        let (many, one) = (options(64, 8), OpenOptions { persistent: Persistence::On, probe, ..options(64, 8) });
        let (mut many, mut one) = (open(&path, &many), open(&path, &one));
        if one.on_gpu().persistent().is_none() {
            let why = &one.on_gpu().plan().no_persistent;
            eprintln!("{}: {}", path.display(), why.as_deref().unwrap_or("the device keeps no blocks together"));
            continue;
        }
        whole += 1;
        for i in 0..tokens {
            let token = (i * 37 + 5) % many.n_vocab() as u32;
            one.on_gpu().poison().unwrap();
            let (got, want) = (one.feed(&[token], Want::Last).unwrap(), many.feed(&[token], Want::Last).unwrap());
            // Sums in another order are rounded to other halves as keys and values, 2^-11 apart: 7e-5 was
            // seen.
            assert!(off(&got, &want) < 5e-4, "{}, token {i}: off by {}", path.display(), off(&got, &want));
        }
    }
    assert!(whole > 0, "no tiny model is one launch");
}

/// Of a token's one launch waves are late here and there, in each launch others: whoever relied on the clock shows it.
/// Sums are made in one order, so the logits are the same bit by bit; tokens are those of launches.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn one_launch_a_token_is_the_same_whichever_waves_are_late() {
    const ROUNDS: u32 = 100;
    let (mut whole, greedy) = (0, SampleOptions::default());
    for path in tiny_models() {
        if !path.ends_with("tiny-llama-q4_k_m.gguf") && !path.ends_with("tiny-qwen3-q8_0.gguf") {
            continue;
        }
        let on = |probe| OpenOptions { persistent: Persistence::On, probe, ..options(64, 8) };
        let (mut late, mut one) = (open(&path, &on(Probe::Delays)), open(&path, &on(Probe::None)));
        let mut many = open(&path, &options(64, 8));
        if one.on_gpu().persistent().is_none() {
            let why = &one.on_gpu().plan().no_persistent;
            eprintln!("{}: {}", path.display(), why.as_deref().unwrap_or("the device keeps no blocks together"));
            continue;
        }
        whole += 1;
        let want = many.generate(&[5, 9, 2], 12, greedy.clone());
        assert_eq!(one.generate(&[5, 9, 2], 12, greedy.clone()), want, "{}", path.display());
        for round in 0..ROUNDS {
            late.truncate(0);
            assert_eq!(late.generate(&[5, 9, 2], 12, greedy.clone()), want, "{}, round {round}", path.display());
        }
        late.truncate(0);
        one.truncate(0);
        for i in 0..24 {
            let token = (i * 37 + 5) % many.n_vocab() as u32;
            let (got, want) = (late.feed(&[token], Want::Last).unwrap(), one.feed(&[token], Want::Last).unwrap());
            assert_eq!(got, want, "{}, token {i}", path.display());
        }
    }
    assert!(whole > 0, "no tiny model is one launch");
}

/// A planted stall: a block of a token's one launch that never comes. Waits end by the clock, the answer is one error
/// that says where, and the card works on.
#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn a_block_that_never_comes_is_one_error_and_the_card_works_on() {
    let path = tiny_models().into_iter().find(|p| p.ends_with("tiny-llama-q4_k_m.gguf"));
    let path = path.expect("the suite needs tiny-llama-q4_k_m.gguf");
    let on = |probe| OpenOptions { persistent: Persistence::On, probe, ..options(64, 8) };
    let mut stalled = open(&path, &on(Probe::Stall));
    assert!(stalled.on_gpu().persistent().is_some(), "{:?}", stalled.on_gpu().plan().no_persistent);
    let began = std::time::Instant::now();
    let error = stalled.feed(&[5], Want::Last).unwrap_err();
    let (said, took) = (error.to_string(), began.elapsed().as_secs_f64());
    assert!(matches!(error, SessionError::Lost(_)) && said.contains("waited longer than 1 s"), "{said}");
    assert!(!said.contains('\n') && (1.0..4.0).contains(&took), "after {took} s: {said}");
    // It stays so; another session of the same process computes.
    assert!(stalled.feed(&[5], Want::Last).is_err());
    drop(stalled);
    let (mut one, mut many) = (open(&path, &on(Probe::None)), open(&path, &options(64, 8)));
    let (got, want) = (one.feed(&[5], Want::Last).unwrap(), many.feed(&[5], Want::Last).unwrap());
    assert!(off(&got, &want) < 5e-4, "off by {}", off(&got, &want));
}
