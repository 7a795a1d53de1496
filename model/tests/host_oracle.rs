//! The host executor against the truth: an independent forward pass in f64 over the same weights (tests/data/oracle).

mod support;

use kjit_model::exec::{ExecOptions, Executor, KvType, Want};
use kjit_model::gguf::Gguf;
use kjit_model::host::{HostExecutor, Isa};
use serde_json::Value;
use std::sync::Arc;
use support::model_path;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn oracle(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/oracle").join(name);
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))).unwrap()
}

fn executor(file: &Arc<Gguf>, precise: bool, isa: Isa) -> HostExecutor {
    let graph = kjit_model::arch::build(file).unwrap();
    let options = ExecOptions { context: 1024, kv: KvType::F16, precise, threads: 2, batch: 512 };
    HostExecutor::with_isa(Arc::clone(file), graph, options, isa).unwrap()
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

fn log_sum_exp(x: &[f32]) -> f64 {
    let m = f64::from(x.iter().copied().fold(f32::MIN, f32::max));
    x.iter().map(|&x| (f64::from(x) - m).exp()).sum::<f64>().ln() + m
}

/// KL(truth ‖ got). With Δ = log p − log q it is Σ p φ(Δ), φ(Δ) = Δ + e^−Δ − 1, every term of which is ≥ 0 (the added part sums to
/// nothing, p and q both summing to one). The truth's file has its 20 likeliest logits, whose terms are exact, and 64 others spread
/// over the vocabulary; the rest of the probability is taken to be off by what these are on average, weighted by their probability.
fn kl(truth: &Value, got: &[f32]) -> f64 {
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

/// Mean and largest KL over the model's prompts.
fn divergence(exec: &mut HostExecutor, model: &Value) -> (f64, f64) {
    let truths = model["logits_truth_f64"]["list"].as_array().unwrap();
    let all: Vec<f64> = model["prompts"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|prompt| {
            let truth = truths.iter().find(|t| t["id"] == prompt["id"]).unwrap();
            exec.truncate(0);
            kl(truth, &exec.feed(&ids(&prompt["ids"]), Want::Last).unwrap())
        })
        .collect();
    (all.iter().sum::<f64>() / all.len() as f64, all.iter().copied().fold(0.0, f64::max))
}

#[test]
fn smollm2_is_precise_to_1e_8_on_every_instruction_set() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let model = oracle("models/smollm2.json");
    for isa in Isa::available() {
        let (mean, worst) = divergence(&mut executor(&file, true, isa), &model);
        eprintln!("{}: mean KL {mean:e}, worst {worst:e}", isa.name());
        assert!(worst < 1e-8, "{}: KL {worst:e}", isa.name());
    }
}
