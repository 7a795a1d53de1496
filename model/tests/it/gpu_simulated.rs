//! Runs plans launch by launch on the simulated device, with waves of 32 and 64 lanes. Every stored
//! value is compared with the value on the CPU.

use crate::it::support::adapters::RandomAdapter;
use crate::it::support::files::tiny_model;
use crate::it::support::near::off;
use crate::it::support::simulated::{Machine, compiler, temporary};
use crate::it::support::solo_session::SoloSession;
use kjit_model::gguf::Gguf;
use kjit_model::gguf::adapter::Adapter;
use kjit_model::gpu::plan::{Choice, LaunchParams};
use kjit_model::graph::{Dtype, Graph, ValueId, adapt};
use kjit_model::session::{KvType, OpenOptions, Want};
use std::path::Path;
use std::sync::Arc;

/// The model with two adapters of random ranks on all its plain matrices, if `adapted`.
fn opened(path: &Path, adapted: bool) -> (Arc<Gguf>, Graph) {
    let gguf = Gguf::open(path).unwrap();
    let graph = kjit_model::arch::build(&gguf).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let adapters = (0..if adapted { 2 } else { 0 }).map(|i| {
        let takes = |name: &str| name.contains("attn_") || !name.starts_with("blk.") || i == 0;
        let takes = |name: &str| takes(name) && !name.contains("ffn_gate_inp");
        let adapter = RandomAdapter::of(&gguf, 31 + i, 20, takes);
        let file = adapter.write(&dir.path().join(format!("{i}.gguf")), i == 0);
        (Adapter::open(file, &gguf).unwrap(), [1.0, -0.5][i as usize])
    });
    let adapters: Vec<(Adapter, f32)> = adapters.collect();
    let (graph, gguf) = adapt(graph, gguf, &adapters).unwrap();
    (Arc::new(gguf), graph)
}

/// Decodes tokens on the simulated device and on the CPU.
fn decode(model: &str, arch: &str, kv: KvType) {
    decode_with(model, arch, kv, false);
}

fn decode_with(model: &str, arch: &str, kv: KvType, adapted: bool) {
    let (Some(path), Some(compiler)) = (tiny_model(model), compiler()) else { return };
    let (gguf, graph) = opened(&path, adapted);
    let options = OpenOptions {
        context: Some(64),
        kv,
        precise: false,
        threads: 2,
        prefill_chunk: Some(8),
        ..OpenOptions::default()
    };
    // The reference has f32 keys, values and products.
    let truth = OpenOptions { precise: true, ..options.clone() };
    let mut host = SoloSession::cpu(&gguf, &graph, &truth);
    let names: Vec<String> = graph.values.iter().map(|v| v.name.clone()).collect();
    names.iter().for_each(|n| assert!(host.host().tap(n)));
    let folder = temporary().join(format!("plan-{model}-{arch}-{kv:?}-{adapted}"));
    let mut machine = Machine::new(&gguf, &graph, arch, &options, &folder, &compiler);
    let program = machine.plan.decode.clone();
    // Eight-bit keys and values are off by 1/254 of the largest value of a group, in scores and in
    // sums.
    let tolerance = if kv == KvType::Q8_0 { 2e-2 } else { 1e-3 };
    let now = LaunchParams { units: 3, tokens: 1, choice: Choice::Greedy, products: vec![] };
    let mut next = 5;
    for position in 0..4 {
        let logits = host.feed(&[next], Want::All).unwrap();
        machine.set(&[next], position);
        machine.run(&program, &now);
        let mut compared = 0;
        for (i, name) in names.iter().enumerate() {
            let v = graph.value(ValueId(i as u32));
            let Some(got) = machine.value(&program, ValueId(i as u32), 1) else { continue };
            let rows = host.host().tapped(name).unwrap();
            let want = &rows.data[rows.data.len() - v.slots * v.width..];
            if v.dtype == Dtype::Index {
                let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
                let want: Vec<u32> = want.iter().map(|x| *x as u32).collect();
                assert_eq!(got, want, "{model} on {arch}: {name} at {position}");
            } else {
                let off = off(&got, want);
                assert!(
                    off < tolerance,
                    "{model} on {arch}: {name} at {position} is off by {off:.2e}"
                );
            }
            compared += 1;
        }
        assert!(compared > 4 * graph.states.len(), "only {compared} values were stored");
        // The device chooses the token and advances to the position that the host feeds next.
        machine.choose(&now);
        let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
        next = machine.token(position + 1);
        let margin = logits[best as usize] - logits[next as usize];
        assert!(
            margin < 1e-2,
            "{model} on {arch}: token {next} instead of {best}, {margin} less likely"
        );
    }
}

/// Feeds a prompt in chunks on the simulated device, and in one piece on the CPU.
fn prompt(model: &str, arch: &str, kv: KvType) {
    prompt_with(model, arch, kv, false);
}

fn prompt_with(model: &str, arch: &str, kv: KvType, adapted: bool) {
    let (Some(path), Some(compiler)) = (tiny_model(model), compiler()) else { return };
    let (gguf, graph) = opened(&path, adapted);
    let options = OpenOptions {
        context: Some(64),
        kv,
        precise: false,
        threads: 2,
        prefill_chunk: Some(19),
        ..OpenOptions::default()
    };
    let truth = OpenOptions { precise: true, ..options.clone() };
    let mut host = SoloSession::cpu(&gguf, &graph, &truth);
    let names: Vec<String> = graph.values.iter().map(|v| v.name.clone()).collect();
    names.iter().for_each(|n| assert!(host.host().tap(n)));
    let folder = temporary().join(format!("prompt-{model}-{arch}-{kv:?}-{adapted}"));
    let mut machine = Machine::new(&gguf, &graph, arch, &options, &folder, &compiler);
    assert_eq!(machine.plan.no_prompts, None);
    let program = machine.plan.prompts[0].clone();
    // f16 weights, activations and probabilities are off by 2⁻¹¹; eight-bit keys and values by
    // 1/254.
    let tolerance = if kv == KvType::Q8_0 { 2e-2 } else { 4e-3 };
    let ids: Vec<u32> = (0..23).map(|i| 7 * i + 3).collect();
    host.feed(&ids, Want::All).unwrap();
    let mut position = 0;
    for chunk in ids.chunks(program.tokens as usize) {
        machine.set(chunk, position as u32);
        let now = program.now(&machine.plan.target, 3, chunk.len() as u32, Choice::Greedy).unwrap();
        machine.run(&program, &now);
        let mut compared = 0;
        for (i, name) in names.iter().enumerate() {
            let v = graph.value(ValueId(i as u32));
            let Some(got) = machine.value(&program, ValueId(i as u32), chunk.len()) else {
                continue;
            };
            if program.kept.iter().any(|k| k.value.0 as usize == i && k.tiled.is_some())
                && v.slots > 1
            {
                continue; // They are stored in the order of the groups.
            }
            let each = v.slots * v.width;
            let want =
                &host.host().tapped(name).unwrap().data[position * each..][..chunk.len() * each];
            if v.dtype == Dtype::Index {
                // Experts with equal scores may be in another order.
                let set =
                    |row: &[u32]| row.iter().copied().collect::<std::collections::BTreeSet<u32>>();
                let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
                let want: Vec<u32> = want.iter().map(|x| *x as u32).collect();
                for (t, (got, want)) in got.chunks(each).zip(want.chunks(each)).enumerate() {
                    assert_eq!(
                        set(got),
                        set(want),
                        "{model} on {arch}: {name} at {}",
                        position + t
                    );
                }
            } else {
                let off = off(&got, want);
                assert!(
                    off < tolerance,
                    "{model} on {arch}: {name} at {position} is off by {off:.2e}"
                );
            }
            compared += 1;
        }
        assert!(compared > 4 * graph.states.len(), "only {compared} values were stored");
        position += chunk.len();
    }
}

#[test]
fn llama_processes_a_prompt_in_chunks() {
    prompt("tiny-llama-q4_k_m.gguf", "gfx1100", KvType::F16);
}

#[test]
fn biases_and_q8_0_kv_process_a_prompt() {
    prompt("tiny-qwen2-f16.gguf", "gfx942", KvType::Q8_0);
}

#[test]
fn windows_and_post_norms_process_a_prompt() {
    prompt("tiny-gemma3-q8_0.gguf", "gfx1100", KvType::F16);
}

#[test]
fn experts_process_a_prompt() {
    prompt("tiny-moe-q4_k_m.gguf", "gfx1100", KvType::F16);
}

#[test]
fn llama_decodes_at_wave_32() {
    decode("tiny-llama-q4_k_m.gguf", "gfx1100", KvType::F16);
}

#[test]
fn llama_decodes_at_wave_64() {
    decode("tiny-llama-q8_0.gguf", "gfx942", KvType::F16);
}

#[test]
fn biases_and_q8_0_kv_decode() {
    decode("tiny-qwen2-f16.gguf", "gfx942", KvType::Q8_0);
}

#[test]
fn head_norms_decode() {
    decode("tiny-qwen3-f16.gguf", "gfx1100", KvType::F16);
}

#[test]
fn windows_and_post_norms_decode() {
    decode("tiny-gemma3-q8_0.gguf", "gfx1100", KvType::F16);
}

#[test]
fn mixture_of_experts_decodes() {
    decode("tiny-moe-q4_k_m.gguf", "gfx1100", KvType::F16);
}

#[test]
fn adapters_decode_at_wave_32() {
    decode_with("tiny-llama-q4_k_m.gguf", "gfx1100", KvType::F16, true);
}

#[test]
fn adapters_beside_biases_decode_at_wave_64() {
    decode_with("tiny-qwen2-f16.gguf", "gfx942", KvType::F16, true);
}

#[test]
fn adapters_take_a_prompt_at_wave_32() {
    prompt_with("tiny-gemma3-q8_0.gguf", "gfx1100", KvType::F16, true);
}

#[test]
fn adapters_take_a_prompt_at_wave_64() {
    prompt_with("tiny-llama-q8_0.gguf", "gfx942", KvType::F16, true);
}
