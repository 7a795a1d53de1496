//! Model files with real shapes that use no disk space: the header is written, and the data is a
//! hole in the file.

use super::writer::{Ten, Val, Writer, text};
use kjit_kernels::format::Format;
use kjit_model::gguf::Gguf;
use std::io::Write;
use std::sync::Arc;

/// The sizes of a model.
pub struct Shape {
    pub arch: &'static str,
    pub layers: u32,
    pub width: u64,
    pub ffn: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub vocab: u64,
    pub tied: bool,
    /// Number of experts, of chosen experts, and an expert's width; `None` for a dense model.
    pub experts: Option<(u32, u32, u64)>,
    /// The type of the tensor with this name.
    pub types: fn(&str) -> &'static str,
}

fn q4_k_m(name: &str) -> &'static str {
    match name {
        n if n.ends_with("attn_v.weight") || n.contains("ffn_down") || n.starts_with("output.") => {
            "Q6_K"
        }
        _ => "Q4_K",
    }
}

/// Llama 3.1 8B in Q4_K_M.
pub const LLAMA_8B: Shape = Shape {
    arch: "llama",
    layers: 32,
    width: 4096,
    ffn: 14336,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 128_256,
    tied: false,
    experts: None,
    types: q4_k_m,
};

/// Llama 3.1 8B in F16.
pub const LLAMA_8B_F16: Shape = Shape { types: |_| "F16", ..LLAMA_8B };

/// SmolLM2 135M in Q8_0.
pub const SMOLLM2: Shape = Shape {
    layers: 30,
    width: 576,
    ffn: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
    tied: true,
    types: |_| "Q8_0",
    ..LLAMA_8B
};

/// Qwen3 30B-A3B in Q4_K_M.
pub const QWEN3_MOE: Shape = Shape {
    arch: "qwen3moe",
    layers: 48,
    width: 2048,
    ffn: 6144,
    heads: 32,
    kv_heads: 4,
    head_dim: 128,
    vocab: 151_936,
    tied: false,
    experts: Some((128, 8, 768)),
    types: q4_k_m,
};

impl Shape {
    /// Opens the file, which is removed when the process ends.
    pub fn open(&self) -> Arc<Gguf> {
        let key = |name: &str| format!("{}.{name}", self.arch);
        let mut w = Writer::new()
            .key("general.architecture", text(self.arch))
            .key(&key("context_length"), Val::U32(131_072))
            .key(&key("block_count"), Val::U32(self.layers))
            .key(&key("embedding_length"), Val::U32(self.width as u32))
            .key(&key("feed_forward_length"), Val::U32(self.ffn as u32))
            .key(&key("attention.head_count"), Val::U32(self.heads))
            .key(&key("attention.head_count_kv"), Val::U32(self.kv_heads))
            .key(&key("attention.key_length"), Val::U32(self.head_dim))
            .key(&key("attention.value_length"), Val::U32(self.head_dim))
            .key(&key("attention.layer_norm_rms_epsilon"), Val::F32(1e-5));
        if let Some((experts, used, ffn)) = self.experts {
            w = w
                .key(&key("expert_count"), Val::U32(experts))
                .key(&key("expert_used_count"), Val::U32(used))
                .key(&key("expert_feed_forward_length"), Val::U32(ffn as u32));
        }
        let (q, kv) =
            (u64::from(self.heads * self.head_dim), u64::from(self.kv_heads * self.head_dim));
        let mut add = |name: &str, dims: &[u64], ty: &str| {
            let format = Format::by_name(ty).unwrap();
            let rows: u64 = dims[1..].iter().product();
            let offset = w.data.next_multiple_of(w.alignment);
            w.data = offset + rows * format.row_bytes(dims[0] as usize).unwrap() as u64;
            let (name, dims) = (name.as_bytes().to_vec(), dims.to_vec());
            w.tensors.push(Ten { name, dims, n_dims: None, ty: format.ggml_id, offset });
        };
        let types = self.types;
        let matrix = |name: String, dims: &[u64], add: &mut dyn FnMut(&str, &[u64], &str)| {
            add(&name, dims, types(&name))
        };
        matrix("token_embd.weight".into(), &[self.width, self.vocab], &mut add);
        for l in 0..self.layers {
            let name = |part: &str| format!("blk.{l}.{part}.weight");
            add(&name("attn_norm"), &[self.width], "F32");
            add(&name("ffn_norm"), &[self.width], "F32");
            if self.arch == "qwen3moe" {
                add(&name("attn_q_norm"), &[u64::from(self.head_dim)], "F32");
                add(&name("attn_k_norm"), &[u64::from(self.head_dim)], "F32");
            }
            matrix(name("attn_q"), &[self.width, q], &mut add);
            matrix(name("attn_k"), &[self.width, kv], &mut add);
            matrix(name("attn_v"), &[self.width, kv], &mut add);
            matrix(name("attn_output"), &[q, self.width], &mut add);
            match self.experts {
                None => {
                    matrix(name("ffn_gate"), &[self.width, self.ffn], &mut add);
                    matrix(name("ffn_up"), &[self.width, self.ffn], &mut add);
                    matrix(name("ffn_down"), &[self.ffn, self.width], &mut add);
                }
                Some((n, _, ffn)) => {
                    add(&name("ffn_gate_inp"), &[self.width, u64::from(n)], "F32");
                    matrix(name("ffn_gate_exps"), &[self.width, ffn, u64::from(n)], &mut add);
                    matrix(name("ffn_up_exps"), &[self.width, ffn, u64::from(n)], &mut add);
                    matrix(name("ffn_down_exps"), &[ffn, self.width, u64::from(n)], &mut add);
                }
            }
        }
        add("output_norm.weight", &[self.width], "F32");
        if !self.tied {
            matrix("output.weight".into(), &[self.width, self.vocab], &mut add);
        }
        let header = w.header();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&header).unwrap();
        file.as_file().set_len(header.len() as u64 + w.data).unwrap();
        Arc::new(Gguf::open(file.path()).unwrap())
    }
}
