//! Gemma 3, text (Gemma Team 2025, arXiv 2503.19786): norms before and after each part, GELU, five layers with a sliding window
//! and their own rotation to one that sees everything. (The file stores norm weights with the model's +1 already added.)

use super::hparams::Hparams;
use super::transformer::{self, AttentionParts, Layer};
use crate::gguf::Gguf;
use crate::graph::{Activation, Builder, Graph, GraphError, Pairing, Rope, RopeScaling};

/// Every sixth layer sees everything; no key says so.
const PERIOD: usize = 6;

/// Base of the local layers' rotation, which is never stretched; the key is absent in older files.
const LOCAL_BASE: f32 = 10000.0;

pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let h = Hparams::read(gguf, "gemma3")?;
    let ffn = h.size("feed_forward_length")?;
    let window = h.size("attention.sliding_window")?;
    let mut b = Builder::new(gguf, h.arch, h.context);
    let (mut x, embedding) = transformer::embedding(&mut b, &h, (h.width as f32).sqrt())?;
    let global = h.rope(Pairing::Halves, None)?;
    let base = gguf.opt_f32(&h.key("rope.freq_base_swa"))?.unwrap_or(LOCAL_BASE);
    let local = b.rope_table(Rope { base, scaling: RopeScaling::None, ..global.clone() });
    let global = b.rope_table(global);
    // The 27B model alone scales queries by the width per head instead of the head's size; it has 62 layers.
    let scale = match h.layers {
        62 => 1.0 / ((h.width / h.heads) as f32).sqrt(),
        _ => 1.0 / (h.head_dim as f32).sqrt(),
    };
    for index in 0..h.layers {
        let l = Layer { h: &h, index };
        let (rope, window) = match index % PERIOD == PERIOD - 1 {
            true => (global, None),
            false => (local, Some(window)),
        };
        let normed = l.norm(&mut b, "attn_norm", x)?;
        let mixed = l.attention(&mut b, normed, &AttentionParts { qk_norm: true, scale, rope, window })?;
        let mixed = l.norm(&mut b, "post_attention_norm", mixed)?;
        x = b.add(l.name("attn_residual"), x, mixed);
        let normed = l.norm(&mut b, "ffn_norm", x)?;
        let out = l.feed_forward(&mut b, normed, ffn, Activation::GeluTanh)?;
        let out = l.norm(&mut b, "post_ffw_norm", out)?;
        x = b.add(l.name("residual"), x, out);
    }
    let logits = transformer::head(&mut b, &h, x, embedding)?;
    Ok(b.finish(logits))
}
