//! What a model computes, as data: a list of operations over named values, with shapes and weight
//! names.
//!
//! A [`Graph`] describes one step over T tokens. Every value has a row per token; nothing here says
//! how, where, in which precision or in what order of memory it is computed: that is the executors'
//! business (the CPU's runs a graph as it stands, and is what everything else is held against). Operations are in an order in which they can be run.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing
    )
)]

mod activation;
pub mod arch;
mod build;
pub mod catalogue;
mod cut;
mod experts;
mod ffn;
pub mod op;
mod print;
mod rope;
mod shard;
mod state;

pub use activation::Activation;
pub use build::{Builder, GraphError, Part};
pub use cut::{CutError, Layers};
pub use experts::{ExpertsError, experts_apart, experts_here, of_experts};
pub use ffn::{FfnApart, FfnError, is_ffn_apart, spread, spread_from_first};
pub use op::Op;
pub use rope::{Pairing, Rope, RopeScaling, Sections};
pub use shard::{RANKS, ShardError, shard, shard_of_rank};
pub use state::{Kv, State, StateKind};

use kjit_formats::format::Format;

/// Index of a [`Value`] in [`Graph::values`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a [`Weight`] in [`Graph::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Index of a [`State`] in [`Graph::states`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

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

/// A weight tensor in the model file, or a part of one: `experts` matrices of `rows` rows of
/// `cols`, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// The tensor's name in the file, with the part's first element where it is not the whole:
    /// `blk.0.attn_qkv.weight[4096..]`.
    pub name: String,
    /// The tensor's name in the file.
    pub tensor: String,
    /// Elements of each matrix in the file that lie before the part's first.
    pub at: usize,
    /// Elements of each matrix in the file: more than `rows · cols` where this is a part.
    pub whole: usize,
    /// Matrices stacked in the tensor: 1, or the number of experts.
    pub experts: usize,
    /// Rows (outputs); 1 for a vector.
    pub rows: usize,
    /// Length of a row (inputs).
    pub cols: usize,
    /// Elements from a row's first to the next row's in the file: more than `cols` where each row
    /// is a part.
    pub stride: usize,
    /// How the elements are encoded.
    pub format: &'static Format,
}

impl Weight {
    /// Bytes of the part that is used.
    pub fn bytes(&self) -> usize {
        self.experts
            * self.rows
            * (self.cols / self.format.block_elems())
            * self.format.block_bytes()
    }

    /// Elements.
    pub fn elems(&self) -> usize {
        self.experts * self.rows * self.cols
    }

    /// Whether it is all of its tensor.
    pub fn is_whole(&self) -> bool {
        self.whole == self.rows * self.cols
    }

    /// Whether each row is a part of a row of the file.
    pub fn is_of_columns(&self) -> bool {
        self.stride != self.cols
    }

    /// Bytes of so many elements, whole blocks.
    pub fn bytes_of(&self, elems: usize) -> usize {
        elems / self.format.block_elems() * self.format.block_bytes()
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
    /// What each sequence keeps of its past tokens.
    pub states: Vec<State>,
    /// All values.
    pub values: Vec<Value>,
    /// All operations, in an order that can be run.
    pub ops: Vec<Op>,
    /// The result: one score per token of the vocabulary; of an encoder, the last layer's rows; of
    /// a part of a model that others come behind, its last layer's rows.
    pub logits: ValueId,
    /// Whether other layers come behind, on another device: then the result has a row for every
    /// token.
    pub hands_on: bool,
    /// How the rows of the result become one vector; `None`: the result is logits.
    pub pooling: Option<Pooling>,
    /// Positions that a learned table has: no context is longer.
    pub positions: Option<usize>,
}

/// How the rows of all tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first token's.
    First,
    /// The last token's.
    Last,
}

impl Pooling {
    /// The vector of these rows.
    pub fn of(self, rows: &[f32], width: usize) -> Vec<f32> {
        let mut each = rows.chunks_exact(width.max(1));
        let n = each.len().max(1) as f64;
        match self {
            Pooling::First => each.next().unwrap_or_default().to_vec(),
            Pooling::Last => each.next_back().unwrap_or_default().to_vec(),
            Pooling::Mean => {
                let sum = |i: usize| {
                    rows.iter().skip(i).step_by(width.max(1)).map(|x| f64::from(*x)).sum::<f64>()
                };
                (0..width).map(|i| (sum(i) / n) as f32).collect()
            }
        }
    }
}

/// Ids are handed out by this graph's own builder as it pushes what they stand for: an id of
/// another graph is a bug of the program.
#[expect(
    clippy::indexing_slicing,
    reason = "see above; an answer of None would have to be unwrapped at every use"
)]
impl Graph {
    /// The value behind an id of this graph.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The weight behind an id of this graph.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The state behind an id of this graph.
    pub fn state(&self, id: StateId) -> &State {
        &self.states[id.0 as usize]
    }

    /// Keys and values behind an id of this graph; `None` where the state is of another kind.
    pub fn kv(&self, id: StateId) -> Option<&Kv> {
        match &self.state(id).kind {
            StateKind::Kv(kv) => Some(kv),
            _ => None,
        }
    }

    /// The rotation behind an id of this graph.
    pub fn rope(&self, id: RopeId) -> &Rope {
        &self.ropes[id.0 as usize]
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Whether the result has a row for every token, and no scores.
    pub fn makes_rows(&self) -> bool {
        self.hands_on || self.pooling.is_some()
    }

    /// Whether a token sees later ones: then all go through at once.
    pub fn looks_ahead(&self) -> bool {
        use op::Mask::{All, Around};
        self.ops
            .iter()
            .any(|op| matches!(op, Op::Attention(op::Attention { mask: All | Around(_), .. })))
    }

    /// Size of the vocabulary: scores in a row of logits, or rows of an encoder's table.
    pub fn n_vocab(&self) -> usize {
        let table = |op: &Op| match op {
            Op::Embed(e) if e.by == op::By::Token => Some(self.weight(e.table).rows),
            _ => None,
        };
        match self.pooling {
            None => self.value(self.logits).width,
            Some(_) => self.ops.iter().find_map(table).unwrap_or(0),
        }
    }

    /// Bytes of weights that one decoded token must read: every matrix once, of the embedding a
    /// row, of experts those chosen.
    pub fn bytes_per_token(&self) -> u64 {
        self.ops.iter().map(|op| op.bytes(self)).sum()
    }

    /// Elements of keys, values and latents kept per token, over all layers.
    pub fn kv_elems_per_token(&self) -> usize {
        self.states.iter().map(|s| s.elems_per_token()).sum()
    }

    /// Elements of a sequence's states that do not grow, over all layers.
    pub fn recurrent_elems(&self) -> usize {
        let elems = |s: &State| if let StateKind::Recurrent { elems } = s.kind { elems } else { 0 };
        self.states.iter().map(elems).sum()
    }

    /// Whether a sequence can go back only by its checkpoints.
    pub fn is_recurrent(&self) -> bool {
        self.states.iter().any(|s| matches!(s.kind, StateKind::Recurrent { .. }))
    }
}
