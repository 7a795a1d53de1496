//! Linear attention by the delta rule (Yang et al. 2024, arXiv 2412.06464; Kimi Linear, arXiv
//! 2510.26692), in models that also have full attention.

use super::layer::Layer;
use super::{attention, latent};
use crate::op::{LinearInputs, NormKind};
use crate::{Activation, Builder, GraphError, Part, ValueId};

/// Qwen3-Next: adjacent value heads share a key head. Every n-th layer has full attention.
pub fn grouped(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    if is_full(l)? { attention::heads(l, b, x) } else { gated(l, b, x, false) }
}

/// Qwen3.5: value head `i` uses key head `i % key_heads`.
pub fn tiled(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    if is_full(l)? { attention::heads(l, b, x) } else { gated(l, b, x, true) }
}

fn is_full(l: &Layer<'_, '_>) -> Result<bool, GraphError> {
    const LIST: &str = "attention.recurrent_layers";
    let list = l.h().gguf().opt_bools(&l.h().key(LIST))?;
    if let Some(list) = list {
        return match list.get(l.index) {
            Some(recurrent) => Ok(!recurrent),
            None => Err(l.h().bad(
                LIST,
                format!("a list of {}", list.len()),
                "there are more layers than entries",
            )),
        };
    }
    let every = l.h().opt_size("full_attention_interval")?.unwrap_or(4);
    Ok((l.index + 1).is_multiple_of(every))
}

/// The heads of a layer and the inputs of the delta rule.
struct Heads {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    /// The share of a key's old value that is replaced. A sigmoid is applied to it here.
    decay: ValueId,
    /// The share of a key's old value that is replaced; a sigmoid is applied to it here.
    beta: ValueId,
    count: usize,
    size: usize,
}

/// One step of the delta rule. It replaces the share `β` of the value that is stored under the key.
/// Queries and keys have length √size here, so the state is divided by it.
fn rule(l: &Layer<'_, '_>, b: &mut Builder<'_>, heads: Heads) -> ValueId {
    let Heads { q, k, v, decay, beta, count, size } = heads;
    let size = size as f32;
    let q = b.affine(l.name("delta_q"), q, 1.0 / (size * size.sqrt()), (None, None));
    let written = b.glu(l.name("delta_write"), beta, k, Activation::Sigmoid);
    let seen = b.glu(l.name("delta_seen"), decay, k, Activation::Identity);
    let seen = b.affine(l.name("delta_taken"), seen, -1.0 / size, (None, None));
    let correction = Some((seen, written));
    let inputs = LinearInputs { q, k: written, v, w: decay, correction, bonus: None };
    b.linear_attention(&l.name("delta"), inputs, count)
}

/// Normalises each head to length √size: `√size · x / sqrt(Σ x² + eps)`.
fn unit_heads(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    name: &str,
    x: ValueId,
    size: usize,
) -> ValueId {
    b.norm(l.name(name), x, NormKind::Rms, size, (None, None), l.h().eps / size as f32)
}

/// The decay of each head, `e^(a · softplus(x + dt))`. `a` is negative.
fn decay(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    (heads, width): (usize, usize),
) -> Result<ValueId, GraphError> {
    let dt = b.vector(&l.name("ssm_dt.bias"), width)?;
    let a = b.vector(&l.name("ssm_a"), heads)?;
    let x = b.affine(l.name("delta_dt"), x, 1.0, (None, Some(dt)));
    let x = b.act(l.name("delta_dt_plus"), x, Activation::Softplus);
    let x = b.head_factors(l.name("delta_log"), x, a);
    Ok(b.act(l.name("delta_decay"), x, Activation::Exp))
}

/// The input of the convolution (queries, keys, values) and the gate. They come from two tensors;
/// older files have one tensor with the four parts of each key head.
fn mixed(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    (heads, size, times): (usize, usize, usize),
) -> Result<(ValueId, ValueId), GraphError> {
    let (width, keys, values) = (l.h().width, heads * size, heads * size * times);
    if !l.has(b, "ssm_in") {
        let all = l.project(b, "attn_qkv", x, 2 * keys + values, width)?;
        return Ok((all, l.project(b, "attn_gate", x, values, width)?));
    }
    let all = l.project(b, "ssm_in", x, 2 * (keys + values), width)?;
    let mut part = |name: &str, at: usize, n: usize| b.slice(l.name(name), all, heads, at, n);
    let (q, k) = (part("delta_q_in", 0, size), part("delta_k_in", size, size));
    let v = part("delta_v_in", 2 * size, times * size);
    let z = part("delta_z", (2 + times) * size, times * size);
    let qk = b.concat(l.name("delta_qk_in"), q, k, 1, keys);
    Ok((b.concat(l.name("delta_in"), qk, v, 1, values), z))
}

/// A gated delta net.
fn gated(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    tiled: bool,
) -> Result<ValueId, GraphError> {
    let (h, width) = (l.h(), l.h().width);
    let (size, key_heads, heads) =
        (h.size("ssm.state_size")?, h.size("ssm.group_count")?, h.size("ssm.time_step_rank")?);
    if !heads.is_multiple_of(key_heads) {
        return Err(h.bad(
            "ssm.time_step_rank",
            heads,
            &format!("must be a multiple of the {key_heads} key heads"),
        ));
    }
    let (keys, values, times) = (size * key_heads, size * heads, heads / key_heads);
    let (all, z) = mixed(l, b, x, (key_heads, size, times))?;
    let all = super::mamba::convolved(l, b, all, 2 * keys + values)?;
    let mut key = |name: &str, at: usize| {
        let part = b.slice(l.name(&format!("{name}_part")), all, 1, at, keys);
        let part = unit_heads(l, b, &format!("{name}_unit"), part, size);
        b.repeat(l.name(&format!("{name}_all")), part, key_heads, times, tiled)
    };
    let (q, k) = (key("delta_q", 0), key("delta_k", keys));
    let v = b.slice(l.name("delta_v"), all, 1, 2 * keys, values);
    let (beta, alpha) = match l.has(b, "ssm_ba") {
        true => {
            let both = l.project(b, "ssm_ba", x, 2 * heads, width)?;
            let beta = b.slice(l.name("ssm_beta"), both, key_heads, 0, times);
            (beta, b.slice(l.name("ssm_alpha"), both, key_heads, times, times))
        }
        false => (
            l.project(b, "ssm_beta", x, heads, width)?,
            l.project(b, "ssm_alpha", x, heads, width)?,
        ),
    };
    let decay = decay(l, b, alpha, (heads, heads))?;
    let y = rule(l, b, Heads { q, k, v, decay, beta, count: heads, size });
    let y = l.norm_of(b, "ssm_norm", y, NormKind::Rms, size)?;
    let y = b.glu(l.name("delta_gated"), z, y, Activation::Silu);
    l.project(b, "ssm_out", y, width, values)
}

/// Kimi Linear: a decay for each channel. Layers with heads use latent attention without rotation.
pub fn by_channel(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    if l.kv_heads() > 0 {
        return latent::absorbed(l, b, x);
    }
    let (h, width, heads) = (l.h(), l.h().width, l.heads());
    let (size, taps) = (h.size("kda.head_dim")?, h.size("ssm.conv_kernel")?);
    let inner = heads * size;
    let fused = l.has(b, "attn_qkv");
    let mut part = |c: &str, i: usize| -> Result<ValueId, GraphError> {
        let name = format!("attn_{c}");
        let rows = Part { at: i * inner, take: inner, of: 3 * inner };
        let x = match fused {
            true => l.project_part(b, ("attn_qkv", &name), x, rows, width)?,
            false => l.project(b, &name, x, inner, width)?,
        };
        let w = b.matrix(&l.weight_name(&format!("ssm_conv1d_{c}")), inner, taps)?;
        let x = b.conv(&l.name(&format!("ssm_conv1d_{c}")), x, w, None);
        Ok(b.act(l.name(&format!("delta_{c}_silu")), x, Activation::Silu))
    };
    let (q, k, v) = (part("q", 0)?, part("k", 1)?, part("v", 2)?);
    let (q, k) =
        (unit_heads(l, b, "delta_q_unit", q, size), unit_heads(l, b, "delta_k_unit", k, size));
    let low = l.project(b, "ssm_f_a", x, size, width)?;
    let alpha = l.project(b, "ssm_f_b", low, inner, size)?;
    let decay = decay(l, b, alpha, (heads, inner))?;
    let beta = l.project(b, "ssm_beta", x, heads, width)?;
    let y = rule(l, b, Heads { q, k, v, decay, beta, count: heads, size });
    let y = l.norm_of(b, "ssm_norm", y, NormKind::Rms, size)?;
    let low = l.project(b, "ssm_g_a", x, size, width)?;
    let gate = l.project(b, "ssm_g_b", low, inner, size)?;
    let y = b.glu(l.name("delta_gated"), gate, y, Activation::Sigmoid);
    l.project(b, "attn_output", y, width, inner)
}
