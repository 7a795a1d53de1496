//! Reads the role of a matrix, its layer, and whether it is quantised, from its name.

use std::cmp::Ordering;

/// The role of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Embeddings,
    Output,
    /// Queries, keys and values in one matrix.
    QueryKeyValue,
    /// Keys and values from a latent vector.
    KeyValue,
    Value,
    Key,
    AttentionOutput,
    Down,
    Other,
}

impl Kind {
    /// The role of the tensor of this name.
    pub fn of(name: &str) -> Kind {
        match name {
            "output.weight" => Kind::Output,
            "token_embd.weight" | "per_layer_token_embd.weight" => Kind::Embeddings,
            _ if name.contains("attn_qkv.weight") => Kind::QueryKeyValue,
            _ if name.contains("attn_kv_b.weight") => Kind::KeyValue,
            _ if name.contains("attn_v.weight") => Kind::Value,
            _ if name.contains("attn_k.weight") => Kind::Key,
            _ if name.contains("attn_output.weight") => Kind::AttentionOutput,
            _ if name.contains("ffn_down") => Kind::Down,
            _ => Kind::Other,
        }
    }

    /// Whether the matrix computes values of attention.
    pub fn is_values(self) -> bool {
        matches!(self, Kind::QueryKeyValue | Kind::KeyValue | Kind::Value)
    }
}

/// The layer in a name (`blk.12.…`).
pub fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// llama.cpp's order of tensors: tensors without a layer first, then by layer, each sorted by name.
pub fn order(a: &str, b: &str) -> Ordering {
    layer(a).cmp(&layer(b)).then_with(|| a.cmp(b))
}

/// Parts of the names of small matrices that are not quantised.
const UNQUANTISED: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// Whether a tensor is quantised: a matrix of two or more dimensions that is neither a norm nor in
/// the list of small matrices.
pub fn is_quantised(name: &str, dims: &[u64]) -> bool {
    // ggml does not count trailing dimensions of 1.
    let dimensions = dims.iter().rposition(|d| *d > 1).map_or(1, |last| last + 1);
    dimensions >= 2
        && name.ends_with("weight")
        && !matches!(name, "position_embd.weight" | "token_types.weight")
        && !UNQUANTISED.iter().any(|kept| name.contains(kept))
}
