//! Decoders whose layers have only one part, such as state-space models.

use super::decoder::{finish, input};
use super::facts::{Block, Experts, Facts, Ffn, LLAMA, SIGMOID_UNNORMED};
use super::layer::Model;
use super::{attention, ffn, mamba};
use crate::{Activation, Graph, GraphError};
use kjit_gguf::Gguf;

/// Mamba-2 (Dao & Gu 2024, arXiv 2405.21060).
pub fn mamba2(gguf: &Gguf) -> Result<Graph, GraphError> {
    one_part(gguf, &Facts { rope: None, ..LLAMA }, mamba::mamba2)
}

/// Mamba (Gu & Dao 2023, arXiv 2312.00752).
pub fn mamba(gguf: &Gguf) -> Result<Graph, GraphError> {
    one_part(gguf, &Facts { rope: None, ..LLAMA }, mamba::mamba1)
}

/// Nemotron-H (NVIDIA 2025, arXiv 2504.03624): each layer is Mamba-2, attention or a feed-forward
/// part. Two lists of the file decide.
pub fn nemotron_h(gguf: &Gguf) -> Result<Graph, GraphError> {
    let act = Activation::ReluSquared;
    let experts = Some(Experts { act, ..SIGMOID_UNNORMED });
    let facts = Facts { rope: None, ffn: Ffn::Plain(act), experts, either_epsilon: true, ..LLAMA };
    one_part(gguf, &facts, |l, b, x| {
        let sizes = l.h().per_layer("feed_forward_length")?.unwrap_or_default();
        match (l.kv_heads(), sizes.get(l.index)) {
            (0, None | Some(0)) if !l.has(b, "ffn_up_exps") => mamba::mamba2(l, b, x),
            (0, _) => ffn::feed_forward(l, b, x),
            _ => attention::heads(l, b, x),
        }
    })
}

/// `x += part(norm(x))` in every layer.
fn one_part(gguf: &Gguf, facts: &Facts, part: Block) -> Result<Graph, GraphError> {
    let (m, mut b) = Model::open(gguf, facts)?;
    let (mut x, table) = input(&m, &mut b)?;
    for i in 0..m.h.layers {
        let l = m.layer(i, x);
        let normed = l.norm(&mut b, "attn_norm", x)?;
        let mixed = part(&l, &mut b, normed)?;
        x = b.add(l.name("residual"), x, mixed);
    }
    finish(&m, b, x, table)
}
