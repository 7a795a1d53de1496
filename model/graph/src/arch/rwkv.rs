//! RWKV (Peng et al. 2024, arXiv 2404.05892; 2025, arXiv 2503.14456): linear attention whose inputs
//! are mixed with the previous token.

use super::decoder::{finish, input};
use super::facts::{Facts, LLAMA};
use super::layer::{Layer, Model};
use crate::op::{LinearInputs, NormKind};
use crate::{Activation, Builder, Graph, GraphError, Part, ValueId};
use kjit_gguf::Gguf;

/// The epsilon of a head's norm.
const HEAD_EPS: f32 = 64e-5;

/// A token, and the previous token minus this one.
struct Pair {
    x: ValueId,
    /// The previous token minus this one.
    back: ValueId,
}

impl Pair {
    fn new(l: &Layer<'_, '_>, b: &mut Builder<'_>, name: &str, x: ValueId) -> Pair {
        let before = b.shift(&l.name(&format!("{name}_shift")), x);
        let away = b.affine(l.name(&format!("{name}_minus")), x, -1.0, (None, None));
        Pair { x, back: b.add(l.name(&format!("{name}_back")), before, away) }
    }

    /// Interpolates towards the previous token, with the factors in a part of a tensor.
    fn lerp(
        &self,
        l: &Layer<'_, '_>,
        b: &mut Builder<'_>,
        tensor: &str,
        part: Part,
        name: &str,
    ) -> Result<ValueId, GraphError> {
        let mu = b.vector_part(&l.weight_name(tensor), part)?;
        let way = b.affine(l.name(&format!("{name}_way")), self.back, 1.0, (Some(mu), None));
        Ok(b.add(l.name(name), self.x, way))
    }
}

/// Version 6: the interpolation factors depend on the token.
pub fn rwkv6(gguf: &Gguf) -> Result<Graph, GraphError> {
    build(gguf, |l, b, x, _| time_mix6(l, b, x), channel_mix6)
}

/// Version 7: a delta rule corrects the state, and values are mixed with the values of the first
/// layer.
pub fn rwkv7(gguf: &Gguf) -> Result<Graph, GraphError> {
    build(gguf, time_mix7, channel_mix7)
}

/// The part that mixes tokens. The first layer sets its values; later layers read them.
type TimeMix = fn(
    &Layer<'_, '_>,
    &mut Builder<'_>,
    ValueId,
    &mut Option<ValueId>,
) -> Result<ValueId, GraphError>;
type ChannelMix = fn(&Layer<'_, '_>, &mut Builder<'_>, ValueId) -> Result<ValueId, GraphError>;

fn build(gguf: &Gguf, time: TimeMix, channel: ChannelMix) -> Result<Graph, GraphError> {
    // Files also have tensors for mixing the values of the first layer. They are not used.
    let unused = &["blk.0.time_mix_v0", "blk.0.time_mix_v1", "blk.0.time_mix_v2"];
    let facts = Facts { rope: None, norm: NormKind::Layer, unused, ..LLAMA };
    let (m, mut b) = Model::open(gguf, &facts)?;
    let (mut x, table) = input(&m, &mut b)?;
    let halved = m.h.number("rescale_every_n_layers")?.filter(|n| *n > 0);
    let mut first = None;
    for i in 0..m.h.layers {
        let (l, b) = (m.layer(i, x), &mut b);
        let normed = l.norm(b, "attn_norm", x)?;
        let mixed = time(&l, b, normed, &mut first)?;
        x = b.add(l.name("attn_residual"), x, mixed);
        let normed = l.norm(b, "attn_norm_2", x)?;
        let mixed = channel(&l, b, normed)?;
        x = b.add(l.name("residual"), x, mixed);
        if halved.is_some_and(|n| (i + 1).is_multiple_of(n)) {
            x = b.affine(l.name("halved"), x, 0.5, (None, None));
        }
    }
    finish(&m, b, x, table)
}

/// The number of heads and the size of each.
fn heads(l: &Layer<'_, '_>) -> Result<(usize, usize), GraphError> {
    let size = l.h().size("wkv.head_size")?;
    match l.h().width.is_multiple_of(size) {
        true => Ok((l.h().width / size, size)),
        false => {
            Err(l.h().bad("wkv.head_size", size, &format!("must divide the width {}", l.h().width)))
        }
    }
}

/// A norm of each head, with weights and bias.
fn head_norm(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    y: ValueId,
    size: usize,
) -> Result<ValueId, GraphError> {
    let width = l.h().width;
    let weight = b.vector(&l.weight_name("time_mix_ln"), width)?;
    let bias = b.vector(&l.name("time_mix_ln.bias"), width)?;
    Ok(b.norm(
        l.name("time_mix_ln"),
        y,
        NormKind::Layer,
        size,
        (Some(weight), Some(bias)),
        HEAD_EPS,
    ))
}

/// A low-rank projection, `second(act(first x))`.
fn low_rank(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    (first, second): (&str, &str),
    x: ValueId,
    act: Activation,
) -> Result<ValueId, GraphError> {
    let width = l.h().width;
    let name = l.weight_name(first);
    let rank = b.dims(&name).and_then(|d| d.get(1)).map_or(0, |&n| n as usize);
    let x = l.project(b, first, x, rank, width)?;
    let x = if act == Activation::Identity {
        x
    } else {
        b.act(l.name(&format!("{first}_act")), x, act)
    };
    l.project(b, second, x, width, rank)
}

/// Adds a vector of the layer.
fn add_vector(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    tensor: &str,
) -> Result<ValueId, GraphError> {
    let bias = b.vector(&l.weight_name(tensor), l.h().width)?;
    Ok(b.affine(l.name(&format!("{tensor}_plus")), x, 1.0, (None, Some(bias))))
}

/// Multiplies by a vector of the layer.
fn multiply_by_vector(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    tensor: &str,
) -> Result<ValueId, GraphError> {
    let weight = b.vector(&l.weight_name(tensor), l.h().width)?;
    Ok(b.affine(l.name(&format!("{tensor}_times")), x, 1.0, (Some(weight), None)))
}

fn time_mix6(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (width, (count, size)) = (l.h().width, heads(l)?);
    let pair = Pair::new(l, b, "time_mix", x);
    // The interpolation factors of the five inputs: fixed factors plus the output of a small
    // network. The network's input is a first interpolation.
    let guess = pair.lerp(l, b, "time_mix_lerp_x", Part::all(width), "time_mix_guess")?;
    let extra = l.h().size("time_mix_extra_dim")?;
    let far = l.project(b, "time_mix_w1", guess, 5 * extra, width)?;
    let far = b.act(l.name("time_mix_w1_tanh"), far, Activation::Tanh);
    let w2 = b.experts(&l.weight_name("time_mix_w2"), 5, width, extra)?;
    let far = b.head_matmul(l.name("time_mix_w2"), far, w2);
    // The fixed factors are in one tensor or in five.
    let fused = l.has(b, "time_mix_lerp_fused");
    let far = match fused {
        true => {
            let fixed = b.vector(&l.weight_name("time_mix_lerp_fused"), 5 * width)?;
            b.affine(l.name("time_mix_far"), far, 1.0, (None, Some(fixed)))
        }
        false => far,
    };
    let mut part = |i: usize, name: &str| {
        let mut far = b.slice(l.name(&format!("mix_{name}_far")), far, 1, i * width, width);
        if !fused {
            let fixed = b.vector(&l.weight_name(&format!("time_mix_lerp_{name}")), width)?;
            far = b.affine(l.name(&format!("mix_{name}_fixed")), far, 1.0, (None, Some(fixed)));
        }
        let way = b.glu(l.name(&format!("mix_{name}_way")), far, pair.back, Activation::Identity);
        Ok::<_, GraphError>(b.add(l.name(&format!("mix_{name}")), pair.x, way))
    };
    let (w, k, v, r, g) =
        (part(0, "w")?, part(1, "k")?, part(2, "v")?, part(3, "r")?, part(4, "g")?);
    let r = l.project(b, "time_mix_receptance", r, width, width)?;
    let k = l.project(b, "time_mix_key", k, width, width)?;
    let v = l.project(b, "time_mix_value", v, width, width)?;
    let g = l.project(b, "time_mix_gate", g, width, width)?;
    // The state decays by e^(−e^w).
    let w = low_rank(l, b, ("time_mix_decay_w1", "time_mix_decay_w2"), w, Activation::Tanh)?;
    let w = add_vector(l, b, w, "time_mix_decay")?;
    let w = b.act(l.name("decay_exp"), w, Activation::Exp);
    let w = b.affine(l.name("decay_minus"), w, -1.0, (None, None));
    let w = b.act(l.name("decay"), w, Activation::Exp);
    let bonus = Some(b.vector(&l.weight_name("time_mix_first"), width)?);
    let inputs = LinearInputs { q: r, k, v, w, correction: None, bonus };
    let y = b.linear_attention(&l.name("wkv"), inputs, count);
    let y = head_norm(l, b, y, size)?;
    let y = b.glu(l.name("time_mix_gated"), g, y, Activation::Silu);
    l.project(b, "time_mix_output", y, width, width)
}

fn channel_mix6(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (width, ffn) = (l.h().width, l.h().size("feed_forward_length")?);
    let pair = Pair::new(l, b, "channel_mix", x);
    let k = pair.lerp(l, b, "channel_mix_lerp_k", Part::all(width), "channel_mix_k")?;
    let r = pair.lerp(l, b, "channel_mix_lerp_r", Part::all(width), "channel_mix_r")?;
    let r = l.project(b, "channel_mix_receptance", r, width, width)?;
    let k = l.project(b, "channel_mix_key", k, ffn, width)?;
    let k = b.act(l.name("channel_mix_act"), k, Activation::ReluSquared);
    let v = l.project(b, "channel_mix_value", k, width, ffn)?;
    Ok(b.glu(l.name("channel_mix"), r, v, Activation::Sigmoid))
}

fn time_mix7(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    first: &mut Option<ValueId>,
) -> Result<ValueId, GraphError> {
    let (width, (count, size)) = (l.h().width, heads(l)?);
    let pair = Pair::new(l, b, "time_mix", x);
    let of = b
        .dims(&l.weight_name("time_mix_lerp_fused"))
        .map_or(0, |d| d.iter().product::<u64>() as usize);
    let mut part = |i: usize, name: &str| {
        pair.lerp(l, b, "time_mix_lerp_fused", Part { at: i * width, take: width, of }, name)
    };
    let (r, w, k) = (part(0, "mix_r")?, part(1, "mix_w")?, part(2, "mix_k")?);
    let (v, a) = (part(3, "mix_v")?, part(4, "mix_a")?);
    let gate = if l.has(b, "time_mix_g1") {
        let x = pair.lerp(
            l,
            b,
            "time_mix_lerp_fused",
            Part { at: 5 * width, take: width, of },
            "mix_g",
        )?;
        Some(low_rank(l, b, ("time_mix_g1", "time_mix_g2"), x, Activation::Sigmoid)?)
    } else {
        None
    };
    let r = l.project(b, "time_mix_receptance", r, width, width)?;
    let k = l.project(b, "time_mix_key", k, width, width)?;
    // The state decays by e^(−e^(−½) · sigmoid(w)).
    let w = low_rank(l, b, ("time_mix_w1", "time_mix_w2"), w, Activation::Tanh)?;
    let w = add_vector(l, b, w, "time_mix_w0")?;
    let w = b.act(l.name("decay_sigmoid"), w, Activation::Sigmoid);
    let w = b.affine(l.name("decay_log"), w, -0.606_531, (None, None));
    let w = b.act(l.name("decay"), w, Activation::Exp);
    let mix_v = v;
    let mut v = l.project(b, "time_mix_value", mix_v, width, width)?;
    match *first {
        None => *first = Some(v),
        Some(first) => {
            let share =
                low_rank(l, b, ("time_mix_v1", "time_mix_v2"), mix_v, Activation::Identity)?;
            let share = add_vector(l, b, share, "time_mix_v0")?;
            let minus = b.affine(l.name("value_minus"), v, -1.0, (None, None));
            let way = b.add(l.name("value_back"), first, minus);
            let way = b.glu(l.name("value_way"), share, way, Activation::Sigmoid);
            v = b.add(l.name("value"), v, way);
        }
    }
    let a = low_rank(l, b, ("time_mix_a1", "time_mix_a2"), a, Activation::Identity)?;
    let a = add_vector(l, b, a, "time_mix_a0")?;
    let a = b.act(l.name("rate"), a, Activation::Sigmoid);
    let kk = multiply_by_vector(l, b, k, "time_mix_k_k")?;
    let kk = b.norm(l.name("removal"), kk, NormKind::Length, size, (None, None), 1e-12);
    // k + (a − 1) · k_a · k.
    let ka = multiply_by_vector(l, b, k, "time_mix_k_a")?;
    let aka = b.glu(l.name("key_rate"), a, ka, Activation::Identity);
    let minus = b.affine(l.name("key_minus"), ka, -1.0, (None, None));
    let change = b.add(l.name("key_change"), aka, minus);
    let k = b.add(l.name("key"), k, change);
    let taken = b.affine(l.name("removal_minus"), kk, -1.0, (None, None));
    let put = b.glu(l.name("removal_rate"), a, kk, Activation::Identity);
    let inputs = LinearInputs { q: r, k, v, w, correction: Some((taken, put)), bonus: None };
    let y = b.linear_attention(&l.name("wkv"), inputs, count);
    let y = head_norm(l, b, y, size)?;
    // The token's own value, weighted by the product of its key and receptance.
    let weighed = multiply_by_vector(l, b, r, "time_mix_r_k")?;
    let fit = b.dot(l.name("own_fit"), k, weighed, count);
    let own = b.glu(l.name("own"), fit, v, Activation::Identity);
    let mut y = b.add(l.name("wkv_own"), y, own);
    if let Some(g) = gate {
        y = b.glu(l.name("time_mix_gated"), g, y, Activation::Identity);
    }
    l.project(b, "time_mix_output", y, width, width)
}

fn channel_mix7(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (width, ffn) = (l.h().width, l.h().size("feed_forward_length")?);
    let pair = Pair::new(l, b, "channel_mix", x);
    let k = pair.lerp(l, b, "channel_mix_lerp_k", Part::all(width), "channel_mix_k")?;
    let k = l.project(b, "channel_mix_key", k, ffn, width)?;
    let k = b.act(l.name("channel_mix_act"), k, Activation::ReluSquared);
    l.project(b, "channel_mix_value", k, width, ffn)
}
