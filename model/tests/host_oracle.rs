//! The host executor against the truth: an independent forward pass in f64 over the same weights (tests/data/oracle).

mod support;

use kjit_model::exec::{ExecOptions, Executor, KvType, Want};
use kjit_model::gguf::Gguf;
use kjit_model::host::{HostExecutor, Isa};
use serde_json::Value;
use std::sync::Arc;
use support::model_path;
use support::oracle::{ids, kl, oracle};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn executor(file: &Arc<Gguf>, precise: bool, isa: Isa) -> HostExecutor {
    let graph = kjit_model::arch::build(file).unwrap();
    let options = ExecOptions { context: 1024, kv: KvType::F16, precise, threads: 2, batch: 512 };
    HostExecutor::with_isa(Arc::clone(file), graph, options, isa).unwrap()
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
