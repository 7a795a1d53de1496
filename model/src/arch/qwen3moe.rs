//! Qwen3-MoE (Yang et al. 2025, arXiv 2505.09388): Qwen3 with a routed mixture of experts for the feed-forward part.

use super::hparams::Hparams;
use super::transformer::{self, AttentionParts, Layer};
use crate::gguf::Gguf;
use crate::graph::{Activation, Builder, Graph, GraphError, Pairing, ValueId};

/// How the experts are cut.
struct Experts {
    count: usize,
    used: usize,
    ffn: usize,
}

pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let h = Hparams::read(gguf, "qwen3moe")?;
    let experts = Experts {
        count: h.size("expert_count")?,
        used: h.size("expert_used_count")?,
        ffn: h.size("expert_feed_forward_length")?,
    };
    if experts.used > experts.count {
        return Err(h.bad("expert_used_count", experts.used, &format!("there are only {} experts", experts.count)));
    }
    let mut b = Builder::new(gguf, h.arch, h.context);
    let rope = b.rope_table(h.rope(Pairing::Halves, None)?);
    let scale = 1.0 / (h.head_dim as f32).sqrt();
    let parts = AttentionParts { qk_norm: true, scale, rope, window: None };
    transformer::pre_norm_decoder(b, &h, &parts, |l, b, x| mixture(l, b, x, &experts))
}

/// The chosen experts' gated units, weighted by their renormalised probabilities.
fn mixture(l: &Layer, b: &mut Builder, x: ValueId, e: &Experts) -> Result<ValueId, GraphError> {
    let width = l.h.width;
    let scores = l.project(b, "ffn_gate_inp", x, e.count, width)?;
    let (chosen, shares) = b.route(&l.name("ffn_route"), scores, e.used, true, 1.0);
    let gate = b.experts(&l.weight_name("ffn_gate_exps"), e.count, e.ffn, width)?;
    let up = b.experts(&l.weight_name("ffn_up_exps"), e.count, e.ffn, width)?;
    let down = b.experts(&l.weight_name("ffn_down_exps"), e.count, width, e.ffn)?;
    let gate = b.expert_matmul(l.name("ffn_gate_exps"), x, chosen, gate);
    let up = b.expert_matmul(l.name("ffn_up_exps"), x, chosen, up);
    let hidden = b.glu(l.name("ffn_glu"), gate, up, Activation::Silu);
    let out = b.expert_matmul(l.name("ffn_down_exps"), hidden, chosen, down);
    Ok(b.expert_sum(l.name("ffn_experts"), out, shares))
}
