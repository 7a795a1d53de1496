//! Tests folders of safetensors: how their metadata is read, and the errors of invalid folders.

use crate::it::support::folder::{Folder, post_processor, safetensors};
use crate::it::support::opened::{refused, written};
use kjit_gguf::Gguf;
use serde_json::{Value, json};

#[test]
fn rope_scaling_matches_the_config() {
    let value = |scaling: Value, key: &str| {
        let mut folder = Folder::small("llama");
        folder.config["rope_scaling"] = scaling;
        let (_dir, file) = written(&folder, 1);
        file.opt_f32(&format!("llama.rope.scaling.{key}")).unwrap()
    };
    assert_eq!(value(json!({ "type": "linear", "factor": 4.0 }), "factor"), Some(4.0));
    assert_eq!(value(json!({ "rope_type": "default" }), "factor"), None);
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "attention_factor": 1.0 });
    let on_top = value(yarn, "attn_factor").unwrap();
    assert!((on_top - 1.0 / 1.138_629_4).abs() < 1e-6, "{on_top}");
    // The format of transformers 5, with two kinds of layers.
    let mut folder = Folder::small("gemma3_text");
    folder.config["rope_parameters"] = json!({
        "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 500000.0 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 20000.0 },
    });
    let (_dir, file) = written(&folder, 1);
    let value = |key: &str| file.opt_f32(&format!("gemma3.rope.{key}")).unwrap();
    assert_eq!(
        [value("freq_base"), value("freq_base_swa"), value("scaling.factor")],
        [Some(5e5), Some(2e4), Some(8.0)]
    );
}

#[test]
fn single_weight_file_wins_over_stale_index() {
    let dir = tempfile::tempdir().unwrap();
    let mut folder = Folder::small("qwen3");
    folder.write(dir.path(), 3);
    folder.tensor("model.norm.weight", "F32", &[32], vec![0; 128]);
    folder.write(dir.path(), 1);
    let file = Gguf::open(dir.path()).unwrap();
    assert!(file.tensor("output_norm.weight").unwrap().data.iter().all(|b| *b == 0));
    assert_eq!(file.paths().count(), 2);
    assert!(
        file.remarks()[0].starts_with("model.safetensors is used; the 3 files that"),
        "{:?}",
        file.remarks()
    );
    let index = json!({ "weight_map": { "model.norm.weight": "model.safetensors" } });
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    assert!(Gguf::open(dir.path()).unwrap().remarks().is_empty());
}

#[test]
fn hub_snapshot_folder_is_named_after_its_repository() {
    let dir = tempfile::tempdir().unwrap();
    for (place, want) in [
        ("models--org--Small-0.6B/snapshots/0123abcd", "Small-0.6B"),
        ("models--org--a--b/snapshots/0123abcd", "a--b"),
        ("models--gpt2/snapshots/0123abcd", "gpt2"),
        ("mine/snapshots/0123abcd", "0123abcd"),
        ("Small-0.6B", "Small-0.6B"),
    ] {
        let path = dir.path().join(place);
        Folder::small("qwen3").write(&path, 1);
        assert_eq!(kjit_gguf::folder::name(&path), want);
        assert_eq!(Gguf::open(&path).unwrap().opt_str("general.name").unwrap(), Some(want));
    }
}

#[test]
fn bad_folder_is_refused_with_file_and_tensor() {
    let q = "model.layers.1.self_attn.q_proj.weight";
    type Change = fn(&mut Folder);
    let cases: &[(Change, &[&str])] = &[
        (
            |f| f.config["model_type"] = json!("phi3"),
            &["/config.json", "'phi3'", "llama, mistral, qwen2"],
        ),
        (
            |f| drop(f.config.as_object_mut().unwrap().remove("model_type")),
            &["/config.json", "'model_type' is missing"],
        ),
        (
            |f| f.config["quantization_config"] = json!({ "quant_method": "gptq" }),
            &["/config.json", "'gptq'"],
        ),
        (|f| f.config["hidden_size"] = json!("many"), &["'hidden_size' is 'many'"]),
        (|f| f.config["num_attention_heads"] = json!(0), &["'num_attention_heads' is '0'"]),
        (
            |f| f.config["num_hidden_layers"] = json!(4_000_000_000u32),
            &["'num_hidden_layers'", "10000"],
        ),
        (
            |f| f.config["vocab_size"] = json!(4_000_000_000u32),
            &["/tokenizer.json", "vocab_size in config.json is 4000000000"],
        ),
        (|f| f.config["hidden_act"] = json!("relu"), &["'hidden_act' is 'relu'", "silu"]),
        (
            |f| f.config["rope_scaling"] = json!({ "type": "dynamic", "factor": 2 }),
            &["'type' is 'dynamic'"],
        ),
        (|f| f.config["rope_scaling"] = json!({ "type": "linear" }), &["'factor' is missing"]),
        (
            |f| f.config["intermediate_size"] = json!(47),
            &["/model.safetensors", "gate_proj", "[48, 32]", "[47, 32]"],
        ),
        (
            |f| f.config["num_hidden_layers"] = json!(3),
            &["'layers.2.input_layernorm.weight' is in none"],
        ),
        (
            |f| f.config["num_hidden_layers"] = json!(1),
            &["'model.layers.1.", "does not belong to a qwen3 model"],
        ),
        (
            |f| {
                f.tensor(
                    "model.layers.0.self_attn.q_proj.weight",
                    "F8_E4M3",
                    &[64, 32],
                    vec![0; 2048],
                )
            },
            &["q_proj.weight' is F8_E4M3"],
        ),
        (
            |f| f.tensor("model.layers.0.self_attn.q_proj.weight", "Q9", &[64, 32], vec![0; 2048]),
            &["/model.safetensors", "Q9"],
        ),
        (
            |f| f.tensor("model.layers.0.self_attn.q_proj.weight", "F32", &[64, 32], vec![0; 2048]),
            &["/model.safetensors", "q_proj.weight' has 2048 bytes", "need 8192"],
        ),
        (
            |f| f.tensor("model.layers.0.extra", "F32", &[1], vec![0; 4]),
            &["'model.layers.0.extra' does not belong to"],
        ),
        (
            |f| f.tokenizer["model"]["type"] = json!("Unigram"),
            &["/tokenizer.json", "model is 'Unigram'"],
        ),
        (
            |f| {
                f.tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": "\\w+" }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false } ] })
            },
            &["/tokenizer.json", "pre_tokenizer is '\\w+"],
        ),
        (
            |f| f.tokenizer["normalizer"] = json!({ "type": "Lowercase" }),
            &["/tokenizer.json", "normalizer", "Lowercase"],
        ),
        (
            |f| f.tokenizer["post_processor"] = json!({ "type": "BertProcessing" }),
            &["post_processor", "BertProcessing"],
        ),
        (|f| f.tokenizer["model"]["vocab"]["high"] = json!(300), &["token 'high' has the id 300"]),
        (
            |f| f.tokenizer["model"]["vocab"]["twice"] = json!(259),
            &["has the id 259", "has the same id"],
        ),
        (|f| f.tokenizer["model"]["merges"] = json!([["a"]]), &["/tokenizer.json: cannot be read"]),
        (
            |f| f.others[0].1["eos_token"] = json!("<none>"),
            &["/tokenizer_config.json", "'eos_token' is '<none>'"],
        ),
        (
            |f| f.config["eos_token_id"] = json!([257, 300]),
            &["/config.json", "'eos_token_id'", "id 300 is outside"],
        ),
        (
            |f| f.others.push(("generation_config.json", json!({ "eos_token_id": 300 }))),
            &["/generation_config.json", "'eos_token_id'", "id 300 is outside"],
        ),
        (
            |f| (f.config["eos_token_id"], f.others[0].1["eos_token"]) = (Value::Null, Value::Null),
            &["does not name the token that ends an answer"],
        ),
        (
            |f| f.others[0].1["bos_token"] = Value::Null,
            &["/tokenizer_config.json", "'add_bos_token' is 'true'"],
        ),
        (
            |f| f.tokenizer["post_processor"] = post_processor(None, Some("<none>")),
            &["/tokenizer.json", "a token of the post_processor is '<none>'"],
        ),
        (
            |f| {
                f.tokenizer["post_processor"] = post_processor(Some("</s>"), None);
                f.others[0].1["add_bos_token"] = Value::Null;
            },
            &["/tokenizer.json", "first token", "'</s>'"],
        ),
        (
            |f| {
                f.tokenizer["post_processor"] = post_processor(Some("<s>"), Some("</s>"));
                f.tokenizer["post_processor"]["single"][1] =
                    json!({ "SpecialToken": { "id": "</s>", "type_id": 0 } });
            },
            &["/tokenizer.json", "the post_processor is", "TemplateProcessing"],
        ),
        (
            |f| f.added(json!({ "id": 260, "content": "<x>", "single_word": true })),
            &["'<x>'", "single_word"],
        ),
        (|f| f.config["head_dim"] = json!(65537), &["'head_dim' is '65537'", "65536"]),
        (
            |f| f.config["intermediate_size"] = json!(4_000_000_000u32),
            &["'intermediate_size'", "16777216"],
        ),
        (
            |f| f.config["rope_scaling"] = json!({ "rope_type": "yarn", "factor": 0.5 }),
            &["'factor' is '0.5'", "1 or more"],
        ),
        (
            |f| {
                f.config["rope_parameters"] =
                    json!({ "rope_type": "default", "partial_rotary_factor": 0.5 })
            },
            &["'partial_rotary_factor' is '0.5'"],
        ),
        (
            |f| {
                f.config["rope_parameters"] =
                    json!({ "full_attention": { "rope_type": "default" } })
            },
            &["'rope_parameters'", "one rope_parameters for all layers"],
        ),
    ];
    for (change, words) in cases {
        let (mut folder, dir) = (Folder::small("qwen3"), tempfile::tempdir().unwrap());
        change(&mut folder);
        folder.write(dir.path(), 1);
        let line = refused(dir.path());
        assert!(words.iter().all(|w| line.contains(w)), "{words:?}: {line}");
    }
    let cases: &[(Change, &str)] = &[
        (|f| f.config["sliding_window"] = Value::Null, "'sliding_window' is 'null'"),
        (
            |f| f.config["rope_parameters"] = json!({ "full_attention": {} }),
            "'sliding_attention' is missing",
        ),
        (
            |f| {
                f.config["rope_parameters"] = json!({ "full_attention": {}, "sliding_attention": { "rope_type": "linear", "factor": 2.0 } });
            },
            "'rope_type' is 'linear'",
        ),
    ];
    for (change, words) in cases {
        let (mut folder, dir) = (Folder::small("gemma3_text"), tempfile::tempdir().unwrap());
        change(&mut folder);
        folder.write(dir.path(), 1);
        assert!(refused(dir.path()).contains(words), "{words}: {}", refused(dir.path()));
    }
    // Headers with a duplicate name, and with a name that is too long.
    let dir = tempfile::tempdir().unwrap();
    Folder::small("qwen3").write(dir.path(), 1);
    let weights = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let (a, b) =
        (b"\"model.layers.1.mlp.up_proj.weight\"", b"\"model.layers.0.mlp.up_proj.weight\"");
    let at = bytes.windows(a.len()).position(|window| window == a).unwrap();
    bytes[at..at + b.len()].copy_from_slice(b);
    std::fs::write(&weights, &bytes).unwrap();
    assert!(refused(dir.path()).contains("'model.layers.0.mlp.up_proj.weight' occurs twice"));
    bytes[..8].copy_from_slice(&100_000_001u64.to_le_bytes());
    std::fs::write(&weights, &bytes).unwrap();
    assert!(
        refused(dir.path())
            .contains("its header has 100000001 bytes, more than the limit of 16777216")
    );
    // Files that are missing or truncated, and folders.
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(refused(dir.path()).contains("is a directory, not a model file"));
    Folder::small("qwen3").write(dir.path(), 3);
    Gguf::open(dir.path()).unwrap();
    let second = path("model-00002-of-00003.safetensors");
    let whole = std::fs::read(&second).unwrap();
    for (len, words) in [
        (whole.len() - 1, "truncated"),
        (9, "give a header of"),
        (3, "it has 3 bytes"),
        (0, "is empty"),
    ] {
        std::fs::write(&second, &whole[..len]).unwrap();
        let line = refused(dir.path());
        assert!(
            line.contains(words) && line.contains("model-00002-of-00003.safetensors"),
            "{line}"
        );
    }
    std::fs::write(&second, safetensors(&[(q.to_owned(), "F32", vec![1], vec![0; 4])], 8, 0))
        .unwrap();
    assert!(refused(dir.path()).contains("although model.safetensors.index.json lists it"));
    std::fs::remove_file(&second).unwrap();
    assert!(refused(dir.path()).contains("model-00002-of-00003.safetensors: cannot open"));
    let index = path("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map": {"a": "../b.safetensors"}}"#).unwrap();
    assert!(refused(dir.path()).contains("'../b.safetensors'"));
    std::fs::remove_file(&index).unwrap();
    assert!(refused(dir.path()).contains("several .safetensors files"));
    for (name, words) in
        [("tokenizer.json", "/tokenizer.json: does not exist"), ("config.json", "is a directory")]
    {
        std::fs::remove_file(path(name)).unwrap();
        assert!(refused(dir.path()).contains(words), "{}", refused(dir.path()));
    }
}

/// Python's json module writes these values and reads them.
#[test]
fn infinity_and_nan_are_refused_only_in_used_fields() {
    let (folder, dir) = (Folder::small("qwen3"), tempfile::tempdir().unwrap());
    folder.write(dir.path(), 1);
    let path = dir.path().join("config.json");
    let good = std::fs::read_to_string(&path).unwrap();
    let with =
        |more: &str| std::fs::write(&path, good.replacen('{', &format!("{{{more}, "), 1)).unwrap();
    with(
        r#""time_step_limit": [0.0, Infinity], "low": -Infinity, "none": {"x": NaN}, "text": "Infinity \"NaN""#,
    );
    Gguf::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
    for (word, key) in
        [("Infinity", "rope_theta"), ("-Infinity", "hidden_size"), ("NaN", "hidden_act")]
    {
        let value: Value = serde_json::from_str(&good).unwrap();
        let mut map = value.as_object().unwrap().clone();
        map.insert(key.to_owned(), json!("HERE"));
        std::fs::write(&path, Value::from(map).to_string().replace("\"HERE\"", word)).unwrap();
        let line = refused(dir.path());
        assert!(line.contains(&format!("/config.json: key '{key}' is '{word}'")), "{line}");
    }
    // Python rejects this JSON as well.
    with(r#""a": Infinit"#);
    assert!(refused(dir.path()).contains("cannot be read"));
}

#[test]
fn folder_files_and_quoted_values_have_size_limits() {
    let dir = tempfile::tempdir().unwrap();
    Folder::small("qwen3").write(dir.path(), 3);
    let path = |name: &str| dir.path().join(name);
    for (name, most) in [
        ("config.json", 1 << 20),
        ("generation_config.json", 1 << 20),
        ("chat_template.jinja", 1 << 20),
        ("modules.json", 1 << 20),
        ("tokenizer_config.json", 16 << 20),
        ("model.safetensors.index.json", 16 << 20),
        ("tokenizer.json", 64 << 20),
    ] {
        let old = std::fs::read(path(name)).ok();
        std::fs::File::create(path(name)).and_then(|file| file.set_len(most + 1)).unwrap();
        let line = refused(dir.path());
        assert!(
            line.contains(name) && line.contains(&format!("more than the limit of {most}")),
            "{line}"
        );
        match old {
            Some(old) => std::fs::write(path(name), old).unwrap(),
            None => std::fs::remove_file(path(name)).unwrap(),
        }
    }
    // A long string of a file is cut in the error that quotes it.
    let long = "x".repeat(700_000);
    for (name, text) in [
        ("config.json", json!({ "model_type": long })),
        ("config.json", json!({ "model_type": "qwen3", "hidden_size": { "a": [long, long] } })),
        (
            "config.json",
            json!({ "model_type": "qwen3", "quantization_config": { "quant_method": long } }),
        ),
        ("tokenizer.json", json!({ "model": { "type": long } })),
        (
            "tokenizer.json",
            json!({ "model": { "type": "BPE", "vocab": { long.clone(): 1_000_000 }, "merges": [] } }),
        ),
        (
            "tokenizer.json",
            json!({ "normalizer": { "type": long }, "model": { "type": "BPE", "vocab": {}, "merges": [] } }),
        ),
        ("tokenizer.json", json!({ "model": { "type": "BPE", "vocab": {}, "merges": [[long]] } })),
        (
            "model.safetensors.index.json",
            json!({ "weight_map": { long.clone(): format!("../{long}") } }),
        ),
    ] {
        let old = std::fs::read(path(name)).unwrap();
        std::fs::write(path(name), text.to_string()).unwrap();
        assert!(refused(dir.path()).contains(name));
        std::fs::write(path(name), old).unwrap();
    }
    Gguf::open(dir.path()).unwrap_or_else(|e| panic!("{e}"));
}
