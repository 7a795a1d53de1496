//! Gemma 4, and the parts that it shares with Gemma 3n: layers with shared keys and values, and an
//! embedding for each layer.

use super::decoder::{finish, input};
use super::facts::{Experts, Facts, Ffn, LLAMA, LocalRope, MIXTURE, Scale, Windows};
use super::ffn;
use super::layer::{Layer, Model};
use crate::op::{By, NormKind};
use crate::{
    Activation, Builder, Graph, GraphError, Kv, Pairing, Part, StateId, StateKind, ValueId,
};
use kjit_gguf::Gguf;

/// The facts that both architectures share.
pub const FACTS: Facts = Facts {
    rope: Some(Pairing::Halves),
    embed_scale: Scale::SqrtWidth,
    ffn: Ffn::Gated(Activation::GeluTanh),
    windows: Windows::AllBut(5),
    local_rope: LocalRope::Base(10000.0),
    final_cap: 30.0,
    experts: Some(Experts { act: Activation::GeluTanh, ..MIXTURE }),
    // Layers that read the keys and values of another layer may have their own tensors. These
    // tensors are not used.
    unused: &[".attn_k", ".attn_v"],
    ..LLAMA
};

/// Gemma 4 (Google 2026): heads of two sizes, dense and expert parts side by side.
pub fn gemma4(gguf: &Gguf) -> Result<Graph, GraphError> {
    let (m, mut b) = Model::open(gguf, &FACTS)?;
    let (mut x, table) = input(&m, &mut b)?;
    let per_layer = layer_inputs(&m, &mut b, x, 0)?;
    let mut shared = SharedKv::read(&m, 0)?;
    for i in 0..m.h.layers {
        let (l, b) = (m.layer(i, x), &mut b);
        let normed = l.norm(b, "attn_norm", x)?;
        let mixed = attention(&l, b, normed, &mut shared)?;
        let mixed = l.norm(b, "post_attention_norm", mixed)?;
        x = b.add(l.name("attn_residual"), x, mixed);
        let out = feed_forward(&l, b, x)?;
        let out = l.norm(b, "post_ffw_norm", out)?;
        x = b.add(l.name("ffn_residual"), x, out);
        if let Some(own) = per_layer.get(i) {
            let out = layer_branch(&l, b, x, *own)?;
            x = b.add(l.name("residual"), x, out);
        }
        let scale = b.opt_vector(&l.weight_name("layer_output_scale"), 1)?;
        x = b.affine(l.name("layer_output"), x, 1.0, (scale, None));
    }
    finish(&m, b, x, table)
}

/// The dense part, plus experts if the layer has them. Each has its own norms.
fn feed_forward(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let normed = l.norm(b, "ffn_norm", x)?;
    let dense = ffn::dense(l, b, normed)?;
    if !l.has(b, "ffn_gate_inp") {
        return Ok(dense);
    }
    let (h, width) = (l.h(), l.h().width);
    let dense = l.norm(b, "post_ffw_norm_1", dense)?;
    let scored = b.norm(l.name("ffn_gate_inp_norm"), x, NormKind::Rms, width, (None, None), h.eps);
    let scale = b.opt_vector(&l.name("ffn_gate_inp.scale"), width)?;
    let scored =
        b.affine(l.name("ffn_gate_inp_scaled"), scored, 1.0 / (width as f32).sqrt(), (scale, None));
    let normed = l.norm(b, "pre_ffw_norm_2", x)?;
    let experts = ffn::experts(l, b, normed, scored)?;
    let experts = l.norm(b, "post_ffw_norm_2", experts)?;
    Ok(b.add(l.name("ffn_sum"), dense, experts))
}

/// The states of layers whose keys and values later layers read.
pub struct SharedKv {
    /// The number of layers with their own keys and values.
    own: usize,
    /// The last state of a layer with full attention, and of a layer with a window.
    last: [Option<StateId>; 2],
}

impl SharedKv {
    /// Reads `attention.shared_kv_layers` (`default` if the key is absent): the number of last
    /// layers that share keys and values.
    pub fn read(m: &Model<'_>, default: usize) -> Result<SharedKv, GraphError> {
        let shared = m.h.number("attention.shared_kv_layers")?.unwrap_or(default);
        match m.h.layers.checked_sub(shared).filter(|own| *own > 0) {
            Some(own) => Ok(SharedKv { own, last: [None; 2] }),
            None => Err(m.h.bad(
                "attention.shared_kv_layers",
                shared,
                "some layers must have their own keys and values",
            )),
        }
    }
}

/// Attention with unscaled scores. Queries, keys and values are normalised per head.
pub fn attention(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    shared: &mut SharedKv,
) -> Result<ValueId, GraphError> {
    let (h, width, heads, kv_heads, windowed) =
        (l.h(), l.h().width, l.heads(), l.kv_heads(), l.is_windowed());
    let local = if windowed { h.opt_size("attention.key_length_swa")? } else { None };
    let dim = local.unwrap_or(h.head_dim);
    if heads == 0 || kv_heads == 0 || dim == 0 {
        return Err(h.bad(
            "attention.head_count",
            heads,
            "a layer needs query heads and key heads",
        ));
    }
    let rotated = |b: &mut Builder<'_>, name: &str, x, heads| match l.rope() {
        Some(rope) => b.rope(l.name(&format!("{name}_rope")), x, heads, rope),
        None => x,
    };
    let (queries, keys, fused) = (heads * dim, kv_heads * dim, l.has(b, "attn_qkv"));
    let project = |b: &mut Builder<'_>, name: &str, at: usize, take: usize| match fused {
        true => l.project_part(
            b,
            ("attn_qkv", name),
            x,
            Part { at, take, of: queries + 2 * keys },
            width,
        ),
        false => l.project(b, name, x, take, width),
    };
    let q = project(b, "attn_q", 0, queries)?;
    let q = l.norm_of(b, "attn_q_norm", q, NormKind::Rms, dim)?;
    let q = rotated(b, "attn_q", q, heads);
    let [full, local] = &mut shared.last;
    let last = if windowed { local } else { full };
    if l.index < shared.own {
        let k = project(b, "attn_k", queries, keys)?;
        // If a layer has no projection for values, the values are the keys before norm and
        // rotation.
        let v = if fused || l.has(b, "attn_v") {
            project(b, "attn_v", queries + keys, keys)?
        } else {
            k
        };
        let k = l.norm_of(b, "attn_k_norm", k, NormKind::Rms, dim)?;
        let k = rotated(b, "attn_k", k, kv_heads);
        let v = b.norm(l.name("attn_v_norm"), v, NormKind::Rms, dim, (None, None), h.eps);
        let kind =
            StateKind::Kv(Kv { heads: kv_heads, key: dim, value: dim, window: l.window().0 });
        let state = b.state(format!("blk.{}", l.index), kind);
        b.kv_write(k, v, state);
        *last = Some(state);
    }
    let Some(state) = *last else {
        let why = format!("layer {} has no earlier layer of its kind with keys", l.index);
        return Err(h.bad("attention.shared_kv_layers", h.layers - shared.own, &why));
    };
    let mixed = b.attention(l.name("attn"), q, (state, heads, 1.0), |_| {});
    l.project(b, "attn_output", mixed, width, heads * dim)
}

/// The per-layer inputs of a token: rows of a second embedding table plus a projection of the
/// embedding. `width` is the default if no key gives the width. The result is empty if the model
/// has no such table.
pub fn layer_inputs(
    m: &Model<'_>,
    b: &mut Builder<'_>,
    x: ValueId,
    width: usize,
) -> Result<Vec<ValueId>, GraphError> {
    let (h, layers) = (&m.h, m.h.layers);
    let each = h.number("embedding_length_per_layer_input")?.unwrap_or(width);
    if each == 0 {
        return Ok(vec![]);
    }
    let table = b.matrix("per_layer_token_embd.weight", h.vocab, each * layers)?;
    let own = b.embed("per_layer_embed", table, By::Token, (each as f32).sqrt());
    let w = b.matrix("per_layer_model_proj.weight", each * layers, h.width)?;
    let made = b.matmul("per_layer_model_proj", x, w, None);
    let made = b.affine("per_layer_scaled", made, 1.0 / (h.width as f32).sqrt(), (None, None));
    let norm = b.vector("per_layer_proj_norm.weight", each)?;
    let made = b.rms_norm("per_layer_proj_norm", made, norm, h.eps);
    let both = b.add("per_layer_sum", made, own);
    let both = b.affine("per_layer_inputs", both, std::f32::consts::FRAC_1_SQRT_2, (None, None));
    Ok((0..layers)
        .map(|i| b.slice(format!("blk.{i}.per_layer_input"), both, 1, i * each, each))
        .collect())
}

/// The addition of a layer, computed from its per-layer input.
pub fn layer_branch(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    own: ValueId,
) -> Result<ValueId, GraphError> {
    let (each, width) = (b.graph().value(own).width, l.h().width);
    let gate = l.project(b, "inp_gate", x, each, width)?;
    let out = b.glu(l.name("inp_gated"), gate, own, Activation::GeluTanh);
    let out = l.project(b, "proj", out, width, each)?;
    l.norm(b, "post_norm", out)
}
