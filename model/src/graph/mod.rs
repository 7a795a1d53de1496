//! What a model computes, as data: a list of operations over named values, with shapes and weight names.
//!
//! A [`Graph`] describes one step over T tokens. Every value has a row per token; nothing here says how, where, in which
//! precision or in what order of memory it is computed: that is the executors' business ([`host`](crate::host) runs a graph as it
//! stands, and is what everything else is held against). Operations are in an order in which they can be run.

mod build;
mod print;
mod rope;

pub use build::{Builder, GraphError};
pub use rope::{Pairing, Rope, RopeScaling};

use kjit_kernels::format::Format;

/// Index of a [`Value`] in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a [`Weight`] in [`Graph::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Index of a [`Cache`] in [`Graph::caches`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// Index of a [`Rope`] in [`Graph::ropes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// What the elements of a value are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// A real number; executors choose the storage, f32 is the truth.
    Real,
    /// An index (of an expert).
    Index,
}

/// A value: `slots × width` elements for every token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Unique name, the op that makes it: `blk.0.attn_norm`. Any value can be tapped by it.
    pub name: String,
    /// Rows per token: 1, or one for each chosen expert.
    pub slots: usize,
    /// Elements in a row.
    pub width: usize,
    /// What the elements are.
    pub dtype: Dtype,
}

/// A weight tensor in the model file: `experts` matrices of `rows` rows of `cols`, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// The tensor's name in the file.
    pub name: String,
    /// Matrices stacked in the tensor: 1, or the number of experts.
    pub experts: usize,
    /// Rows (outputs); 1 for a vector.
    pub rows: usize,
    /// Length of a row (inputs).
    pub cols: usize,
    /// How the elements are encoded.
    pub format: &'static Format,
}

impl Weight {
    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> usize {
        self.experts * self.rows * (self.cols / self.format.block_elems()) * self.format.block_bytes()
    }
}

/// The keys and values that one attention layer keeps of past tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Name: `blk.0`.
    pub name: String,
    /// Heads stored.
    pub heads: usize,
    /// Elements of one head's key, and of its value.
    pub head_dim: usize,
    /// Tokens back that the layer can see, itself included; `None`: all. A layer with a window needs to keep no more.
    pub window: Option<usize>,
}

/// The function of a gated unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)` (Elfwing et al. 2017, arXiv 1702.03118).
    Silu,
    /// The tanh form of GELU (Hendrycks & Gimpel 2016, arXiv 1606.08415).
    GeluTanh,
}

/// One operation. Fields are inputs, parameters, then `out`.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out[t] = scale · table[token[t]]`.
    Embed {
        /// The embedding matrix, a row per token of the vocabulary.
        table: WeightId,
        /// Factor (Gemma: √width).
        scale: f32,
        /// The rows.
        out: ValueId,
    },
    /// Root-mean-square norm over groups as wide as the weight (Zhang & Sennrich 2019, arXiv 1910.07467):
    /// `out = x / sqrt(mean(x²) + eps) · weight`. A weight narrower than `x` norms each head by itself.
    RmsNorm {
        /// Input.
        x: ValueId,
        /// Factor per element of a group.
        weight: WeightId,
        /// Added to the mean of squares.
        eps: f32,
        /// As `x`.
        out: ValueId,
    },
    /// Layer norm (Ba et al. 2016, arXiv 1607.06450): `out = (x − mean) / sqrt(var + eps) · weight + bias`.
    LayerNorm {
        /// Input.
        x: ValueId,
        /// Factor per element.
        weight: WeightId,
        /// Added per element.
        bias: Option<WeightId>,
        /// Added to the variance.
        eps: f32,
        /// As `x`.
        out: ValueId,
    },
    /// `out = weight · x + bias`, the weight a row per output.
    MatMul {
        /// Input, as wide as a row of the weight.
        x: ValueId,
        /// The matrix.
        weight: WeightId,
        /// Added to each row's result.
        bias: Option<WeightId>,
        /// As wide as the weight has rows.
        out: ValueId,
    },
    /// Rotary position embedding of every head (Su et al. 2021, arXiv 2104.09864), angles by [`Rope`].
    Rope {
        /// `heads · head_dim` wide.
        x: ValueId,
        /// Heads in a row.
        heads: usize,
        /// Which angles.
        rope: RopeId,
        /// As `x`.
        out: ValueId,
    },
    /// Keeps this token's keys and values.
    KvWrite {
        /// Keys, `heads · head_dim` of the cache wide.
        k: ValueId,
        /// Values, likewise.
        v: ValueId,
        /// Where to.
        cache: CacheId,
    },
    /// Causal attention (Vaswani et al. 2017, arXiv 1706.03762) of this token's queries over the cache; neighbouring query heads
    /// share a key head (Ainslie et al. 2023, arXiv 2305.13245): `out = softmax(cap(scale · q·k)) · v`.
    Attention {
        /// Queries, `heads · head_dim` wide.
        q: ValueId,
        /// Keys and values; its window applies.
        cache: CacheId,
        /// Query heads.
        heads: usize,
        /// Factor on `q·k`.
        scale: f32,
        /// `cap · tanh(s / cap)` on scores, where a model has it.
        soft_cap: Option<f32>,
        /// As `q`.
        out: ValueId,
    },
    /// `out = act(gate) · up`.
    Glu {
        /// Goes through the activation.
        gate: ValueId,
        /// Multiplied.
        up: ValueId,
        /// Which activation.
        act: Activation,
        /// As `gate`.
        out: ValueId,
    },
    /// `out = a + b`.
    Add {
        /// One.
        a: ValueId,
        /// The other.
        b: ValueId,
        /// Sum.
        out: ValueId,
    },
    /// Chooses experts: softmax over `scores`, the `top` largest in falling order (the lower index first among equals), with their
    /// probabilities, divided by their sum if `renormalise`, times `scale`.
    Route {
        /// A score per expert.
        scores: ValueId,
        /// How many are chosen.
        top: usize,
        /// Chosen probabilities sum to one.
        renormalise: bool,
        /// Factor on the probabilities.
        scale: f32,
        /// Indices of the chosen, [`Dtype::Index`], `top` wide.
        experts: ValueId,
        /// Their shares, `top` wide.
        shares: ValueId,
    },
    /// `out[slot] = weight[experts[slot]] · x[slot]`; an `x` of one slot serves all.
    ExpertMatMul {
        /// Input, one slot or one per expert chosen.
        x: ValueId,
        /// Which matrices.
        experts: ValueId,
        /// A matrix per expert.
        weight: WeightId,
        /// A slot per chosen expert.
        out: ValueId,
    },
    /// `out = Σ over slots of shares[slot] · x[slot]`.
    ExpertSum {
        /// A slot per chosen expert.
        x: ValueId,
        /// Factor per slot.
        shares: ValueId,
        /// One slot.
        out: ValueId,
    },
}

impl Op {
    /// The values it reads.
    pub fn reads(&self) -> Vec<ValueId> {
        match *self {
            Op::Embed { .. } => vec![],
            Op::RmsNorm { x, .. } | Op::LayerNorm { x, .. } | Op::MatMul { x, .. } | Op::Rope { x, .. } => vec![x],
            Op::KvWrite { k, v, .. } => vec![k, v],
            Op::Attention { q, .. } => vec![q],
            Op::Glu { gate, up, .. } => vec![gate, up],
            Op::Add { a, b, .. } => vec![a, b],
            Op::Route { scores, .. } => vec![scores],
            Op::ExpertMatMul { x, experts, .. } => vec![x, experts],
            Op::ExpertSum { x, shares, .. } => vec![x, shares],
        }
    }

    /// The values it makes: none for a cache write, two for a routing, else one.
    pub fn writes(&self) -> Vec<ValueId> {
        match *self {
            Op::KvWrite { .. } => vec![],
            Op::Route { experts, shares, .. } => vec![experts, shares],
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::MatMul { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Glu { out, .. }
            | Op::Add { out, .. }
            | Op::ExpertMatMul { out, .. }
            | Op::ExpertSum { out, .. } => vec![out],
        }
    }

    /// The weights it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Op::Embed { table, .. } => vec![table],
            Op::RmsNorm { weight, .. } | Op::ExpertMatMul { weight, .. } => vec![weight],
            Op::LayerNorm { weight, bias, .. } | Op::MatMul { weight, bias, .. } => {
                std::iter::once(weight).chain(bias).collect()
            }
            _ => vec![],
        }
    }
}

/// What a model computes: from token ids to a row of logits per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The architecture's name in the file.
    pub arch: String,
    /// Tokens the model was trained to see at once.
    pub context: usize,
    /// The weights used, each once.
    pub weights: Vec<Weight>,
    /// Rotations used.
    pub ropes: Vec<Rope>,
    /// Caches of keys and values.
    pub caches: Vec<Cache>,
    /// All values.
    pub values: Vec<Value>,
    /// All operations, in an order that can be run.
    pub ops: Vec<Op>,
    /// The result: one score per token of the vocabulary.
    pub logits: ValueId,
}

/// Ids are handed out by this graph's own builder as it pushes what they stand for: an id of another graph is a bug of the program.
#[expect(clippy::indexing_slicing, reason = "see above; an answer of None would have to be unwrapped at every use")]
impl Graph {
    /// The value behind an id of this graph.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The weight behind an id of this graph.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The cache behind an id of this graph.
    pub fn cache(&self, id: CacheId) -> &Cache {
        &self.caches[id.0 as usize]
    }

    /// The rotation behind an id of this graph.
    pub fn rope(&self, id: RopeId) -> &Rope {
        &self.ropes[id.0 as usize]
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.value(self.logits).width
    }

    /// Bytes of weights that one decoded token must read: every matrix once, of the embedding a row, of experts those chosen.
    pub fn bytes_per_token(&self) -> u64 {
        let read = |op: &Op| -> u64 {
            let bytes = |w: &WeightId| self.weight(*w).bytes() as u64;
            match op {
                Op::Embed { table, .. } => bytes(table) / self.weight(*table).rows.max(1) as u64,
                Op::ExpertMatMul { weight, experts, .. } => {
                    let (all, chosen) = (self.weight(*weight).experts.max(1), self.value(*experts).width);
                    bytes(weight) / all as u64 * chosen as u64
                }
                op => op.weights().iter().map(bytes).sum(),
            }
        };
        self.ops.iter().map(read).sum()
    }

    /// Elements of keys and values kept per token, over all layers.
    pub fn kv_elems_per_token(&self) -> usize {
        self.caches.iter().map(|c| 2 * c.heads * c.head_dim).sum()
    }
}
