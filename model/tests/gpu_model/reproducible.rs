//! Tests `OpenOptions::reproducible` on a GPU. Scores must be bit for bit equal alone, together
//! with other sequences, in pieces, after a cached prefix and as drafts. This is tested for single
//! tokens, batches of up to 64, and prompts.

use super::support::files::model_path;
use super::support::reproducible::Text;
use super::{SMOLLM2, device, engine, tiny_models};
use kjit_model::gguf::Gguf;
use kjit_model::session::{KvType, OpenOptions, Session};
use std::path::Path;
use std::sync::Arc;

/// Models with windows, chunks and sinks, latents with all and with chosen keys, experts, scans,
/// linear attention, wide and shared heads.
const ARCHS: &[&str] = &[
    "deepseek2-lite",
    "deepseek32",
    "deepseek32-wide",
    "falcon-h1",
    "gemma2",
    "gemma3n",
    "gemma4-wide",
    "gpt-oss-mxfp4",
    "jamba",
    "kimi-linear",
    "lfm2",
    "llama4",
    "mamba2",
    "mpt",
    "qwen3moe-q4_k_m",
    "qwen3next",
    "rwkv7",
];

/// Tests one model with a text of `tokens` tokens, for these numbers of sequences.
fn holds(path: &Path, tokens: usize, sequences: &[usize], with: &OpenOptions) {
    let engine = engine();
    let gguf = Arc::new(Gguf::open(path).unwrap());
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let recurrent = graph.is_recurrent();
    let options = OpenOptions {
        context: Some(tokens + 60),
        sequences: sequences.iter().copied().max().unwrap(),
        drafts: true,
        reproducible: true,
        threads: 4,
        ..with.clone()
    };
    let mut session = Session::on_gpu(&engine, &device(&engine), &gguf, graph, &options).unwrap();
    let text = Text::new(&mut session, tokens);
    text.in_pieces(&mut session, &[tokens, 64, 7]);
    sequences.iter().for_each(|n| text.side_by_side(&mut session, *n));
    text.forked(&mut session, &[1, tokens / 3, tokens / 2]);
    if !recurrent {
        let greedy = Text::greedy(&mut session, 12, 40);
        greedy.drafted(&mut session, 12, &[1, 3, 8]);
    }
    eprintln!("{}: {tokens} tokens, {sequences:?} sequences", path.display());
}

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn reproducible_scores_are_independent_of_batching() {
    for path in tiny_models() {
        let some = path.to_string_lossy().contains("q4_k_m");
        for kv in [KvType::F16, KvType::Q8_0] {
            let sequences: &[usize] = if some { &[2, 3, 8, 9, 17, 33, 64] } else { &[9, 24] };
            holds(&path, 150, sequences, &OpenOptions { kv, ..OpenOptions::default() });
        }
        let paged = Some(64 * 256);
        holds(&path, 150, &[9], &OpenOptions { paged, ..OpenOptions::default() });
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn reproducible_scores_of_layer_kinds_are_independent_of_batching() {
    for arch in ARCHS {
        let Some(path) = model_path(&format!("archs/{arch}.gguf")) else { return };
        // Larger batches need rows that are multiples of 32, which not all of these models have.
        holds(&path, 70, &[3, 8], &OpenOptions::default());
        holds(&path, 70, &[3], &OpenOptions { stream: true, ..OpenOptions::default() });
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU (scripts/gpu-suite)"]
fn reproducible_scores_of_smollm2_are_independent_of_batching() {
    let Some(path) = model_path(SMOLLM2) else { return };
    let all: Vec<usize> = (1..=64).collect();
    holds(&path, 700, &all, &OpenOptions::default());
    holds(
        &path,
        700,
        &[2, 9, 64],
        &OpenOptions { paged: Some(64 * 760), ..OpenOptions::default() },
    );
}
