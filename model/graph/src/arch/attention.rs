//! Attention whose heads have their own keys and values (MHA, GQA, MQA).

use super::facts::{QkNorm, QueryTemperature, Scale};
use super::layer::Layer;
use crate::op::NormKind;
use crate::{Activation, Builder, GraphError, Kv, Part, StateId, StateKind, ValueId};

/// Projections, norms and rotation of heads, cache, attention and output projection.
pub fn heads(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (heads, kv_heads, h) = (l.heads(), l.kv_heads(), l.h());
    let (dim, value_dim, width) = (h.head_dim, h.value_dim, h.width);
    if heads == 0 || kv_heads == 0 || dim == 0 || value_dim == 0 {
        return Err(h.bad(
            "attention.head_count",
            heads,
            "an attention layer needs query heads and key heads",
        ));
    }
    let sizes = [heads * dim, kv_heads * dim, kv_heads * value_dim];
    let ([q, k, v], gate) = projected(l, b, x, sizes, width)?;
    let q = normed(l, b, "attn_q", q, heads, dim)?;
    let k = normed(l, b, "attn_k", k, kv_heads, dim)?;
    let q = rotated(l, b, "attn_q", q, heads, dim)?;
    let k = rotated(l, b, "attn_k", k, kv_heads, dim)?;
    let q = with_temperature(l, b, q)?;
    let (window, mask) = l.window();
    let kind = StateKind::Kv(Kv { heads: kv_heads, key: dim, value: value_dim, window });
    let state = b.state(format!("blk.{}", l.index), kind);
    b.kv_write(k, v, state);
    let mut mixed = attend(l, b, q, state, |a| a.mask = mask)?;
    if let Some(gate) = gate {
        mixed = b.glu(l.name("attn_gated"), gate, mixed, Activation::Sigmoid);
    }
    output(l, b, x, mixed, heads * value_dim)
}

/// Attention of queries over a state, with the scale, cap, window and bias of the file and the
/// facts.
pub fn attend(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    q: ValueId,
    state: StateId,
    with: impl FnOnce(&mut crate::op::Attention),
) -> Result<ValueId, GraphError> {
    let (m, heads) = (l.m, l.heads());
    let scale = m.scale(m.facts.scale, m.scale(Scale::Head, 1.0)?)?;
    let soft_cap = m.cap("attn_logit_softcapping", m.facts.cap)?;
    let alibi = match m.facts.alibi {
        Scale::One => None,
        alibi => Some(m.scale(alibi, 0.0)?).filter(|a| *a != 0.0),
    };
    let sinks = b.opt_vector(&l.weight_name("attn_sinks"), heads)?;
    Ok(b.attention(l.name("attn"), q, (state, heads, scale), |a| {
        (a.soft_cap, a.alibi, a.sinks) = (soft_cap, alibi, sinks);
        with(a);
    }))
}

/// The rest of an attention part: gate, norm, factor, output projection.
pub fn output(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    mut mixed: ValueId,
    size: usize,
) -> Result<ValueId, GraphError> {
    let width = l.h().width;
    if l.has(b, "attn_gate") {
        let gate = l.project(b, "attn_gate", x, size, width)?;
        mixed = b.glu(l.name("attn_gated"), gate, mixed, Activation::Sigmoid);
    }
    if l.has(b, "attn_sub_norm") {
        mixed = l.norm_of(b, "attn_sub_norm", mixed, NormKind::Rms, size)?;
    }
    let scale = l.h().factor("attention.value_scale")?.unwrap_or(1.0);
    mixed = b.affine(l.name("attn_scaled"), mixed, scale, (None, None));
    l.project(b, "attn_output", mixed, width, size)
}

/// Queries, keys and values, from three tensors or from one fused tensor. The gate is also returned
/// if the query tensor has a gate after each head.
fn projected(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    sizes: [usize; 3],
    width: usize,
) -> Result<([ValueId; 3], Option<ValueId>), GraphError> {
    let names = ["attn_q", "attn_k", "attn_v"];
    let fused = l.has(b, "attn_qkv");
    let mut at = 0;
    let (mut out, mut gate) = ([x; 3], None);
    let clamp = l.h().factor("attention.clamp_kqv")?;
    for ((name, take), out) in names.into_iter().zip(sizes).zip(&mut out) {
        let made = match fused {
            true => l.project_part(
                b,
                ("attn_qkv", name),
                x,
                Part { at, take, of: sizes.iter().sum() },
                width,
            )?,
            false if l.m.facts.gated_queries && gate.is_none() => {
                let (both, heads, dim) =
                    (l.project(b, name, x, 2 * take, width)?, l.heads(), l.h().head_dim);
                gate = Some(b.slice(l.name("attn_q_gate"), both, heads, dim, dim));
                b.slice(l.name("attn_q_heads"), both, heads, 0, dim)
            }
            false => l.project(b, name, x, take, width)?,
        };
        at += take;
        *out = match clamp {
            Some(limit) => {
                b.act(l.name(&format!("{name}_clamped")), made, Activation::Clamp(limit))
            }
            None => made,
        };
    }
    Ok((out, gate))
}

/// Scales queries by a factor that grows with the position.
pub fn with_temperature(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    q: ValueId,
) -> Result<ValueId, GraphError> {
    let (h, name) = (l.h(), l.name("attn_q_tempered"));
    match l.m.facts.temper {
        QueryTemperature::Key(period) => {
            match (h.factor("attention.temperature_scale")?, h.opt_size(period)?) {
                (Some(scale), Some(period)) => Ok(b.temper(name, q, scale, period, 0)),
                (Some(scale), None) => Ok(b.temper(name, q, scale, h.context, 0)),
                (None, _) => Ok(q),
            }
        }
        QueryTemperature::LayersWithoutRope if l.rope().is_none() => {
            let scale = h.factor("attention.temperature_scale")?.unwrap_or(0.1);
            Ok(b.temper(
                name,
                q,
                scale,
                h.opt_size("attention.temperature_length")?.unwrap_or(8192),
                1,
            ))
        }
        _ => Ok(q),
    }
}

/// Normalises heads before the rotation (QK norm).
pub fn normed(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    heads: usize,
    dim: usize,
) -> Result<ValueId, GraphError> {
    let (facts, norm) = (l.m.facts, format!("{name}_norm"));
    match facts.qk_norm {
        QkNorm::Head => l.norm_of(b, &norm, x, NormKind::Rms, dim),
        QkNorm::Whole => l.norm_of(b, &norm, x, NormKind::Rms, heads * dim),
        QkNorm::HeadIfPresent if l.has(b, &norm) => l.norm_of(b, &norm, x, facts.norm, dim),
        QkNorm::WholeIfPresent if l.has(b, &norm) => {
            l.norm_of(b, &norm, x, facts.norm, heads * dim)
        }
        _ => Ok(x),
    }
}

/// Rotates heads. If the architecture has norms after the rotation, they are applied as well.
pub fn rotated(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    heads: usize,
    dim: usize,
) -> Result<ValueId, GraphError> {
    let (facts, norm) = (l.m.facts, format!("{name}_norm"));
    let Some(rope) = l.rope() else { return Ok(x) };
    let x = b.rope(l.name(&format!("{name}_rope")), x, heads, rope);
    match facts.qk_norm {
        QkNorm::HeadAfterRope => l.norm_of(b, &norm, x, NormKind::Rms, dim),
        QkNorm::PlainAfterRope(but) if l.h().number("expert_count")? != Some(but) => {
            Ok(b.norm(l.name(&norm), x, NormKind::Rms, dim, (None, None), l.h().eps))
        }
        _ => Ok(x),
    }
}
