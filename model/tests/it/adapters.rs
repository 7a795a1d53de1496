//! LoRA adapters on the CPU: compared with merged models, different adapters in one step, and both
//! file formats.

use crate::it::support::adapters::{Draw, RandomAdapter, module_of, write_peft};
use crate::it::support::as_folder::as_folder;
use crate::it::support::files::tiny_model;
use crate::it::support::near::off;
use kjit_model::gguf::Gguf;
use kjit_model::gguf::adapter::{Adapter, MergedType, merge};
use kjit_model::sample::SampleOptions;
use kjit_model::session::{AdapterFile, KvType, OpenOptions, SessionError, Want, Work};
use kjit_model::{DeviceChoice, Model};
use serde_json::{Value, json};
use std::path::Path;

/// The largest difference that the order of f32 sums causes: the merged matrix is rounded once, but
/// the products of an adapter are added.
const MAX_ROUNDING: f64 = 3e-5;
/// The smallest difference that an adapter must cause.
const MIN_EFFECT: f64 = 1e-2;

fn options(adapters: Vec<AdapterFile>) -> OpenOptions {
    OpenOptions {
        device: DeviceChoice::Cpu,
        context: Some(64),
        kv: KvType::F32,
        precise: true,
        threads: 2,
        prefill_chunk: Some(7),
        sequences: 8,
        adapters,
        ..OpenOptions::default()
    }
}

fn file(path: &Path, scale: f32) -> AdapterFile {
    AdapterFile { path: path.to_owned(), name: None, scale }
}

fn prompt() -> Vec<u32> {
    (0..19).map(|i| (i * 37 + 11) % 250).collect()
}

/// Computes the logits after every token.
fn logits(model: &Path, adapters: Vec<AdapterFile>) -> Vec<f32> {
    let mut model = Model::open(model, &options(adapters)).unwrap_or_else(|e| panic!("{e}"));
    let id = model.add(SampleOptions::default()).unwrap();
    model.session.feed(id, &prompt(), Want::All).unwrap()
}

/// Writes the merged model.
fn merged(base: &Gguf, adapters: &[(&Path, f32)], to: &Path, ty: MergedType) {
    let adapters: Vec<(Adapter, f32)> =
        adapters.iter().map(|(path, scale)| (Adapter::open(path, base).unwrap(), *scale)).collect();
    let mut out = vec![];
    merge(&mut out, base, &adapters, ty, 2).unwrap_or_else(|e| panic!("{e}"));
    std::fs::write(to, out).unwrap();
}

fn plain(name: &str) -> bool {
    ["attn_q.", "attn_k.", "attn_v.", "attn_output.", "ffn_gate.", "ffn_up.", "ffn_down."]
        .iter()
        .any(|part| name.contains(part))
}

#[test]
fn applied_adapters_match_merged_model() {
    let everything = |name: &str| plain(name) || !name.starts_with("blk.");
    let attention = |name: &str| name.contains("attn_q.") || name.contains("attn_v.");
    let queries = |name: &str| name.contains("attn_q.") && name.contains(".1.");
    let ends = |name: &str| !name.starts_with("blk.");
    type Takes = fn(&str) -> bool;
    let cases: [(&str, &[(Takes, usize)]); 7] = [
        ("tiny-llama-q4_k_m.gguf", &[(everything, 40)]),
        ("tiny-llama-bf16.gguf", &[(queries, 1), (plain, 9)]),
        ("tiny-qwen2-f16.gguf", &[(plain, 24), (attention, 5), (everything, 3)]),
        ("tiny-qwen3-q8_0.gguf", &[(plain, 16), (plain, 8)]),
        ("tiny-gemma3-q8_0.gguf", &[(everything, 12)]),
        ("tiny-tied-q8_0.gguf", &[(ends, 6), (attention, 4)]),
        ("tiny-moe-q4_k_m.gguf", &[(attention, 12)]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (n, (name, adapters)) in cases.into_iter().enumerate() {
        let Some(model) = tiny_model(name) else { return };
        let base = Gguf::open(&model).unwrap();
        let mut draw = Draw(n as u64 + 77);
        let mut files = vec![];
        for (i, (takes, rank)) in adapters.iter().enumerate() {
            let seed = 100 * n as u64 + i as u64;
            let path = dir.path().join(format!("{n}-{i}.gguf"));
            RandomAdapter::of(&base, seed, *rank, takes).write(&path, i % 2 == 1);
            files.push((path, [1.0, -0.5, 0.7][draw.below(3)]));
        }
        let whole = dir.path().join(format!("{n}-merged.gguf"));
        let pairs: Vec<(&Path, f32)> = files.iter().map(|(p, s)| (p.as_path(), *s)).collect();
        merged(&base, &pairs, &whole, MergedType::F32);
        let want = logits(&whole, vec![]);
        let got = logits(&model, files.iter().map(|(path, scale)| file(path, *scale)).collect());
        let plain = logits(&model, vec![]);
        let (near, far) = (off(&got, &want), off(&plain, &want));
        eprintln!("{name}: off by {near:.1e}; without adapters by {far:.1e}");
        assert!(near < MAX_ROUNDING && far > MIN_EFFECT, "{name}: {near:.1e}, {far:.1e}");
        // With scales of 0 the model equals the base model.
        let none = logits(&model, files.iter().map(|(path, _)| file(path, 0.0)).collect());
        assert!(off(&none, &plain) == 0.0, "{name}: a scale of 0 changes the model");
        // f16 rounds each merged element by 2^-12.
        merged(&base, &pairs, &whole, MergedType::F16);
        let half = off(&logits(&whole, vec![]), &want);
        assert!(half < 5e-3, "{name}: merged in f16 it is off by {half:.1e}");
    }
}

#[test]
fn sequences_with_different_adapters_share_a_step() {
    let Some(path) = tiny_model("tiny-llama-q4_k_m.gguf") else { return };
    let (base, dir) = (Gguf::open(&path).unwrap(), tempfile::tempdir().unwrap());
    let files: Vec<AdapterFile> = (0..3)
        .map(|i| {
            let to = dir.path().join(format!("{i}.gguf"));
            file(&RandomAdapter::of(&base, 7 + i, 20, plain).write(&to, false), 0.0)
        })
        .collect();
    let mut model = Model::open(&path, &options(files.clone())).unwrap();
    let names: Vec<&str> = model.session.graph().adapters.iter().map(|a| &*a.name).collect();
    assert_eq!(names, ["0", "1", "2"]);
    let scales = [[0.0; 3], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.25, 0.0, -1.0]];
    let mut ids = vec![];
    for scales in scales {
        let id = model.add(SampleOptions::default()).unwrap();
        model.session.set_adapters(id, &scales).unwrap();
        ids.push(id);
    }
    let text = prompt();
    let mut rows: Vec<Vec<f32>> = vec![vec![]; 4];
    // The prompts run in one step, then single tokens run in one step.
    for piece in [&text[..11], &text[11..12], &text[12..13]] {
        let work: Vec<Work<'_>> =
            ids.iter().map(|id| Work { sequence: *id, tokens: piece, want: Want::All }).collect();
        for (row, given) in rows.iter_mut().zip(model.session.step(&work).unwrap()) {
            let kjit_model::session::StepOutput::Logits(all) = given else { panic!("{given:?}") };
            row.extend(all);
        }
    }
    // A fork has the adapters of the original sequence.
    let fork = model.session.fork(ids[3], 11, SampleOptions::default()).unwrap();
    let again = model.session.feed(fork, &text[11..13], Want::All).unwrap();
    let n_vocab = model.session.n_vocab();
    assert!(off(&again, &rows[3][11 * n_vocab..]) < MAX_ROUNDING);
    for (scales, rows) in scales.iter().zip(&rows) {
        let own = files.iter().zip(scales).map(|(f, s)| AdapterFile { scale: *s, ..f.clone() });
        let want = logits(&path, own.collect());
        let off = off(rows, &want[..13 * n_vocab]);
        assert!(off < MAX_ROUNDING, "{scales:?} beside others is off by {off:.1e}");
    }
    // A new sequence in a used slot does not inherit the scales of the last sequence.
    model.session.remove(ids[1]).unwrap();
    let id = model.add(SampleOptions::default()).unwrap();
    assert_eq!(id.slot(), ids[1].slot());
    let row = model.session.feed(id, &text[..11], Want::All).unwrap();
    assert!(off(&row, &rows[0][..11 * n_vocab]) < MAX_ROUNDING);
    for (scales, id) in [(vec![1.0; 3], id), (vec![1.0; 2], fork)] {
        let refused = model.session.set_adapters(id, &scales);
        assert!(matches!(refused, Err(SessionError::Adapters { .. })), "{refused:?}");
    }
}

#[test]
fn peft_folder_matches_gguf_adapter() {
    for name in ["tiny-llama-f16.gguf", "tiny-qwen2-f16.gguf", "tiny-gemma3-f16.gguf"] {
        let Some(path) = tiny_model(name) else { return };
        let (base, dir) = (Gguf::open(&path).unwrap(), tempfile::tempdir().unwrap());
        // The base is a folder, with queries and keys in the trained order. PEFT uses the same
        // order.
        let folder = dir.path().join("base");
        let mut written = as_folder(&base);
        if base.tensor_info("rope_freqs.weight").is_some() {
            written.config["rope_scaling"] = json!({
                "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            });
        }
        written.write(&folder, 1);
        let takes = |name: &str| plain(name) || name == "token_embd.weight";
        let mut adapter = RandomAdapter::of(&base, 5, 8, takes);
        let peft = dir.path().join("adapter");
        write_peft(&peft, &adapter.config(), &adapter.tensors(module_of));
        let on_folder = logits(&folder, vec![file(&peft, 1.0)]);
        let on_file = logits(&path, vec![file(&peft, 1.0)]);
        let near = off(&on_file, &on_folder);
        assert!(near < MAX_ROUNDING, "{name}: the order of rows differs, off by {near:.1e}");
        assert!(off(&logits(&path, vec![]), &on_file) > MIN_EFFECT, "{name}");
        // llama.cpp's converter reorders rows of queries and keys for this architecture.
        if base.architecture().unwrap() == "llama" {
            for c in &mut adapter.changes {
                let heads = match &c.tensor {
                    t if t.contains("attn_q.") => "llama.attention.head_count",
                    t if t.contains("attn_k.") => "llama.attention.head_count_kv",
                    _ => continue,
                };
                let half = c.rows / base.require_u32(heads).unwrap() as usize / 2;
                let old = c.b.clone();
                for row in 0..c.rows {
                    let (head, i) = (row / (2 * half), row % (2 * half));
                    let from = head * 2 * half + i % 2 * half + i / 2;
                    c.b[row * c.rank..(row + 1) * c.rank]
                        .copy_from_slice(&old[from * c.rank..(from + 1) * c.rank]);
                }
            }
        }
        let converted = adapter.write(&dir.path().join("adapter.gguf"), false);
        let [a, b] = [&peft, &converted].map(|path| Adapter::open(path, &base).unwrap().pairs);
        assert!(a == b, "{name}: the matrices differ");
        let on_folder_too = logits(&folder, vec![file(&converted, 1.0)]);
        assert!(
            off(&on_folder_too, &on_folder) < MAX_ROUNDING,
            "{name}: the order of a GGUF on a folder"
        );
        // The scale is alpha / √rank.
        let mut config = adapter.config();
        config["use_rslora"] = json!(true);
        write_peft(&peft, &config, &adapter.tensors(module_of));
        let root = Adapter::open(&peft, &base).unwrap().pairs;
        let ratio = root[0].scale / a[0].scale;
        assert!((ratio - (a[0].rank as f32).sqrt()).abs() < 1e-5, "{ratio}");
    }
}

#[test]
fn incompatible_adapter_error_names_tensor() {
    let Some(path) = tiny_model("tiny-llama-f16.gguf") else { return };
    let (base, dir) = (Gguf::open(&path).unwrap(), tempfile::tempdir().unwrap());
    let adapter = RandomAdapter::of(&base, 9, 4, |name| name.contains("blk.0.attn_q."));
    let to = dir.path().join("adapter.gguf");
    let refused = |adapter: &Path| match Adapter::open(adapter, &base) {
        Ok(_) => panic!("the adapter was accepted"),
        Err(error) => error.to_string(),
    };
    let says = |line: String, words: &[&str]| {
        assert!(!line.contains('\n') && line.contains("adapter"), "{line}");
        words.iter().for_each(|word| assert!(line.contains(word), "'{word}' in {line}"));
    };
    let changed = |change: &dyn Fn(&mut RandomAdapter)| {
        let mut other = adapter.clone();
        change(&mut other);
        refused(&other.write(&to, false))
    };
    says(changed(&|a| a.arch = "qwen3".into()), &["'qwen3'", "'llama'"]);
    says(changed(&|a| a.alpha = f32::NAN), &["adapter.lora.alpha", "NaN"]);
    says(changed(&|a| a.changes[0].b[3] = f32::INFINITY), &["attn_q.weight.lora_b", "NaN"]);
    says(changed(&|a| a.changes[0].tensor = "blk.0.attn_z.weight".into()), &["attn_z", "another"]);
    says(changed(&|a| a.changes[0].tensor = "output_norm.weight".into()), &["vectors"]);
    let narrow = |a: &mut RandomAdapter| {
        let c = &mut a.changes[0];
        (c.cols, c.a) = (c.cols - 1, c.a[..c.rank * (c.cols - 1)].to_vec());
    };
    says(changed(&narrow), &["attn_q.weight.lora_a", "shape", "expected"]);
    says(refused(&path), &["general.type", "convert_lora_to_gguf.py"]);
    says(refused(&dir.path().join("no-adapter")), &["no-adapter"]);
    // The experts of a mixture.
    if let Some(moe) = tiny_model("tiny-moe-f16.gguf") {
        let moe = Gguf::open(moe).unwrap();
        let mut other = RandomAdapter::of(&moe, 9, 4, |name| name.contains("blk.0.attn_q."));
        other.changes[0].tensor = "blk.0.ffn_up_exps.weight".into();
        let line = Adapter::open(other.write(&to, false), &moe).unwrap_err().to_string();
        says(line, &["ffn_up_exps", "expert matrices"]);
    }
    // The settings of PEFT.
    let folder = dir.path().join("adapter");
    let tensors = adapter.tensors(module_of);
    let set: [(&str, Value); 8] = [
        ("use_dora", json!(true)),
        ("peft_type", json!("LOHA")),
        ("bias", json!("all")),
        ("modules_to_save", json!(["lm_head"])),
        ("alpha_pattern", json!({"q_proj": 3})),
        ("init_lora_weights", json!("pissa")),
        ("lora_alpha", json!("many")),
        ("use_rslora", json!(3)),
    ];
    for (key, value) in set {
        let mut config = adapter.config();
        config[key] = value;
        write_peft(&folder, &config, &tensors);
        says(refused(&folder), &[key]);
    }
    let named = |name: &str| {
        let mut tensors = tensors.clone();
        tensors[0].0 = name.to_owned();
        write_peft(&folder, &adapter.config(), &tensors);
        refused(&folder)
    };
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    says(named(&format!("{module}.lora_magnitude_vector")), &["DoRA"]);
    says(named("base_model.model.lm_head.weight"), &["modules_to_save"]);
    says(named("base_model.model.model.layers.0.other.lora_A.weight"), &["other", "GGUF"]);
    says(named("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"), &["which is missing"]);
    std::fs::remove_file(folder.join("adapter_config.json")).unwrap();
    says(refused(&folder), &["adapter_config.json"]);
}

#[test]
fn merged_element_matches_f64_sum() {
    let Some(path) = tiny_model("tiny-qwen2-f32.gguf") else { return };
    let (base, dir) = (Gguf::open(&path).unwrap(), tempfile::tempdir().unwrap());
    let name = "blk.1.ffn_down.weight";
    let adapter = RandomAdapter::of(&base, 3, 6, |n| n == name || n == "token_embd.weight");
    let file = adapter.write(&dir.path().join("a.gguf"), false);
    let whole = dir.path().join("whole.gguf");
    merged(&base, &[(&file, 0.5)], &whole, MergedType::F32);
    let whole = Gguf::open(&whole).unwrap();
    assert_eq!(
        whole.tensors().len() - base.tensors().len(),
        usize::from(base.tensor_info("output.weight").is_none())
    );
    for t in base.tensors() {
        let [old, new] = [&base, &whole].map(|f| f.tensor(t.name()).unwrap());
        let Some(c) = adapter.changes.iter().find(|c| c.tensor == t.name()) else {
            assert!(old.data == new.data && old.ty.id == new.ty.id, "{} changed", t.name());
            continue;
        };
        let s = 0.5 * f64::from(adapter.alpha) / c.rank as f64;
        let f32s = |bytes: &[u8], i: usize| {
            f64::from(f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()))
        };
        for row in 0..c.rows {
            for col in 0..c.cols {
                let sum: f64 = (0..c.rank)
                    .map(|k| match t.name() == name {
                        true => f64::from(c.b[row * c.rank + k]) * f64::from(c.a[k * c.cols + col]),
                        false => {
                            f64::from(c.a[row * c.rank + k]) * f64::from(c.b[col * c.rank + k])
                        }
                    })
                    .sum();
                let i = row * c.cols + col;
                let (got, want) = (f32s(new.data, i), f32s(old.data, i) + s * sum);
                // One rounding to f32, and the rounding of the scale.
                assert!((got - want).abs() <= want.abs() * 3e-7 + 1e-8, "{} {i}", t.name());
            }
        }
    }
}
