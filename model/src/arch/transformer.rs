//! What the architectures share: the steps of a decoder block, spelled once. Which steps a model takes stands in its own file.

use super::hparams::Hparams;
use crate::graph::{Activation, Builder, CacheId, Graph, GraphError, RopeId, ValueId, WeightId};

/// Names and shapes of one layer.
pub struct Layer<'h, 'a> {
    /// The model's sizes.
    pub h: &'h Hparams<'a>,
    /// Which layer.
    pub index: usize,
}

/// Parts of attention in which the models differ.
pub struct AttentionParts {
    /// Queries and keys are normed per head before they turn.
    pub qk_norm: bool,
    /// Factor on scores.
    pub scale: f32,
    /// Rotation.
    pub rope: RopeId,
    /// Tokens back that are seen.
    pub window: Option<usize>,
}

impl Layer<'_, '_> {
    /// `blk.3.name`: of a value.
    pub fn name(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.index)
    }

    /// `blk.3.name.weight`: of a tensor.
    pub fn weight_name(&self, name: &str) -> String {
        format!("blk.{}.{name}.weight", self.index)
    }

    /// RMS norm over the whole width.
    pub fn norm(&self, b: &mut Builder, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let w = b.vector(&self.weight_name(name), self.h.width)?;
        Ok(b.rms_norm(self.name(name), x, w, self.h.eps))
    }

    /// RMS norm of each head, if the model has it.
    fn head_norm(&self, b: &mut Builder, name: &str, x: ValueId) -> Result<ValueId, GraphError> {
        let w = b.vector(&self.weight_name(name), self.h.head_dim)?;
        Ok(b.rms_norm(self.name(name), x, w, self.h.eps))
    }

    /// A projection; its bias is used wherever the file has one.
    pub fn project(
        &self,
        b: &mut Builder,
        name: &str,
        x: ValueId,
        rows: usize,
        cols: usize,
    ) -> Result<ValueId, GraphError> {
        let w = b.matrix(&self.weight_name(name), rows, cols)?;
        let bias = b.opt_vector(&self.name(&format!("{name}.bias")), rows)?;
        Ok(b.matmul(self.name(name), x, w, bias))
    }

    /// Queries, keys, values, rotation, cache, attention and output projection.
    pub fn attention(&self, b: &mut Builder, x: ValueId, parts: &AttentionParts) -> Result<ValueId, GraphError> {
        let (heads, kv_heads, dim) = (self.h.heads, self.h.kv_heads, self.h.head_dim);
        let mut q = self.project(b, "attn_q", x, heads * dim, self.h.width)?;
        let mut k = self.project(b, "attn_k", x, kv_heads * dim, self.h.width)?;
        let v = self.project(b, "attn_v", x, kv_heads * dim, self.h.width)?;
        if parts.qk_norm {
            q = self.head_norm(b, "attn_q_norm", q)?;
            k = self.head_norm(b, "attn_k_norm", k)?;
        }
        let q = b.rope(self.name("attn_q_rope"), q, heads, parts.rope);
        let k = b.rope(self.name("attn_k_rope"), k, kv_heads, parts.rope);
        let cache: CacheId = b.cache(format!("blk.{}", self.index), kv_heads, dim, parts.window);
        b.kv_write(k, v, cache);
        let mixed = b.attention(self.name("attn"), q, cache, heads, parts.scale);
        self.project(b, "attn_output", mixed, self.h.width, heads * dim)
    }

    /// The gated feed-forward part.
    pub fn feed_forward(
        &self,
        b: &mut Builder,
        x: ValueId,
        ffn: usize,
        act: Activation,
    ) -> Result<ValueId, GraphError> {
        let gate = self.project(b, "ffn_gate", x, ffn, self.h.width)?;
        let up = self.project(b, "ffn_up", x, ffn, self.h.width)?;
        let hidden = b.glu(self.name("ffn_glu"), gate, up, act);
        self.project(b, "ffn_down", hidden, self.h.width, ffn)
    }
}

/// A decoder of pre-normed blocks, `x += attention(norm(x)); x += rest(norm(x))`: llama's shape, and that of its relatives.
pub fn pre_norm_decoder(
    mut b: Builder,
    h: &Hparams,
    parts: &AttentionParts,
    mut rest: impl FnMut(&Layer, &mut Builder, ValueId) -> Result<ValueId, GraphError>,
) -> Result<Graph, GraphError> {
    let (mut x, embedding) = embedding(&mut b, h, 1.0)?;
    for index in 0..h.layers {
        let l = Layer { h, index };
        let normed = l.norm(&mut b, "attn_norm", x)?;
        let mixed = l.attention(&mut b, normed, parts)?;
        x = b.add(l.name("attn_residual"), x, mixed);
        let normed = l.norm(&mut b, "ffn_norm", x)?;
        let out = rest(&l, &mut b, normed)?;
        x = b.add(l.name("residual"), x, out);
    }
    let logits = head(&mut b, h, x, embedding)?;
    Ok(b.finish(logits))
}

/// The token embedding.
pub fn embedding(b: &mut Builder, h: &Hparams, scale: f32) -> Result<(ValueId, WeightId), GraphError> {
    let table = b.matrix("token_embd.weight", h.vocab, h.width)?;
    Ok((b.embed("embed", table, scale), table))
}

/// Final norm and output projection; a file without `output.weight` uses the embedding's matrix again.
pub fn head(b: &mut Builder, h: &Hparams, x: ValueId, embedding: WeightId) -> Result<ValueId, GraphError> {
    let w = b.vector("output_norm.weight", h.width)?;
    let x = b.rms_norm("output_norm", x, w, h.eps);
    let output = match b.has("output.weight") {
        true => b.matrix("output.weight", h.vocab, h.width)?,
        false => embedding,
    };
    Ok(b.matmul("logits", x, output, None))
}
