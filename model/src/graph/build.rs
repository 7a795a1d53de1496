//! Putting a graph together: weights are looked up and checked against the file as they are named, shapes follow from them.

use super::*;
use crate::gguf::{self, Gguf};
use std::collections::HashMap;

/// Why a file's metadata and tensors are no model that kjit can run.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The metadata could not be read.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// No such architecture here.
    #[error("architecture '{arch}' is not one that kjit runs (it runs {known})")]
    UnknownArch {
        /// `general.architecture`.
        arch: String,
        /// The ones it runs.
        known: String,
    },
    /// No tensor at all.
    #[error(
        "the file has a vocabulary and no tensors: tokenize, detokenize and template take it, no model can be run from it"
    )]
    NoTensors,
    /// A tensor that the architecture needs is absent.
    #[error("tensor '{name}' is missing: architecture '{arch}' needs it")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// `general.architecture`.
        arch: String,
    },
    /// A tensor has another shape than the metadata says.
    #[error("tensor '{name}' has shape {found:?}, the metadata asks for {want:?} (row length first)")]
    Shape {
        /// The tensor.
        name: String,
        /// Its dimensions.
        found: Vec<u64>,
        /// The dimensions asked for.
        want: Vec<u64>,
    },
    /// A tensor's type is known but cannot be computed with.
    #[error("tensor '{name}' has type {ty}, with which kjit cannot compute; re-quantise the model to another type")]
    Format {
        /// The tensor.
        name: String,
        /// ggml's name of the type.
        ty: String,
    },
    /// A value in the metadata makes no sense.
    #[error("key '{key}' is {value}: {why}")]
    Value {
        /// The key.
        key: String,
        /// What it holds.
        value: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Builds a [`Graph`] from a file.
pub struct Builder<'a> {
    gguf: &'a Gguf,
    graph: Graph,
    by_name: HashMap<String, WeightId>,
}

impl<'a> Builder<'a> {
    /// Starts with no operations.
    pub fn new(gguf: &'a Gguf, arch: &str, context: usize) -> Self {
        let graph = Graph {
            arch: arch.to_string(),
            context,
            weights: vec![],
            ropes: vec![],
            caches: vec![],
            values: vec![],
            ops: vec![],
            logits: ValueId(0),
        };
        Builder { gguf, graph, by_name: HashMap::new() }
    }

    /// Whether the file has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.tensor_info(name).is_some()
    }

    /// The matrix of this name, which must have exactly this shape.
    ///
    /// # Errors
    /// A tensor that the file has not, in another shape, or in a format that kjit does not decode: named.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, GraphError> {
        self.weight(name, 1, rows, cols, vec![cols as u64, rows as u64])
    }

    /// The stack of one matrix per expert.
    ///
    /// # Errors
    /// As for a matrix.
    pub fn experts(&mut self, name: &str, experts: usize, rows: usize, cols: usize) -> Result<WeightId, GraphError> {
        self.weight(name, experts, rows, cols, vec![cols as u64, rows as u64, experts as u64])
    }

    /// The vector of this name. Norms, biases and factors are plain floats in every file; a quantised one is refused.
    ///
    /// # Errors
    /// As for a matrix; [`GraphError::Format`].
    pub fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, GraphError> {
        let id = self.weight(name, 1, 1, len, vec![len as u64])?;
        let format = self.graph.weight(id).format;
        match format.block_elems() {
            1 => Ok(id),
            _ => Err(GraphError::Format { name: name.to_string(), ty: format.name.to_string() }),
        }
    }

    /// The vector, if the file has it.
    ///
    /// # Errors
    /// As for a vector that is there.
    pub fn opt_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightId>, GraphError> {
        self.has(name).then(|| self.vector(name, len)).transpose()
    }

    fn weight(
        &mut self,
        name: &str,
        experts: usize,
        rows: usize,
        cols: usize,
        want: Vec<u64>,
    ) -> Result<WeightId, GraphError> {
        let tensor = self
            .gguf
            .tensor_info(name)
            .ok_or_else(|| GraphError::MissingTensor { name: name.to_string(), arch: self.graph.arch.clone() })?;
        // Trailing dimensions of one are written by some converters and not by others.
        let trim = |dims: &[u64]| {
            let used = dims.iter().rposition(|&d| d != 1).map_or(1, |i| i + 1);
            dims.get(..used).unwrap_or(dims).to_vec()
        };
        if trim(tensor.dims()) != trim(&want) {
            return Err(GraphError::Shape { name: name.to_string(), found: tensor.dims().to_vec(), want });
        }
        if let Some(&id) = self.by_name.get(name) {
            return Ok(id);
        }
        let format = Format::by_id(tensor.ty().0)
            .ok_or_else(|| GraphError::Format { name: name.to_string(), ty: tensor.ty().to_string() })?;
        let id = WeightId(self.graph.weights.len() as u32);
        self.graph.weights.push(Weight { name: name.to_string(), experts, rows, cols, format });
        self.by_name.insert(name.to_string(), id);
        Ok(id)
    }

    /// A rotation, shared with an equal one that is there already.
    pub fn rope_table(&mut self, rope: Rope) -> RopeId {
        let at = self.graph.ropes.iter().position(|r| *r == rope).unwrap_or_else(|| {
            self.graph.ropes.push(rope);
            self.graph.ropes.len() - 1
        });
        RopeId(at as u32)
    }

    /// A cache of keys and values.
    pub fn cache(&mut self, name: String, heads: usize, head_dim: usize, window: Option<usize>) -> CacheId {
        self.graph.caches.push(Cache { name, heads, head_dim, window });
        CacheId(self.graph.caches.len() as u32 - 1)
    }

    fn value(&mut self, name: String, slots: usize, width: usize, dtype: Dtype) -> ValueId {
        debug_assert!(self.graph.find(&name).is_none(), "two values are named {name}");
        self.graph.values.push(Value { name, slots, width, dtype });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    fn like(&mut self, name: String, x: ValueId) -> ValueId {
        let Value { slots, width, dtype, .. } = *self.graph.value(x);
        self.value(name, slots, width, dtype)
    }

    fn push(&mut self, op: Op, out: ValueId) -> ValueId {
        self.graph.ops.push(op);
        out
    }

    /// [`Op::Embed`].
    pub fn embed(&mut self, name: impl Into<String>, table: WeightId, scale: f32) -> ValueId {
        let width = self.graph.weight(table).cols;
        let out = self.value(name.into(), 1, width, Dtype::Real);
        self.push(Op::Embed { table, scale, out }, out)
    }

    /// [`Op::RmsNorm`].
    pub fn rms_norm(&mut self, name: impl Into<String>, x: ValueId, weight: WeightId, eps: f32) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::RmsNorm { x, weight, eps, out }, out)
    }

    /// [`Op::MatMul`].
    pub fn matmul(&mut self, name: impl Into<String>, x: ValueId, weight: WeightId, bias: Option<WeightId>) -> ValueId {
        let rows = self.graph.weight(weight).rows;
        let out = self.value(name.into(), 1, rows, Dtype::Real);
        self.push(Op::MatMul { x, weight, bias, out }, out)
    }

    /// [`Op::Rope`].
    pub fn rope(&mut self, name: impl Into<String>, x: ValueId, heads: usize, rope: RopeId) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Rope { x, heads, rope, out }, out)
    }

    /// [`Op::KvWrite`].
    pub fn kv_write(&mut self, k: ValueId, v: ValueId, cache: CacheId) {
        self.graph.ops.push(Op::KvWrite { k, v, cache });
    }

    /// [`Op::Attention`].
    pub fn attention(
        &mut self,
        name: impl Into<String>,
        q: ValueId,
        cache: CacheId,
        heads: usize,
        scale: f32,
    ) -> ValueId {
        let out = self.like(name.into(), q);
        self.push(Op::Attention { q, cache, heads, scale, soft_cap: None, out }, out)
    }

    /// [`Op::Glu`].
    pub fn glu(&mut self, name: impl Into<String>, gate: ValueId, up: ValueId, act: Activation) -> ValueId {
        let out = self.like(name.into(), gate);
        self.push(Op::Glu { gate, up, act, out }, out)
    }

    /// [`Op::Add`].
    pub fn add(&mut self, name: impl Into<String>, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(name.into(), a);
        self.push(Op::Add { a, b, out }, out)
    }

    /// [`Op::Route`]; the values are `name.experts` and `name.shares`.
    pub fn route(
        &mut self,
        name: &str,
        scores: ValueId,
        top: usize,
        renormalise: bool,
        scale: f32,
    ) -> (ValueId, ValueId) {
        let experts = self.value(format!("{name}.experts"), 1, top, Dtype::Index);
        let shares = self.value(format!("{name}.shares"), 1, top, Dtype::Real);
        self.graph.ops.push(Op::Route { scores, top, renormalise, scale, experts, shares });
        (experts, shares)
    }

    /// [`Op::ExpertMatMul`].
    pub fn expert_matmul(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        experts: ValueId,
        weight: WeightId,
    ) -> ValueId {
        let (slots, rows) = (self.graph.value(experts).width, self.graph.weight(weight).rows);
        let out = self.value(name.into(), slots, rows, Dtype::Real);
        self.push(Op::ExpertMatMul { x, experts, weight, out }, out)
    }

    /// [`Op::ExpertSum`].
    pub fn expert_sum(&mut self, name: impl Into<String>, x: ValueId, shares: ValueId) -> ValueId {
        let width = self.graph.value(x).width;
        let out = self.value(name.into(), 1, width, Dtype::Real);
        self.push(Op::ExpertSum { x, shares, out }, out)
    }

    /// The graph, with this value as its result.
    pub fn finish(mut self, logits: ValueId) -> Graph {
        self.graph.logits = logits;
        self.graph
    }
}
