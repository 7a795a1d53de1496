//! A decoder (or encoder) built from its facts. Each layer has two parts, attention and
//! feed-forward.

use super::facts::{Facts, Parallel, Scale};
use super::layer::{Layer, Model};
use crate::op::By;
use crate::{Activation, Builder, Graph, GraphError, Part, Pooling, ValueId, WeightId};
use kjit_gguf::Gguf;

/// The tensor that is added to the logits.
pub const OUTPUT_BIAS: &str = "output.bias";

/// Builds the graph of a file from its facts.
pub fn build(gguf: &Gguf, facts: &Facts) -> Result<Graph, GraphError> {
    let (m, mut b) = Model::open(gguf, facts)?;
    let (x, table) = input(&m, &mut b)?;
    let x = (0..m.h.layers).try_fold(x, |x, i| layer(&m.layer(i, x), &mut b))?;
    finish(&m, b, x, table)
}

/// The input of the first layer: token embedding, learned positions, token types, norm.
pub fn input(m: &Model<'_>, b: &mut Builder<'_>) -> Result<(ValueId, WeightId), GraphError> {
    let (mut x, table) = m.embedding(b)?;
    if let Some(dims) = b.dims("position_embd.weight") {
        let rows = dims.get(1).map_or(0, |&n| n as usize);
        let positions = b.matrix("position_embd.weight", rows, m.h.width)?;
        b.limit_positions(rows);
        let positions = b.embed("position_embed", positions, By::Position, 1.0);
        x = b.add("embed_at", x, positions);
    }
    if let Some(dims) = b.dims("token_types.weight") {
        // A single text has token type 0 for all tokens.
        let of = dims.iter().product::<u64>() as usize;
        let first = b.vector_part("token_types.weight", Part { at: 0, take: m.h.width, of })?;
        x = b.affine("embed_typed", x, 1.0, (None, Some(first)));
    }
    if m.facts.out_norm != "token_embd_norm" && b.has("token_embd_norm.weight") {
        x = m.norm(b, "token_embd_norm", x)?;
    }
    Ok((x, table))
}

/// One layer.
pub fn layer(l: &Layer<'_, '_>, b: &mut Builder<'_>) -> Result<ValueId, GraphError> {
    let (facts, x) = (&l.m.facts, l.input);
    let norms = facts.norms;
    let maybe =
        |b: &mut Builder<'_>, name: Option<&str>, x| name.map_or(Ok(x), |name| l.norm(b, name, x));
    let scale = l.m.scale(facts.residual_scale, 1.0)?;
    // The first layer of ModernBERT reads the normalised embedding directly.
    let before = norms.before.filter(|name| !facts.encoder || l.has(b, name));
    let normed = maybe(b, before, x)?;
    // The larger Falcon model has a separate norm for each of the two parts.
    let own = facts.parallel == Parallel::SameNorm && l.has(b, "attn_norm_2");
    let to_mix = if own { l.norm(b, "attn_norm_2", x)? } else { normed };
    let mixed = (facts.mix)(l, b, to_mix)?;
    if facts.norm_sums {
        let sum = b.add(l.name("attn_residual"), x, mixed);
        let mut normed = maybe(b, norms.after, sum)?;
        if l.has(b, "attn_norm_2") {
            // Jina's code models add the input of attention twice.
            let sum = b.add(l.name("attn_residual_2"), normed, x);
            normed = l.norm(b, "attn_norm_2", sum)?;
        }
        let out = (facts.rest)(l, b, normed)?;
        let sum = b.add(l.name("residual"), normed, out);
        return maybe(b, norms.ffn_after, sum);
    }
    let mixed = maybe(b, norms.after, mixed)?;
    let mixed = b.affine(l.name("attn_weighed"), mixed, scale, (None, None));
    let second = norms.ffn.is_some_and(|name| l.has(b, name));
    let parallel = match facts.parallel {
        Parallel::No => false,
        Parallel::SameNorm => true,
        Parallel::IfKey => l.h().flag("use_parallel_residual")?.unwrap_or(true),
        Parallel::IfNoNorm => !second,
    };
    let added = b.add(l.name("attn_residual"), x, mixed);
    let from = match (parallel, facts.parallel) {
        (false, _) => maybe(b, norms.ffn, added)?,
        (true, Parallel::IfKey) => maybe(b, norms.ffn, x)?,
        (true, _) => normed,
    };
    let out = (facts.rest)(l, b, from)?;
    // Converters of Grok use two names for this norm.
    const OTHER: &str = "post_ffw_norm";
    let after =
        norms.ffn_after.map(|name| if !l.has(b, name) && l.has(b, OTHER) { OTHER } else { name });
    let out = maybe(b, after, out)?;
    let out = b.affine(l.name("ffn_weighed"), out, scale, (None, None));
    Ok(b.add(l.name("residual"), added, out))
}

/// The last norm and the logits.
pub fn finish(
    m: &Model<'_>,
    mut b: Builder<'_>,
    x: ValueId,
    table: WeightId,
) -> Result<Graph, GraphError> {
    let x = match m.facts.out_norm {
        "" => x,
        name => m.norm(&mut b, name, x)?,
    };
    if m.facts.encoder {
        let x = dense(m, &mut b, x)?;
        // Mean pooling is the default: most encoders were trained with it.
        b.pool(super::pooling(m.h.gguf())?.unwrap_or(Pooling::Mean));
        return complete(m, b, x);
    }
    let logits = head(m, &mut b, x, table)?;
    complete(m, b, logits)
}

/// The dense modules of sentence transformers: two projections, if the file has them. They are
/// applied to each row and not to the pooled vector. The result is equal, because pooling takes a
/// mean of rows or one row.
fn dense(m: &Model<'_>, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, GraphError> {
    let (mut x, mut width) = (x, m.h.width);
    for name in ["dense_2", "dense_3"] {
        let tensor = format!("{name}.weight");
        if let Some(&rows) = b.dims(&tensor).and_then(|d| d.get(1)) {
            let weight = b.matrix(&tensor, rows as usize, width)?;
            (x, width) = (b.matmul(name, x, weight, None), rows as usize);
        }
    }
    Ok(x)
}

/// Output projection. A file without `output.weight` uses the matrix of the embedding.
pub fn head(
    m: &Model<'_>,
    b: &mut Builder<'_>,
    x: ValueId,
    table: WeightId,
) -> Result<ValueId, GraphError> {
    let output = match b.has("output.weight") {
        true => b.matrix("output.weight", m.h.vocab, m.h.width)?,
        false => table,
    };
    let bias =
        b.opt_vector(OUTPUT_BIAS, m.h.vocab)?.filter(|_| !m.facts.unused.contains(&OUTPUT_BIAS));
    let scale = m.scale(m.facts.logit_scale, 1.0)?;
    let cap = m.cap("final_logit_softcapping", m.facts.final_cap)?;
    // The result is always named `logits`, even if no factor or cap is applied.
    let scaled = matches!(m.facts.logit_scale, Scale::One) || scale == 1.0;
    let name = |last: bool| if last { "logits" } else { "scores" };
    let out = b.matmul(name(scaled && cap.is_none()), x, output, bias);
    let out = match scaled {
        true => out,
        false => b.affine(
            if cap.is_none() { "logits" } else { "scores_scaled" },
            out,
            scale,
            (None, None),
        ),
    };
    Ok(match cap {
        Some(cap) => b.act("logits", out, Activation::SoftCap(cap)),
        None => out,
    })
}

/// The finished graph. An unused tensor is an error, except the tensors in `ANY` and in the facts.
pub fn complete(m: &Model<'_>, b: Builder<'_>, logits: ValueId) -> Result<Graph, GraphError> {
    // Tensors that kjit ignores: rotations that kjit computes, long and short rotation factors, and
    // scales of formats that kjit does not have.
    const ANY: &[&str] =
        &["rope_freqs", "rope_factors_", "rot_embd", "rope.freqs", "inv_freq", ".nextn."];
    let layers = m.h.layers;
    b.finish(logits, |name| {
        let beyond = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        beyond.is_some_and(|n| n >= layers)
            || ANY.iter().chain(m.facts.unused).any(|part| name.contains(part))
    })
}
