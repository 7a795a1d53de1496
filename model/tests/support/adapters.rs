//! LoRA adapters with random weights, written in both forms. Tests of other crates use this module
//! as well.

use super::folder::{Ten, safetensors};
use super::writer::{Val, Writer, text};
use kjit_model::gguf::Gguf;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Random numbers from a seed.
pub struct Draw(pub u64);

impl Draw {
    /// A number from 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// `n` numbers between `-most` and `most`.
    pub fn floats(&mut self, n: usize, most: f32) -> Vec<f32> {
        (0..n).map(|_| (self.below(2001) as f32 / 1000.0 - 1.0) * most).collect()
    }
}

/// The change of a matrix.
#[derive(Clone)]
pub struct Change {
    /// The tensor of the base.
    pub tensor: String,
    pub rows: usize,
    pub cols: usize,
    pub rank: usize,
    /// `rank` rows of `cols`. For the embedding table: `rows` rows of `rank`.
    pub a: Vec<f32>,
    /// `rows` rows of `rank`. For the embedding table: `cols` rows of `rank`.
    pub b: Vec<f32>,
}

/// A random adapter.
#[derive(Clone)]
pub struct RandomAdapter {
    pub arch: String,
    pub alpha: f32,
    pub changes: Vec<Change>,
}

impl RandomAdapter {
    /// Changes the matrices of the base whose names `takes` accepts, with ranks up to `most`.
    pub fn of(base: &Gguf, seed: u64, most: usize, takes: impl Fn(&str) -> bool) -> RandomAdapter {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let rank = 1 + draw.below(most);
        let mut changes = vec![];
        let mut change = |name: &str, dims: &[u64], draw: &mut Draw| {
            let (cols, rows) = (dims[0] as usize, dims[1] as usize);
            // Both products have about the size of the base's.
            let (a, b) = match name == "token_embd.weight" {
                true => (draw.floats(rows * rank, 0.1), draw.floats(cols * rank, 0.1)),
                false => {
                    let most = (3.0 / cols as f32).sqrt();
                    (draw.floats(rank * cols, most), draw.floats(rows * rank, 0.2))
                }
            };
            changes.push(Change { tensor: name.to_owned(), rows, cols, rank, a, b });
        };
        for tensor in base.tensors().iter().filter(|t| t.dims().len() == 2) {
            if takes(tensor.name()) {
                change(tensor.name(), tensor.dims(), &mut draw);
            }
        }
        let table = base.tensor_info("token_embd.weight").unwrap();
        if base.tensor_info("output.weight").is_none() && takes("output.weight") {
            change("output.weight", table.dims(), &mut draw);
        }
        assert!(!changes.is_empty());
        let alpha = (1 + draw.below(2 * rank)) as f32;
        RandomAdapter { arch: base.architecture().unwrap().to_owned(), alpha, changes }
    }

    /// Writes the adapter as llama.cpp's converter does, in F32 or F16.
    pub fn write(&self, path: &Path, half: bool) -> PathBuf {
        let mut w = Writer::new()
            .key("general.architecture", text(&self.arch))
            .key("general.type", text("adapter"))
            .key("adapter.type", text("lora"))
            .key("adapter.lora.alpha", Val::F32(self.alpha));
        let mut data: Vec<&[f32]> = vec![];
        for c in &self.changes {
            let [a, b] = match c.tensor == "token_embd.weight" {
                true => [[c.rank, c.rows], [c.rank, c.cols]],
                false => [[c.cols, c.rank], [c.rank, c.rows]],
            };
            for (end, dims, values) in [("lora_a", a, &c.a), ("lora_b", b, &c.b)] {
                let dims = dims.map(|d| d as u64);
                w = w.tensor(&format!("{}.{end}", c.tensor), &dims, u32::from(half));
                data.push(values);
            }
        }
        let mut bytes = w.header();
        let start = bytes.len();
        for (t, values) in w.tensors.iter().zip(data) {
            bytes.resize(start + t.offset as usize, 0);
            for v in values {
                match half {
                    true => bytes.extend(half::f16::from_f32(*v).to_le_bytes()),
                    false => bytes.extend(v.to_le_bytes()),
                }
            }
        }
        std::fs::write(path, bytes).unwrap();
        path.to_owned()
    }

    /// The settings of a PEFT folder.
    pub fn config(&self) -> Value {
        json!({
            "peft_type": "LORA", "r": self.changes[0].rank, "lora_alpha": self.alpha,
            "use_rslora": false, "use_dora": false, "bias": "none", "modules_to_save": null,
            "target_modules": ["q_proj", "v_proj"], "alpha_pattern": {}, "rank_pattern": {},
        })
    }

    /// The tensors of a PEFT folder, with rows in the order of the changes.
    pub fn tensors(&self, theirs: impl Fn(&str) -> String) -> Vec<Ten> {
        let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut all = vec![];
        for c in &self.changes {
            let module = theirs(c.tensor.strip_suffix(".weight").unwrap());
            let module = format!("base_model.model.{module}");
            let (rank, rows, cols) = (c.rank as u64, c.rows as u64, c.cols as u64);
            if c.tensor == "token_embd.weight" {
                let a: Vec<f32> =
                    (0..c.a.len()).map(|i| c.a[i % c.rows * c.rank + i / c.rows]).collect();
                let name = format!("{module}.lora_embedding_A");
                all.push((name, "F32", vec![rank, rows], bytes(&a)));
                let name = format!("{module}.lora_embedding_B");
                all.push((name, "F32", vec![cols, rank], bytes(&c.b)));
                continue;
            }
            let name = format!("{module}.lora_A.weight");
            all.push((name, "F32", vec![rank, cols], bytes(&c.a)));
            all.push((format!("{module}.lora_B.weight"), "F32", vec![rows, rank], bytes(&c.b)));
        }
        all
    }
}

/// Writes a PEFT folder.
pub fn write_peft(folder: &Path, config: &Value, tensors: &[Ten]) {
    std::fs::create_dir_all(folder).unwrap();
    let config = serde_json::to_vec(config).unwrap();
    std::fs::write(folder.join("adapter_config.json"), config).unwrap();
    std::fs::write(folder.join("adapter_model.safetensors"), safetensors(tensors, 8, 0)).unwrap();
}

/// The module of a matrix in a folder, from the stem of its name in GGUF.
pub fn module_of(stem: &str) -> String {
    match stem {
        "token_embd" => return "model.embed_tokens".to_owned(),
        "output" => return "lm_head".to_owned(),
        _ => {}
    }
    let (layer, part) = stem.strip_prefix("blk.").unwrap().split_once('.').unwrap();
    let part = match part {
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => panic!("{other}"),
    };
    format!("model.layers.{layer}.{part}")
}
