//! Compares the CPU runner with an independent forward pass in f64 with the same weights
//! (tests/data/oracle).

use crate::it::support::files::model_path;
use crate::it::support::oracle::{follow, ids, kl, oracle};
use crate::it::support::solo_session::SoloSession;
use kjit_model::gguf::Gguf;
use kjit_model::host::Isa;
use kjit_model::perplexity::perplexity;
use kjit_model::session::{KvType, OpenOptions, Session, SessionError, Want};
use kjit_model::tokenizer::Tokenizer;
use serde_json::Value;
use std::sync::Arc;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn executor(file: &Arc<Gguf>, precise: bool, isa: Isa) -> SoloSession {
    let graph = kjit_model::arch::build(file).unwrap();
    let options = OpenOptions {
        context: Some(1024),
        kv: KvType::F16,
        precise,
        threads: 2,
        prefill_chunk: Some(512),
        ..OpenOptions::default()
    };
    SoloSession::cpu_with(file, &graph, &options, isa)
}

/// Mean and largest KL over the model's prompts.
fn divergence(exec: &mut SoloSession, model: &Value) -> (f64, f64) {
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
fn smollm2_is_precise_to_1e_8_on_every_isa() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let model = oracle("models/smollm2.json");
    for isa in Isa::available() {
        let (mean, worst) = divergence(&mut executor(&file, true, isa), &model);
        eprintln!("{}: mean KL {mean:e}, worst {worst:e}", isa.name());
        assert!(worst < 1e-8, "{}: KL {worst:e}", isa.name());
    }
}

#[test]
fn default_smollm2_is_closer_to_reference_than_llama_cpp() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let model = oracle("models/smollm2.json");
    let native = model["native_vs_truth"].as_array().unwrap();
    let theirs =
        native.iter().map(|n| n["kl"].as_f64().unwrap()).sum::<f64>() / native.len() as f64;
    for isa in Isa::available() {
        let mut exec = executor(&file, false, isa);
        let (prompts, _) = divergence(&mut exec, &model);
        // Token by token, which uses the kernels of decoding with rounded activations.
        let prompt = &model["prompts"]["list"][1];
        let truths = model["logits_truth_f64"]["list"].as_array().unwrap();
        let truth = truths.iter().find(|t| t["id"] == prompt["id"]).unwrap();
        exec.truncate(0);
        let ids = ids(&prompt["ids"]);
        let mut last = vec![];
        for &id in &ids {
            last = exec.feed(&[id], Want::Last).unwrap();
        }
        let decoding = kl(truth, &last);
        eprintln!(
            "{}: mean KL of prompts {prompts:e}, of decoding {decoding:e}; llama.cpp {theirs:e}",
            isa.name()
        );
        // A thousandth of llama.cpp's KL, because activations have 16 bits and not 8.
        assert!(
            prompts < 1e-3 * theirs && decoding < 1e-3 * theirs,
            "{}: {prompts:e} {decoding:e}",
            isa.name()
        );
    }
}

#[test]
fn greedy_continuations_match_reference() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let model = oracle("models/smollm2.json");
    // Only some prompts of the file: about 20 s on two busy cores.
    for (precise, kind, steps) in [(true, "raw", 24), (true, "chat", 12), (false, "raw", 24)] {
        let mut exec = executor(&file, precise, Isa::best());
        for entry in model["greedy_exact"][kind].as_array().unwrap() {
            exec.truncate(0);
            let name = format!("{kind}, precise {precise}: {}", entry["text"]);
            follow(&mut exec, &ids(&entry["prompt_ids"]), entry, steps, 0.05, &name);
        }
    }
}

#[test]
fn perplexity_matches_f32_reference() {
    const TEXT: &str = "/usr/share/common-licenses/GPL-3";
    let Some(path) = model_path(SMOLLM2) else { return };
    let Ok(text) = std::fs::read(TEXT) else {
        return eprintln!("SKIPPED: {TEXT} is missing (Debian provides it)");
    };
    let file = Arc::new(Gguf::open(path).unwrap());
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let reference = oracle("perplexity.json");
    for precise in [true, false] {
        let mut exec = executor(&file, precise, Isa::best());
        let mut running = vec![];
        // A quarter of the text: three of its fourteen windows take about ten seconds on two busy
        // cores.
        let part = &text[..text.len() * 15 / 56];
        perplexity(&mut exec.session, exec.id, &tokenizer, part, 512, &mut |_, _, so_far| {
            running.push(so_far)
        })
        .unwrap();
        assert!(running.len() >= 3, "{running:?}");
        for (i, (got, want)) in running
            .iter()
            .zip(reference["runs"]["smollm2-exact"]["running"].as_array().unwrap())
            .enumerate()
        {
            let want = want.as_f64().unwrap();
            assert!(
                (got / want - 1.0).abs() < 3e-4,
                "precise {precise}, window {i}: got {got}, expected {want}"
            );
        }
    }
}

#[test]
fn results_do_not_depend_on_thread_count() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let prompt: Vec<u32> = (0..50).map(|i| i * 97 + 5).collect();
    let run = |threads: usize| {
        let graph = kjit_model::arch::build(&file).unwrap();
        let options = OpenOptions {
            context: Some(128),
            kv: KvType::F16,
            precise: false,
            threads,
            prefill_chunk: Some(32),
            ..OpenOptions::default()
        };
        let mut exec = SoloSession::cpu(&file, &graph, &options);
        let mut logits = exec.feed(&prompt, Want::Last).unwrap();
        logits.extend(exec.feed(&[7], Want::Last).unwrap());
        logits
    };
    let alone = run(1);
    for threads in [2, 5] {
        assert!(run(threads) == alone, "{threads} threads");
    }
}

#[test]
fn wrong_input_is_refused_without_side_effects() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&file).unwrap();
    let options = OpenOptions {
        context: Some(4),
        kv: KvType::F16,
        precise: false,
        threads: 1,
        prefill_chunk: Some(512),
        ..OpenOptions::default()
    };
    let mut exec = SoloSession::cpu(&file, &graph, &options);
    assert!(matches!(
        exec.feed(&[1, 49152], Want::Last),
        Err(SessionError::Token { id: 49152, n_vocab: 49152 })
    ));
    assert!(matches!(
        exec.feed(&[1; 5], Want::Last),
        Err(SessionError::Context { tokens: 5, context: 4 })
    ));
    assert_eq!(exec.tokens(), 0);
    assert!(exec.feed(&[1; 4], Want::Nothing).unwrap().is_empty());
    assert!(matches!(
        exec.feed(&[1], Want::Last),
        Err(SessionError::Context { tokens: 5, context: 4 })
    ));
    assert_eq!(exec.tokens(), 4);
}

#[test]
fn long_context_is_allocated_lazily_and_absurd_one_refused() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let file = Arc::new(Gguf::open(path).unwrap());
    let new = |context: usize| {
        let graph = kjit_model::arch::build(&file).unwrap();
        let options = OpenOptions {
            context: Some(context),
            kv: KvType::F16,
            precise: false,
            threads: 1,
            prefill_chunk: Some(512),
            ..OpenOptions::default()
        };
        Session::on_cpu(Arc::clone(&file), graph, &options)
    };
    // 30 layers of 2 · 192 f16 values for 128k tokens: 3 GB of address space.
    let mut long = SoloSession::of(new(1 << 17).unwrap());
    assert!(long.host().kv_bytes() > 2 << 30);
    assert_eq!(long.feed(&[1], Want::Last).unwrap().len(), long.n_vocab());
    for absurd in [1 << 45, usize::MAX] {
        let error = new(absurd).err().unwrap();
        assert!(matches!(error, SessionError::Memory { .. }), "{error}");
        assert!(error.to_string().contains("-c"), "{error}");
    }
}
