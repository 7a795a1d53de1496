//! Llama (Touvron et al. 2023, arXiv 2302.13971) and what shares its file layout: Llama 2 and 3, SmolLM2, Mistral.

use super::hparams::Hparams;
use super::transformer::{self, AttentionParts};
use crate::gguf::Gguf;
use crate::graph::{Activation, Builder, Graph, GraphError, Pairing};

pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let h = Hparams::read(gguf, "llama")?;
    if let Some(n) = gguf.opt_u32("llama.expert_count")?
        && n > 0
    {
        return Err(h.bad("expert_count", n, "kjit runs llama files without experts (Mixtral is not supported)"));
    }
    let ffn = h.size("feed_forward_length")?;
    let mut b = Builder::new(gguf, h.arch, h.context);
    // Llama 3.1 and later stretch their rotations by a factor per frequency.
    let factors = b.opt_vector("rope_freqs.weight", h.rope_dims()? / 2)?;
    let rope = b.rope_table(h.rope(Pairing::Neighbours, factors)?);
    let scale = 1.0 / (h.head_dim as f32).sqrt();
    let parts = AttentionParts { qk_norm: false, scale, rope, window: None };
    transformer::pre_norm_decoder(b, &h, &parts, |l, b, x| l.feed_forward(b, x, ffn, Activation::Silu))
}
