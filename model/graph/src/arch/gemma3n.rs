//! Gemma 3n (Google 2025): several residual streams (AltUp, arXiv 2301.13310), a low-rank branch
//! next to attention (Laurel, arXiv 2411.07501), sparse gates, layers that share keys and values,
//! and an embedding for each layer.

use super::decoder::finish;
use super::gemma::{FACTS, SharedKv, attention, layer_branch, layer_inputs};
use super::layer::{Layer, Model};
use crate::op::NormKind;
use crate::{Activation, Builder, Graph, GraphError, ValueId};
use kjit_gguf::Gguf;

/// An epsilon far below any row norm (√Σx²) that occurs.
const TINY: f32 = 1e-12;

pub fn build(gguf: &Gguf) -> Result<Graph, GraphError> {
    let (m, mut b) = Model::open(gguf, &FACTS)?;
    let (x, table) = m.embedding(&mut b)?;
    let per_layer = layer_inputs(&m, &mut b, x, 256)?;
    // The defaults are the values of the published models.
    let streams = m.h.opt_size("altup.num_inputs")?.unwrap_or(4);
    let active = m.h.number("altup.active_idx")?.unwrap_or(0);
    if active >= streams || streams < 2 {
        return Err(m.h.bad(
            "altup.active_idx",
            active,
            &format!("the model has only {streams} streams"),
        ));
    }
    let mut all = initial_streams(&m, &mut b, x, streams, active)?;
    let mut shared = SharedKv::read(&m, m.h.layers.saturating_sub(20))?;
    for i in 0..m.h.layers {
        let (l, b) = (m.layer(i, x), &mut b);
        let predicted = predict(&l, b, &all, active)?;
        let x = *predicted.get(active).unwrap_or(&x);
        let out = layer(&l, b, x, &mut shared)?;
        all = correct(&l, b, &predicted, x, out, active)?;
        if let (Some(own), Some(&first)) = (per_layer.get(i), all.get(active)) {
            let scale = b.vector(&l.weight_name("altup_correct_scale"), m.h.width)?;
            let first = b.affine(l.name("altup_scaled"), first, 1.0, (Some(scale), None));
            let branch = layer_branch(&l, b, first, *own)?;
            for (s, stream) in all.iter_mut().enumerate().filter(|(s, _)| *s != active) {
                *stream = b.add(l.name(&format!("residual.{s}")), *stream, branch);
            }
        }
    }
    let x = merged_streams(&m, &mut b, &all, active)?;
    finish(&m, b, x, table)
}

/// The norm of a row, √Σx².
fn length(b: &mut Builder<'_>, name: &str, x: ValueId) -> ValueId {
    let squares = b.dot(format!("{name}_squares"), x, x, 1);
    b.act(format!("{name}_length"), squares, Activation::Sqrt)
}

/// Projections for all streams except the active stream, each scaled to the norm of `like`.
fn projected(
    m: &Model<'_>,
    b: &mut Builder<'_>,
    name: &str,
    (x, like): (ValueId, ValueId),
    others: usize,
) -> Result<ValueId, GraphError> {
    let width = m.h.width;
    let w = b.experts(&format!("{name}.weight"), others, width, width)?;
    let made = b.head_matmul(name, x, w);
    let made = b.norm(format!("{name}_unit"), made, NormKind::Length, width, (None, None), TINY);
    let length = length(b, name, like);
    Ok(b.glu(format!("{name}_like"), length, made, Activation::Identity))
}

/// The streams from the embedding. The active stream is the embedding.
fn initial_streams(
    m: &Model<'_>,
    b: &mut Builder<'_>,
    x: ValueId,
    streams: usize,
    active: usize,
) -> Result<Vec<ValueId>, GraphError> {
    let width = m.h.width;
    let others = projected(m, b, "altup_proj", (x, x), streams - 1)?;
    let other =
        |b: &mut Builder<'_>, s: usize| b.slice(format!("stream.{s}"), others, 1, s * width, width);
    Ok((0..streams)
        .map(|s| match s.cmp(&active) {
            std::cmp::Ordering::Less => other(b, s),
            std::cmp::Ordering::Equal => x,
            std::cmp::Ordering::Greater => other(b, s - 1),
        })
        .collect())
}

/// Merges the streams: the mean of the active stream and the projections of the others.
fn merged_streams(
    m: &Model<'_>,
    b: &mut Builder<'_>,
    all: &[ValueId],
    active: usize,
) -> Result<ValueId, GraphError> {
    let width = m.h.width;
    let mut others = all.iter().enumerate().filter(|(s, _)| *s != active).map(|(_, x)| *x);
    let (Some(&x), Some(first)) = (all.get(active), others.next()) else {
        return Err(m.h.bad("altup.num_inputs", all.len(), "expected more than one stream"));
    };
    let side = others
        .enumerate()
        .fold(first, |side, (s, x)| b.concat(format!("streams.{s}"), side, x, 1, width));
    let back = projected(m, b, "altup_unembd_proj", (side, x), all.len() - 1)?;
    let mut sum = x;
    for s in 0..all.len() - 1 {
        let one = b.slice(format!("stream.{s}.back"), back, 1, s * width, width);
        sum = b.add(format!("stream.{s}.sum"), sum, one);
    }
    Ok(b.affine("streams_mean", sum, 1.0 / all.len() as f32, (None, None)))
}

/// The coefficients with which a layer predicts and corrects: a few numbers computed from a stream.
fn modalities(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    streams: usize,
) -> Result<ValueId, GraphError> {
    let width = l.h().width;
    let x = l.norm(b, "altup_router_norm", x)?;
    let x = b.affine(l.name("altup_router_scaled"), x, 1.0 / width as f32, (None, None));
    let x = l.project(b, "altup_router", x, streams, width)?;
    Ok(b.act(l.name("altup_router_tanh"), x, Activation::Tanh))
}

/// Predicts each stream as a mix of all streams.
fn predict(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    all: &[ValueId],
    active: usize,
) -> Result<Vec<ValueId>, GraphError> {
    let n = all.len();
    let Some(&x) = all.get(active) else { return Ok(all.to_vec()) };
    let modal = modalities(l, b, x, n)?;
    let parts = l.project(b, "altup_predict_coef", modal, n * n, n)?;
    let mut predicted = vec![];
    for (to, &stream) in all.iter().enumerate() {
        let mut sum = stream;
        for (from, &other) in all.iter().enumerate() {
            let name = |what: &str| l.name(&format!("altup_{what}.{to}.{from}"));
            let part = b.slice(name("part"), parts, 1, to * n + from, 1);
            let part = b.glu(name("taken"), part, other, Activation::Identity);
            sum = b.add(name("sum"), sum, part);
        }
        predicted.push(sum);
    }
    Ok(predicted)
}

/// Corrects each predicted stream by a fraction of the layer's result for the active stream.
fn correct(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    predicted: &[ValueId],
    x: ValueId,
    out: ValueId,
    active: usize,
) -> Result<Vec<ValueId>, GraphError> {
    debug_assert!(predicted.get(active) == Some(&x));
    let n = predicted.len();
    let modal = modalities(l, b, out, n)?;
    let parts = l.project(b, "altup_correct_coef", modal, n, n)?;
    let minus = b.affine(l.name("altup_minus"), x, -1.0, (None, None));
    let new = b.add(l.name("altup_new"), out, minus);
    let mut all = vec![];
    for (s, &stream) in predicted.iter().enumerate() {
        let name = |what: &str| l.name(&format!("altup_{what}.{s}"));
        let part = b.slice(name("share"), parts, 1, s, 1);
        let part = b.glu(name("shared"), part, new, Activation::Identity);
        // The factor is `1 + part`: the whole plus a part.
        let whole = b.add(name("whole"), stream, new);
        all.push(b.add(name("corrected"), whole, part));
    }
    Ok(all)
}

/// Attention with a low-rank branch, then a sparse feed-forward part.
fn layer(
    l: &Layer<'_, '_>,
    b: &mut Builder<'_>,
    x: ValueId,
    shared: &mut SharedKv,
) -> Result<ValueId, GraphError> {
    let width = l.h().width;
    let normed = l.norm(b, "attn_norm", x)?;
    let rank = b.dims(&l.weight_name("laurel_l")).and_then(|d| d.get(1)).map_or(0, |&n| n as usize);
    let low = l.project(b, "laurel_l", normed, rank, width)?;
    let low = l.project(b, "laurel_r", low, width, rank)?;
    let low = l.norm(b, "laurel_post_norm", low)?;
    let low = b.add(l.name("laurel"), low, normed);
    let mixed = attention(l, b, normed, shared)?;
    let mixed = l.norm(b, "post_attention_norm", mixed)?;
    let mixed = b.add(l.name("attn_residual"), x, mixed);
    let both = b.add(l.name("attn_laurel"), mixed, low);
    let both =
        b.affine(l.name("attn_laurel_scaled"), both, std::f32::consts::FRAC_1_SQRT_2, (None, None));
    let normed = l.norm(b, "ffn_norm", both)?;
    let out = sparse_unit(l, b, normed)?;
    let out = l.norm(b, "post_ffw_norm", out)?;
    Ok(b.add(l.name("residual"), both, out))
}

/// A gated feed-forward part. In layers with a sparsity above zero, gates below mean + n standard
/// deviations become zero.
fn sparse_unit(l: &Layer<'_, '_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (h, width) = (l.h(), l.h().width);
    let size = h.need_at("feed_forward_length", l.index)?;
    let mut gate = l.project(b, "ffn_gate", x, size, width)?;
    let up = l.project(b, "ffn_up", x, size, width)?;
    let key = h.key("activation_sparsity_scale");
    let deviations = match h.gguf().opt_f32s(&key)? {
        Some(all) => all.get(l.index).copied().unwrap_or(0.0),
        None if l.index < 10 => 1.644_853_6,
        None => 0.0,
    };
    if deviations > 0.0 && size > 1 {
        // This deviation divides by n, but the definition of the threshold uses n − 1.
        let n = size as f32;
        let units =
            b.norm(l.name("ffn_gate_units"), gate, NormKind::Layer, size, (None, None), TINY);
        let over = b.act(
            l.name("ffn_gate_over"),
            units,
            Activation::Above(deviations * (n / (n - 1.0)).sqrt()),
        );
        // Σ x · (x − mean) / σ is n σ.
        let sigma = b.dot(l.name("ffn_gate_dot"), gate, units, 1);
        let sigma = b.affine(l.name("ffn_gate_sigma"), sigma, 1.0 / n, (None, None));
        gate = b.glu(l.name("ffn_gate_sparse"), sigma, over, Activation::Identity);
    }
    let hidden = b.glu(l.name("ffn_glu"), gate, up, Activation::GeluTanh);
    l.project(b, "ffn_down", hidden, width, size)
}
