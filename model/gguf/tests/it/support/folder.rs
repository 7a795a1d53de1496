//! Writes folders of safetensors for tests, including small random models of any type. Tests of the
//! command use this module as well.

#![allow(dead_code, reason = "each test program uses its part")]

use serde_json::{Map, Value, json};
use std::path::Path;

/// A tensor to write: name, type, shape with rows first, bytes.
pub type Ten = (String, &'static str, Vec<u64>, Vec<u8>);

/// A folder to write.
pub struct Folder {
    /// `config.json`.
    pub config: Value,
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`, `generation_config.json` and the like.
    pub others: Vec<(&'static str, Value)>,
    /// The tensors of the safetensors files.
    pub tensors: Vec<Ten>,
}

/// The bytes of a safetensors file. The header is padded so that the data begin at a multiple of
/// `align`; `behind` bytes follow the data.
pub fn safetensors(tensors: &[Ten], align: usize, behind: usize) -> Vec<u8> {
    let (mut header, mut at) = (Map::new(), 0);
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for (name, dtype, shape, bytes) in tensors {
        header.insert(
            name.clone(),
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes.len()] }),
        );
        at += bytes.len();
    }
    let mut text = serde_json::to_vec(&Value::Object(header)).unwrap();
    let len = (8 + text.len()).next_multiple_of(align) + behind;
    text.resize(len - 8, b' ');
    let data = tensors.iter().flat_map(|t| t.3.iter().copied());
    (text.len() as u64).to_le_bytes().into_iter().chain(text).chain(data).collect()
}

impl Folder {
    /// Writes the folder, with its tensors in one file, or in several files and an index.
    pub fn write(&self, to: &Path, files: usize) {
        std::fs::create_dir_all(to).unwrap();
        let json = |name: &str, value: &Value| {
            std::fs::write(to.join(name), serde_json::to_vec(value).unwrap()).unwrap()
        };
        json("config.json", &self.config);
        json("tokenizer.json", &self.tokenizer);
        self.others.iter().for_each(|(name, value)| json(name, value));
        if files == 1 {
            return std::fs::write(to.join("model.safetensors"), safetensors(&self.tensors, 8, 0))
                .unwrap();
        }
        let mut map = Map::new();
        for (i, part) in self.tensors.chunks(self.tensors.len().div_ceil(files)).enumerate() {
            let name = format!("model-{:05}-of-{files:05}.safetensors", i + 1);
            part.iter().for_each(|t| drop(map.insert(t.0.clone(), json!(name))));
            std::fs::write(to.join(name), safetensors(part, 8, 0)).unwrap();
        }
        json("model.safetensors.index.json", &json!({ "metadata": {}, "weight_map": map }));
    }

    /// A small model of this `model_type` with random weights.
    pub fn small(model_type: &str) -> Folder {
        Folder::wide(model_type, 48)
    }

    /// Like [`Folder::small`], with `inner` elements in the feed-forward layers.
    pub fn wide(model_type: &str, inner: u64) -> Folder {
        let gemma = model_type.starts_with("gemma3");
        let (width, heads, kv_heads, head, layers) = (32, 4, 2, 16, 2);
        let mut config = json!({
            "model_type": model_type, "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": 300,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": gemma,
            "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 257,
        });
        if gemma {
            for (key, value) in [
                ("hidden_activation", json!("gelu_pytorch_tanh")),
                ("query_pre_attn_scalar", json!(head)),
                ("sliding_window", json!(8)),
                ("rope_local_base_freq", json!(10000.0)),
            ] {
                config[key] = value;
            }
        }
        let mut seed = 7u64;
        let mut tensors = vec![];
        let mut add = |name: String, shape: Vec<u64>, middle: f32| {
            let scale = if shape.len() == 1 { 0.1 } else { 0.3 };
            let n: u64 = shape.iter().product();
            let bytes = (0..n).flat_map(|_| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let x = (seed >> 40) as f32 / (1 << 23) as f32 - 1.0;
                // The upper half of an f32 is a bfloat16.
                ((middle + scale * x).to_bits() >> 16).to_le_bytes().into_iter().take(2)
            });
            tensors.push((name, "BF16", shape, bytes.collect()));
        };
        let one = if gemma { 0.0 } else { 1.0 };
        let (q, kv) = (heads * head, kv_heads * head);
        add("model.embed_tokens.weight".to_owned(), vec![300, width], 0.0);
        for i in 0..layers {
            let name = |name: &str| format!("model.layers.{i}.{name}");
            add(name("input_layernorm.weight"), vec![width], one);
            add(name("post_attention_layernorm.weight"), vec![width], one);
            if gemma {
                add(name("pre_feedforward_layernorm.weight"), vec![width], one);
                add(name("post_feedforward_layernorm.weight"), vec![width], one);
            }
            for (part, rows) in [("q", q), ("k", kv), ("v", kv)] {
                add(name(&format!("self_attn.{part}_proj.weight")), vec![rows, width], 0.0);
                if model_type == "qwen2" {
                    add(name(&format!("self_attn.{part}_proj.bias")), vec![rows], 0.0);
                }
                if (gemma || model_type == "qwen3") && part != "v" {
                    add(name(&format!("self_attn.{part}_norm.weight")), vec![head], one);
                }
            }
            add(name("self_attn.o_proj.weight"), vec![width, q], 0.0);
            add(name("mlp.gate_proj.weight"), vec![inner, width], 0.0);
            add(name("mlp.up_proj.weight"), vec![inner, width], 0.0);
            add(name("mlp.down_proj.weight"), vec![width, inner], 0.0);
        }
        add("model.norm.weight".to_owned(), vec![width], one);
        if !gemma {
            add("lm_head.weight".to_owned(), vec![300, width], 0.0);
        }
        let others = vec![(
            "tokenizer_config.json",
            json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" }, "add_bos_token": true,
                "chat_template": "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}" }),
        )];
        Folder { config, tokenizer: bytes_tokenizer(), others, tensors }
    }

    /// Replaces or adds a tensor.
    pub fn tensor(&mut self, name: &str, dtype: &'static str, shape: &[u64], bytes: Vec<u8>) {
        self.tensors.retain(|t| t.0 != name);
        self.tensors.push((name.to_owned(), dtype, shape.to_vec(), bytes));
    }

    /// Adds an entry to `added_tokens` of `tokenizer.json`.
    pub fn added(&mut self, token: Value) {
        self.tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    }
}

/// A post-processor that puts these tokens before and after a text.
pub fn post_processor(first: Option<&str>, last: Option<&str>) -> Value {
    let token = |text: Option<&str>| {
        text.map(|text| json!({ "SpecialToken": { "id": text, "type_id": 0 } }))
    };
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let single: Vec<Value> =
        [token(first), Some(text), token(last)].into_iter().flatten().collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {} })
}

/// A tokenizer with GPT-2's byte letters and two merges.
fn bytes_tokenizer() -> Value {
    let mut vocab: Map<String, Value> =
        letters().into_iter().enumerate().map(|(i, c)| (c.to_string(), json!(i))).collect();
    vocab.insert("he".to_owned(), json!(258));
    vocab.insert("hel".to_owned(), json!(259));
    json!({
        "version": "1.0",
        "added_tokens": [
            { "id": 256, "content": "<s>", "special": true, "normalized": false },
            { "id": 257, "content": "</s>", "special": true, "normalized": false },
        ],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "unk_token": null, "byte_fallback": false, "vocab": vocab, "merges": ["h e", ["he", "l"]] },
    })
}

/// The letters that represent the bytes 0 to 255 in GPT-2's alphabet.
pub fn letters() -> Vec<char> {
    let plain =
        |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    let mut letter = |b: u32| {
        if plain(b) {
            return char::from_u32(b).unwrap();
        }
        next += 1;
        char::from_u32(next - 1).unwrap()
    };
    (0..256).map(&mut letter).collect()
}
