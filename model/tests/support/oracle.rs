//! The models' reference data (tests/data/oracle), and the distance of logits from it.

use super::solo_session::SoloSession;
use kjit_model::sample::{SampleOptions, Sampler};
use kjit_model::session::Want;
use serde_json::Value;
use std::path::PathBuf;

/// Reads a file of tests/data/oracle: in the repository, or otherwise below the working directory
/// (if the test program was copied to another machine).
pub fn oracle(name: &str) -> Value {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/data/oracle").join(name);
    let path = if built.exists() { built } else { PathBuf::from("tests/data/oracle").join(name) };
    serde_json::from_str(
        &std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    )
    .unwrap()
}

/// Reads an array of numbers as token ids.
pub fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

/// log Σ e^x.
pub fn log_sum_exp(x: &[f32]) -> f64 {
    let m = f64::from(x.iter().copied().fold(f32::MIN, f32::max));
    x.iter().map(|&x| (f64::from(x) - m).exp()).sum::<f64>().ln() + m
}

/// KL(truth ‖ got). With Δ = log p − log q it is Σ p φ(Δ), φ(Δ) = Δ + e^−Δ − 1. Every term is ≥ 0;
/// the added part sums to 0, because p and q both sum to 1. The truth file has the 20 most likely
/// logits, whose terms are exact, and 64 others spread over the vocabulary. The error of the
/// remaining probability is estimated by the average of these 64, weighted by their probability.
pub fn kl(truth: &Value, got: &[f32]) -> f64 {
    let (lse_p, lse_q) = (truth["logsumexp"].as_f64().unwrap(), log_sum_exp(got));
    let term = |id: usize, logit: f64| {
        let (lp, lq) = (logit - lse_p, f64::from(got[id]) - lse_q);
        assert!(lq.is_finite(), "logit {id} is {}", got[id]);
        (lp.exp(), (lp - lq) + (lq - lp).exp() - 1.0)
    };
    let top: Vec<_> = truth["top20"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| term(e[0].as_u64().unwrap() as usize, e[1].as_f64().unwrap()))
        .collect();
    let probe_ids = ids(&truth["probe_ids"]);
    let probes: Vec<_> = probe_ids
        .iter()
        .zip(truth["probe_logits"].as_array().unwrap())
        .map(|(&id, l)| term(id as usize, l.as_f64().unwrap()))
        .collect();
    let known: f64 = top.iter().map(|(p, f)| p * f).sum();
    let rest = (1.0 - top.iter().map(|(p, _)| p).sum::<f64>()).max(0.0);
    let (mass, off) = probes.iter().fold((0.0, 0.0), |(m, o), (p, f)| (m + p, o + p * f));
    known + rest * off / mass
}

/// Feeds a prompt, then generates greedily and compares each choice with the truth. Stops at a step
/// at which the best two logits of the truth are closer than `margin`: there the choice may differ,
/// and the rest would be another text. The sequence starts empty; `steps` is the maximum number of
/// steps.
pub fn follow(
    exec: &mut SoloSession,
    prompt: &[u32],
    truth: &Value,
    steps: usize,
    margin: f64,
    name: &str,
) {
    let margins = truth["runner_up_top1_margin"].as_array().unwrap();
    let mut logits = exec.feed(prompt, Want::Last).unwrap();
    let mut sampler = Sampler::new(SampleOptions::default());
    for (step, (&want, m)) in ids(&truth["ids"]).iter().zip(margins).enumerate().take(steps) {
        let got = sampler.sample(prompt.len() + step, &mut logits);
        if got != want {
            let found = m[2].as_f64().unwrap();
            assert!(
                found < margin,
                "{name}: step {step} chose {got}, expected {want}, at a margin of {found}"
            );
            return;
        }
        logits = exec.feed(&[got], Want::Last).unwrap();
    }
}
