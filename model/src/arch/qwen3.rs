//! Qwen3 (Yang et al. 2025, arXiv 2505.09388): llama with an RMS norm on every query and key head.

use super::hparams::Hparams;
use super::transformer::{self, AttentionParts};
use crate::gguf::Gguf;
use crate::graph::{Activation, Builder, Graph, GraphError, Pairing};

pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let h = Hparams::read(gguf, "qwen3")?;
    let ffn = h.size("feed_forward_length")?;
    let mut b = Builder::new(gguf, h.arch, h.context);
    let rope = b.rope_table(h.rope(Pairing::Halves, None)?);
    let scale = 1.0 / (h.head_dim as f32).sqrt();
    let parts = AttentionParts { qk_norm: true, scale, rope, window: None };
    transformer::pre_norm_decoder(b, &h, &parts, |l, b, x| l.feed_forward(b, x, ffn, Activation::Silu))
}
