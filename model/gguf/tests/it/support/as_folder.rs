//! Converts a GGUF file to a folder of safetensors. This is the reverse of llama.cpp's converters.

use super::folder::{Folder, Ten};
use kjit_formats::format::Format;
use kjit_gguf::Gguf;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Names of a layer's tensors in GGUF and in a folder.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

fn name(ours: &str, gemma: bool) -> String {
    let whole = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ];
    let (stem, end) = ours.rsplit_once('.').unwrap();
    let Some(rest) = stem.strip_prefix("blk.") else {
        return format!("{}.{end}", whole.iter().find(|(name, _)| *name == stem).unwrap().1);
    };
    let (layer, part) = rest.split_once('.').unwrap();
    let part = match part {
        "ffn_norm" if gemma => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        part => LAYER.iter().find(|(name, _)| *name == part).unwrap().1,
    };
    format!("model.layers.{layer}.{part}.{end}")
}

/// Converts a file. BF16, F16 and F32 are unchanged; other types become F32.
pub fn as_folder(file: &Gguf) -> Folder {
    let arch = file.architecture().unwrap().to_owned();
    let key = |name: &str| format!("{arch}.{name}");
    let u = |name: &str| file.opt_u32(&key(name)).unwrap();
    let heads = [u("attention.head_count").unwrap(), u("attention.head_count_kv").unwrap()];
    let width = u("embedding_length").unwrap();
    let head = u("attention.key_length").unwrap_or(width / heads[0]);
    let tied = file.tensor_info("output.weight").is_none();
    let model_type = if arch == "gemma3" { "gemma3_text" } else { &arch };
    let f = |name: &str| file.opt_f32(&key(name)).unwrap();
    let mut config = json!({
        "model_type": model_type, "architectures": ["SomethingForCausalLM"], "hidden_size": width,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": head,
        "intermediate_size": u("feed_forward_length"), "num_hidden_layers": u("block_count"),
        "vocab_size": file.tensor_info("token_embd.weight").unwrap().dims()[1],
        "max_position_embeddings": u("context_length"), "rms_norm_eps": f("attention.layer_norm_rms_epsilon"),
        "rope_theta": f("rope.freq_base"), "tie_word_embeddings": tied, "rope_scaling": null,
        "attention_bias": file.tensor_info("blk.0.attn_output.bias").is_some(),
        "mlp_bias": file.tensor_info("blk.0.ffn_up.bias").is_some(),
    });
    if let Some(kind) = file.opt_str(&key("rope.scaling.type")).unwrap() {
        config["rope_scaling"] = json!({
            "rope_type": kind, "factor": f("rope.scaling.factor"),
            "original_max_position_embeddings": u("rope.scaling.original_context_length"),
        });
    }
    if arch == "gemma3" {
        config["sliding_window"] = json!(u("attention.sliding_window"));
        config["rope_local_base_freq"] = json!(f("rope.freq_base_swa"));
        config["query_pre_attn_scalar"] = json!(head);
    }
    // The reader computes the divisors of the frequencies from the config.
    let tensors =
        file.tensors().iter().filter(|info| info.name() != "rope_freqs.weight").map(|info| {
            let tensor = file.tensor(info.name()).unwrap();
            let format = Format::by_id(tensor.ty.id).unwrap();
            let (dtype, mut bytes) = match tensor.ty.name {
                "F32" => ("F32", tensor.data.to_vec()),
                "F16" => ("F16", tensor.data.to_vec()),
                "BF16" => ("BF16", tensor.data.to_vec()),
                _ => {
                    let mut values = vec![0.0f32; info.elements() as usize];
                    format.decode(tensor.data, &mut values).unwrap();
                    ("F32", values.iter().flat_map(|v| v.to_le_bytes()).collect())
                }
            };
            let shape: Vec<u64> = tensor.dims.iter().rev().copied().collect();
            let part = info.name().rsplit('.').nth(1).unwrap();
            let turned = ["attn_q", "attn_k"]
                .iter()
                .position(|name| *name == part)
                .filter(|_| arch == "llama");
            if let Some(which) = turned {
                bytes = halves(&bytes, heads[which] as usize, head as usize);
            }
            if arch == "gemma3" && part.ends_with("norm") {
                let less = |b: &[u8; 4]| (f32::from_le_bytes(*b) - 1.0).to_le_bytes();
                bytes = bytes.as_chunks::<4>().0.iter().flat_map(less).collect();
            }
            (name(info.name(), arch == "gemma3"), dtype, shape, bytes)
        });
    let tensors: Vec<Ten> = tensors.collect();
    let (tokenizer, tokenizer_config) = tokenizer(file);
    if tokenizer_config["eos_token"].is_null() {
        // A folder needs an end token.
        config["eos_token_id"] = json!(0);
    }
    Folder { config, tokenizer, others: vec![("tokenizer_config.json", tokenizer_config)], tensors }
}

/// Undoes the converter's permutation of query and key rows. Rotated pairs are again half a head
/// apart, not adjacent.
fn halves(bytes: &[u8], heads: usize, head: usize) -> Vec<u8> {
    let row = bytes.len() / heads / head;
    let from = |h: usize, i: usize| h * head + 2 * (i % (head / 2)) + i / (head / 2);
    let rows = (0..heads).flat_map(|h| (0..head).map(move |i| from(h, i)));
    rows.flat_map(|r| bytes[r * row..(r + 1) * row].iter().copied()).collect()
}

/// Creates `tokenizer.json` and `tokenizer_config.json` in the format of published models.
pub fn tokenizer(file: &Gguf) -> (Value, Value) {
    let get = |key: &str| format!("tokenizer.ggml.{key}");
    let tokens: Vec<String> =
        file.strs(&get("tokens")).unwrap().iter().map(|t| (*t).to_owned()).collect();
    let types = file.opt_i32s(&get("token_type")).unwrap().unwrap_or_else(|| vec![1; tokens.len()]);
    let pieces = file.require_str(&get("model")).unwrap() == "llama";
    let spelled = |id: usize| match (pieces, types[id]) {
        (true, 4) => tokens[id].replace(' ', "\u{2581}"),
        _ => tokens[id].clone(),
    };
    let mut vocab = Map::new();
    let mut added = vec![];
    for (id, ty) in types.iter().enumerate() {
        if matches!(ty, 2..=4) {
            let special = *ty != 4;
            added.push(json!({ "id": id, "content": spelled(id), "special": special, "normalized": false }));
        }
        // Published SentencePiece files have all tokens in both lists.
        if pieces || !matches!(ty, 2..=4) {
            vocab.insert(spelled(id), json!(id));
        }
    }
    let id = |key: &str| file.opt_u32(&get(key)).unwrap();
    let text = |key: &str| id(key).and_then(|id| tokens.get(id as usize));
    let mut config = json!({
        "bos_token": text("bos_token_id"), "eos_token": { "content": text("eos_token_id") },
        "pad_token": text("padding_token_id"),
        "add_bos_token": file.opt_bool(&get("add_bos_token")).unwrap(),
        "add_eos_token": file.opt_bool(&get("add_eos_token")).unwrap(),
        "chat_template": file.opt_str("tokenizer.chat_template").unwrap(),
    });
    if text("eos_token_id").is_none() {
        config["eos_token"] = Value::Null;
    }
    let mut tokenizer = if pieces { sentencepiece(file, vocab) } else { byte_level(file, vocab) };
    tokenizer["added_tokens"] = json!(added);
    (tokenizer, config)
}

fn byte_level(file: &Gguf, vocab: Map<String, Value>) -> Value {
    let pre = file.require_str("tokenizer.ggml.pre").unwrap();
    let merges: Vec<Value> = file
        .strs("tokenizer.ggml.merges")
        .unwrap()
        .iter()
        .enumerate()
        .map(|(i, merge)| {
            // Old files write merges as strings, new files as pairs.
            let (left, right) = merge.split_once(' ').unwrap();
            if i % 2 == 0 { json!([left, right]) } else { json!(merge) }
        })
        .collect();
    let bytes = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex });
    let split = |regex: &str| {
        json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false }, bytes(false) ] })
    };
    let digits = |n: &str| {
        format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{n}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let (pre_tokenizer, normalizer) = match pre {
        "gpt-2" => (bytes(true), Value::Null),
        "smollm" => (
            json!({ "type": "Sequence", "pretokenizers": [{ "type": "Digits", "individual_digits": true }, bytes(true)] }),
            Value::Null,
        ),
        "llama-bpe" => (split(&digits("{1,3}")), Value::Null),
        "qwen2" => (split(&digits("")), json!({ "type": "NFC" })),
        other => panic!("no tokenizer.json of {other} is known here"),
    };
    // In Llama 3 this means that a text starts with BOS.
    let bos = file.opt_u32("tokenizer.ggml.bos_token_id").unwrap();
    let bos = bos.and_then(|id| {
        Some(file.strs("tokenizer.ggml.tokens").unwrap().get(id as usize)?.to_string())
    });
    let template = json!({ "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": bos, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }] });
    let post = json!({ "type": "Sequence", "processors": [bytes(true), template] });
    json!({
        "version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": if pre == "llama-bpe" { post } else { bytes(true) },
        "model": { "type": "BPE", "ignore_merges": pre == "llama-bpe", "byte_fallback": false, "vocab": vocab, "merges": merges },
    })
}

/// Creates merges from scores, as transformers' converter does: all pairs of tokens that form a
/// token.
fn sentencepiece(file: &Gguf, vocab: Map<String, Value>) -> Value {
    let scores = file.f32s("tokenizer.ggml.scores").unwrap();
    let ids: HashMap<&str, usize> =
        vocab.iter().map(|(text, id)| (text.as_str(), id.as_u64().unwrap() as usize)).collect();
    let mut by_id: Vec<&str> = vec![""; scores.len()];
    ids.iter().for_each(|(text, id)| by_id[*id] = text);
    let mut merges = vec![];
    for (id, text) in by_id.iter().enumerate() {
        let mut cuts: Vec<(&str, &str)> = text
            .char_indices()
            .skip(1)
            .map(|(at, _)| text.split_at(at))
            .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
            .collect();
        cuts.sort_by_key(|(left, right)| (ids[left], ids[right]));
        merges.extend(cuts.into_iter().map(|(left, right)| (scores[id], left, right)));
    }
    let chars = |text: &str| text.chars().count();
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then(chars(b.1).cmp(&chars(a.1))).then(chars(b.2).cmp(&chars(a.2)))
    });
    let merges: Vec<Value> =
        merges.into_iter().map(|(_, left, right)| json!([left, right])).collect();
    let front = file.opt_bool("tokenizer.ggml.add_space_prefix").unwrap().unwrap_or(true);
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
    let prepend = json!({ "type": "Prepend", "prepend": "\u{2581}" });
    let normalizer = if front {
        json!({ "type": "Sequence", "normalizers": [prepend, replace] })
    } else {
        replace
    };
    json!({
        "version": "1.0", "normalizer": normalizer, "pre_tokenizer": null,
        "post_processor": null,
        "model": { "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges },
    })
}
