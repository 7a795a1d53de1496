//! Common models as data: `kjit warm` without a model compiles their kernels.
//!
//! A kernel is compiled for the exact shapes of a model, so the common kernels are the kernels of
//! common models. Each row is a model file reduced to one layer of each kind: Q4_K_M files mix two
//! sets of tensor types, and Gemma 3 has layers with and without a window. Tensors have the types
//! that llama.cpp gives them in `Q4_K_M` (rows that are not a multiple of 256 use Q5_0 and Q8_0).
//! The list is short because all of it must compile in one minute on two cores.

use crate::arch;
use crate::{Graph, GraphError};
use kjit_formats::format::Format;
use kjit_gguf::Gguf;

/// A common model: its name, and the sizes that determine its kernels.
#[derive(Debug, Clone, Copy)]
pub struct Common {
    /// The usual name, with the quantisation.
    pub name: &'static str,
    family: &'static Family,
    width: u32,
    ffn: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    vocab: u32,
    /// The output matrix is the embedding.
    tied: bool,
    types: Types,
}

/// The types of a model's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Types {
    /// Q4_K_M: `attn_v` and `ffn_down` are Q6_K in even layers and Q4_K in odd ones.
    Q4KM,
    /// The type of all matrices, and the type of the embedding.
    All(&'static str, &'static str),
}

/// Keys and tensors of an architecture, in addition to the matrices that every architecture has.
#[derive(Debug)]
struct Family {
    arch: &'static str,
    /// Number of layers to write. It covers every kind of layer with every mix of types.
    layers: u32,
    /// Norms of a layer with one weight for each element of a hidden state. `head_norms`: norms
    /// with one weight for each element of a head.
    norms: &'static [&'static str],
    head_norms: &'static [&'static str],
    /// Matrices of a layer that have a bias.
    biases: &'static [&'static str],
    /// Mixture of experts: `[experts, experts used by a token]`. `ffn` of a row is then the width
    /// of one expert.
    experts: Option<[u32; 2]>,
}

const LLAMA: Family = Family {
    arch: "llama",
    layers: 2,
    norms: &["attn_norm", "ffn_norm"],
    head_norms: &[],
    biases: &[],
    experts: None,
};
const QWEN2: Family = Family { arch: "qwen2", biases: &["attn_q", "attn_k", "attn_v"], ..LLAMA };
const QWEN3: Family =
    Family { arch: "qwen3", head_norms: &["attn_q_norm", "attn_k_norm"], ..LLAMA };
const QWEN3_MOE: Family = Family { arch: "qwen3moe", experts: Some([128, 8]), ..QWEN3 };
const GEMMA3: Family = Family {
    arch: "gemma3",
    // Every sixth layer has full attention; the others have a window.
    layers: 6,
    norms: &["attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"],
    ..QWEN3
};

const fn row(
    name: &'static str,
    family: &'static Family,
    sizes: [u32; 6],
    tied: bool,
    types: Types,
) -> Common {
    let [width, ffn, heads, kv_heads, head_dim, vocab] = sizes;
    Common { name, family, width, ffn, heads, kv_heads, head_dim, vocab, tied, types }
}

/// Every common model.
pub const COMMON: &[Common] = &[
    row("Llama 3.1 8B Q4_K_M", &LLAMA, [4096, 14336, 32, 8, 128, 128_256], false, Types::Q4KM),
    row("Llama 3.2 3B Q4_K_M", &LLAMA, [3072, 8192, 24, 8, 128, 128_256], true, Types::Q4KM),
    row("Llama 3.2 1B Q4_K_M", &LLAMA, [2048, 8192, 32, 8, 64, 128_256], true, Types::Q4KM),
    row("Mistral 7B v0.3 Q4_K_M", &LLAMA, [4096, 14336, 32, 8, 128, 32_768], false, Types::Q4KM),
    row("Qwen2.5 7B Q4_K_M", &QWEN2, [3584, 18944, 28, 4, 128, 152_064], false, Types::Q4KM),
    row("Qwen3 8B Q4_K_M", &QWEN3, [4096, 12288, 32, 8, 128, 151_936], false, Types::Q4KM),
    row("Qwen3 4B Q4_K_M", &QWEN3, [2560, 9728, 32, 8, 128, 151_936], true, Types::Q4KM),
    row("Gemma 3 4B Q4_K_M", &GEMMA3, [2560, 10240, 8, 4, 256, 262_208], true, Types::Q4KM),
    row(
        "Llama 3.1 8B Q8_0",
        &LLAMA,
        [4096, 14336, 32, 8, 128, 128_256],
        false,
        Types::All("Q8_0", "Q8_0"),
    ),
    row("Qwen3 30B A3B Q4_K_M", &QWEN3_MOE, [2048, 768, 32, 4, 128, 151_936], false, Types::Q4KM),
    row(
        "SmolLM2 135M Q4_1",
        &LLAMA,
        [576, 1536, 9, 3, 64, 49_152],
        true,
        Types::All("Q4_1", "Q8_0"),
    ),
];

/// A model of the smallest sizes, for devices that are too slow for the common ones.
pub const TINY: Common =
    row("tiny llama Q8_0", &LLAMA, [64, 128, 2, 1, 32, 320], true, Types::All("Q8_0", "Q8_0"));

impl Common {
    /// Builds the model's graph with few layers.
    ///
    /// # Errors
    /// The row does not describe a valid model. This is an error in the table.
    pub fn graph(&self) -> Result<Graph, GraphError> {
        self.with_layers(self.family.layers)
    }

    /// Builds the model's graph with `layers` layers.
    pub fn with_layers(&self, layers: u32) -> Result<Graph, GraphError> {
        let (header, data) = self.file(layers);
        arch::build(&Gguf::without_data(self.name, &header, data)?)
    }

    /// A file with `layers` layers and generated weights, and its graph. Each number in the weights
    /// is finite and small, and norms multiply by one. It needs as much memory as the model: see
    /// [`Common::bytes`].
    ///
    /// # Errors
    /// See [`Common::graph`]; also if there is not enough memory.
    pub fn made_up(&self, layers: u32) -> Result<(Gguf, Graph), GraphError> {
        let (header, data) = self.file(layers);
        let shapes = Gguf::without_data(self.name, &header, data)?;
        // The upper byte of an f16 or f32 scale is below 0x14: at most 9e-4.
        let mut state = 1u32;
        let pattern: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 24) as u8 % 20) | ((state >> 16) as u8 & 0x80)
        })
        .take(PATTERN)
        .collect();
        let gguf = Gguf::filled(self.name, &header, data, |bytes| {
            for piece in bytes.chunks_mut(PATTERN) {
                piece.iter_mut().zip(&pattern).for_each(|(to, from)| *to = *from);
            }
            for tensor in shapes.tensors().iter().filter(|t| t.dims().len() == 1) {
                let start = usize::try_from(tensor.data_offset()).unwrap_or(usize::MAX);
                let len = 4 * tensor.dims().iter().product::<u64>() as usize;
                let ones = bytes.get_mut(start..start.saturating_add(len)).unwrap_or_default();
                ones.chunks_exact_mut(4).for_each(|one| one.copy_from_slice(&1f32.to_le_bytes()));
            }
        })?;
        let graph = arch::build(&gguf)?;
        Ok((gguf, graph))
    }

    /// Bytes of the file with `layers` layers.
    #[must_use]
    pub fn bytes(&self, layers: u32) -> u64 {
        let (header, data) = self.file(layers);
        header.len() as u64 + data
    }

    /// The type name of a tensor: its layer, its name without prefix and suffix, and its row
    /// length.
    fn type_of(&self, layer: u32, part: &str, cols: u32) -> &'static str {
        let wanted = match self.types {
            Types::All(_, embedding) if part == "token_embd" => return embedding,
            Types::All(all, _) => return all,
            Types::Q4KM => match part {
                "token_embd" if self.tied => "Q6_K",
                "output" => "Q6_K",
                "attn_v" | "ffn_down" | "ffn_down_exps" if layer.is_multiple_of(2) => "Q6_K",
                _ => "Q4_K",
            },
        };
        match wanted {
            _ if cols.is_multiple_of(256) => wanted,
            "Q6_K" => "Q8_0",
            _ => "Q5_0",
        }
    }

    /// A GGUF file's header, and the number of data bytes that would follow it.
    fn file(&self, layers: u32) -> (Vec<u8>, u64) {
        let (mut keys, mut tensors) = (List::default(), List::default());
        let family = self.family;
        keys.text("general.architecture", family.arch);
        let key = |name: &str| format!("{}.{name}", family.arch);
        for (name, value) in [
            ("context_length", 8192),
            ("block_count", layers),
            ("embedding_length", self.width),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            // Only Gemma 3 reads this key. This is the value of its sizes from 4B.
            ("attention.sliding_window", 1024),
        ] {
            keys.number(&key(name), value);
        }
        if let Some([count, used]) = family.experts {
            for (name, value) in [
                ("expert_count", count),
                ("expert_used_count", used),
                ("expert_feed_forward_length", self.ffn),
            ] {
                keys.number(&key(name), value);
            }
        }
        keys.float(&key("attention.layer_norm_rms_epsilon"), 1e-6);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut at = 0;
        let mut add = |name: &str, ty: &str, dims: &[u32]| at = tensors.tensor(name, ty, dims, at);
        add(
            "token_embd.weight",
            self.type_of(0, "token_embd", self.width),
            &[self.width, self.vocab],
        );
        add("output_norm.weight", "F32", &[self.width]);
        if !self.tied {
            add("output.weight", self.type_of(0, "output", self.width), &[self.width, self.vocab]);
        }
        let norms = family.norms.iter().map(|part| (part, self.width));
        let norms: Vec<_> =
            norms.chain(family.head_norms.iter().map(|part| (part, self.head_dim))).collect();
        for l in 0..layers {
            for (part, len) in &norms {
                add(&format!("blk.{l}.{part}.weight"), "F32", &[*len]);
            }
            for (part, cols, rows) in [
                ("attn_q", self.width, q),
                ("attn_k", self.width, kv),
                ("attn_v", self.width, kv),
                ("attn_output", q, self.width),
            ] {
                add(&format!("blk.{l}.{part}.weight"), self.type_of(l, part, cols), &[cols, rows]);
                if family.biases.contains(&part) {
                    add(&format!("blk.{l}.{part}.bias"), "F32", &[rows]);
                }
            }
            let (kind, experts) = match family.experts {
                Some([count, _]) => {
                    add(&format!("blk.{l}.ffn_gate_inp.weight"), "F32", &[self.width, count]);
                    ("_exps", Some(count))
                }
                None => ("", None),
            };
            for (part, cols, rows) in [
                ("ffn_gate", self.width, self.ffn),
                ("ffn_up", self.width, self.ffn),
                ("ffn_down", self.ffn, self.width),
            ] {
                let part = format!("{part}{kind}");
                let dims: Vec<u32> = [cols, rows].into_iter().chain(experts).collect();
                add(&format!("blk.{l}.{part}.weight"), self.type_of(l, &part, cols), &dims);
            }
        }
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(tensors.count.to_le_bytes());
        out.extend(keys.count.to_le_bytes());
        out.extend(keys.bytes);
        out.extend(tensors.bytes);
        out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
        (out, at)
    }
}

/// Number of bytes after which the generated weights repeat. It is a prime, so rows differ.
const PATTERN: usize = 1_048_573;
/// GGUF's default alignment of tensor data in bytes.
const ALIGN: u64 = 32;

/// Entries of a GGUF header (keys or tensors), encoded in order.
#[derive(Default)]
struct List {
    count: u64,
    bytes: Vec<u8>,
}

impl List {
    fn name(&mut self, name: &str) {
        self.count += 1;
        self.string(name);
    }

    fn string(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.name(key);
        self.bytes.extend(8u32.to_le_bytes());
        self.string(value);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.name(key);
        self.bytes.extend(4u32.to_le_bytes());
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.name(key);
        self.bytes.extend(6u32.to_le_bytes());
        self.bytes.extend(value.to_le_bytes());
    }

    /// Adds the entry of a tensor whose data is at `at`. Returns the next tensor's offset.
    fn tensor(&mut self, name: &str, ty: &str, dims: &[u32], at: u64) -> u64 {
        let Some(format) = Format::by_name(ty) else { return at };
        self.name(name);
        self.bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| self.bytes.extend(u64::from(*d).to_le_bytes()));
        self.bytes.extend(format.ggml_id.to_le_bytes());
        self.bytes.extend(at.to_le_bytes());
        let row =
            dims.first().map_or(0, |cols| format.row_bytes(*cols as usize).unwrap_or(0)) as u64;
        let rows: u64 = dims.iter().skip(1).map(|d| u64::from(*d)).product();
        (at + row * rows).next_multiple_of(ALIGN)
    }
}
