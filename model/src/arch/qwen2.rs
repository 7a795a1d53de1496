//! Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv 2407.10671): llama with biases on queries, keys and values.

use super::hparams::Hparams;
use super::transformer::{self, AttentionParts};
use crate::gguf::Gguf;
use crate::graph::{Activation, Builder, Graph, GraphError, Pairing};

pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let h = Hparams::read(gguf, "qwen2")?;
    let ffn = h.size("feed_forward_length")?;
    let mut b = Builder::new(gguf, h.arch, h.context);
    let rope = b.rope_table(h.rope(Pairing::Halves, None)?);
    let scale = 1.0 / (h.head_dim as f32).sqrt();
    let parts = AttentionParts { qk_norm: false, scale, rope, window: None };
    transformer::pre_norm_decoder(b, &h, &parts, |l, b, x| l.feed_forward(b, x, ffn, Activation::Silu))
}
