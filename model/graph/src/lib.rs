//! A model as data: a list of operations over named values, with shapes and weight names.
//!
//! A [`Graph`] describes one step over T tokens. Every value has a row per token; nothing here says
//! how, where, in which precision or in what order of memory it is computed: that is the executors'
//! business (the CPU's runs a graph as it stands, and is what everything else is held against).
//! Operations are in an order in which they can be run.

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
//! A [`Graph`] describes one step over T tokens. Every value has a row per token. Device,
//! precision, memory layout and the method of computation belong to the executors; the
//! `kjit_cpu` runs a graph as it is and is the oracle for all others. The order of
//! operations is valid for execution.

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
pub use ffn::{FfnError, HostFfnGraph, is_ffn_apart, spread, spread_from_first};
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

/// The type of a value's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// A real number. Executors choose the storage; f32 is the reference.
    Real,
    /// An index, for example of an expert.
    Index,
}

/// A value: `slots × width` elements for every token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Unique name, that of its operation: `blk.0.attn_norm`. A value can be tapped by its name.
    pub name: String,
    /// Rows per token: 1, or one per chosen expert.
    pub slots: usize,
    /// Elements in a row.
    pub width: usize,
    /// Their type.
    pub dtype: Dtype,
}

/// A weight tensor of the file, or a part of one: `experts` row-major matrices of `rows × cols`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// The tensor's name in the file. For a part, its first element is appended:
    /// `blk.0.attn_qkv.weight[4096..]`.
    pub name: String,
    /// The tensor's name in the file.
    pub tensor: String,
    /// Elements before the part's first, in each matrix of the file.
    pub at: usize,
    /// Elements of each matrix in the file. For a part it exceeds `rows · cols`.
    pub whole: usize,
    /// Matrices in the tensor: 1, or the number of experts.
    pub experts: usize,
    /// Rows (outputs); 1 for a vector.
    pub rows: usize,
    /// Length of a row (inputs).
    pub cols: usize,
    /// Elements from the start of a row to that of the next row in the file. It exceeds `cols` if
    /// each row is a part of a row.
    pub stride: usize,
    /// The encoding of the elements.
    pub format: &'static Format,
}

impl Weight {
    /// Bytes of the used part.
    pub fn bytes(&self) -> usize {
        self.experts
            * self.rows
            * (self.cols / self.format.block_elems())
            * self.format.block_bytes()
    }

    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.experts * self.rows * self.cols
    }

    /// Whether this is the whole tensor.
    pub fn is_whole(&self) -> bool {
        self.whole == self.rows * self.cols
    }

    /// Whether each row is a part of a row of the file.
    pub fn is_of_columns(&self) -> bool {
        self.stride != self.cols
    }

    /// Bytes of this number of elements, which must be whole blocks.
    pub fn bytes_of(&self, elems: usize) -> usize {
        elems / self.format.block_elems() * self.format.block_bytes()
    }
}

/// A model's computation, from token ids to a row of logits per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The architecture's name in the file.
    pub arch: String,
    /// The context length of training, in tokens.
    pub context: usize,
    /// The weights, each once.
    pub weights: Vec<Weight>,
    /// The rotations.
    pub ropes: Vec<Rope>,
    /// The states that a sequence keeps.
    pub states: Vec<State>,
    /// All values.
    pub values: Vec<Value>,
    /// All operations, in execution order.
    pub ops: Vec<Op>,
    /// The result: one logit per token of the vocabulary. For an encoder and for a stage that is
    /// not the last, the rows of the last layer.
    pub logits: ValueId,
    /// Whether a stage on another device follows. The result then has a row for every token.
    pub feeds_next_stage: bool,
    /// The pooling of the result's rows. `None`: the result is logits.
    pub pooling: Option<Pooling>,
    /// Positions of a learned position table; they limit the context.
    pub positions: Option<usize>,
}

/// The method that makes one vector from the rows of all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The row of the first token.
    First,
    /// The row of the last token.
    Last,
}

impl Pooling {
    /// The pooled vector of these rows.
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

/// Ids come from this graph's own builder. An id of another graph is a bug of the program.
#[expect(
    clippy::indexing_slicing,
    reason = "ids are valid; a result of None would have to be unwrapped at every use"
)]
impl Graph {
    /// The value of an id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The weight of an id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The state of an id.
    pub fn state(&self, id: StateId) -> &State {
        &self.states[id.0 as usize]
    }

    /// The keys and values of an id; `None` if the state is of another kind.
    pub fn kv(&self, id: StateId) -> Option<&Kv> {
        match &self.state(id).kind {
            StateKind::Kv(kv) => Some(kv),
            _ => None,
        }
    }

    /// The rotation of an id.
    pub fn rope(&self, id: RopeId) -> &Rope {
        &self.ropes[id.0 as usize]
    }

    /// The value with this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Whether the result has a row for every token instead of logits.
    pub fn makes_rows(&self) -> bool {
        self.feeds_next_stage || self.pooling.is_some()
    }

    /// Whether tokens attend to later ones. All tokens must then be in one pass.
    pub fn is_bidirectional(&self) -> bool {
        use op::Mask::{All, Around};
        self.ops
            .iter()
            .any(|op| matches!(op, Op::Attention(op::Attention { mask: All | Around(_), .. })))
    }

    /// Size of the vocabulary: the width of the logits, or the rows of an encoder's embedding
    /// table.
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

    /// Bytes of weights that one decoded token reads: each matrix once, one row of the embedding,
    /// and the chosen experts.
    pub fn bytes_per_token(&self) -> u64 {
        self.ops.iter().map(|op| op.bytes(self)).sum()
    }

    /// Elements of keys, values and latents per token, over all layers.
    pub fn kv_elems_per_token(&self) -> usize {
        self.states.iter().map(|s| s.elems_per_token()).sum()
    }

    /// Elements of a sequence's recurrent states, over all layers.
    pub fn recurrent_elems(&self) -> usize {
        let elems = |s: &State| if let StateKind::Recurrent { elems } = s.kind { elems } else { 0 };
        self.states.iter().map(elems).sum()
    }

    /// Whether the graph has recurrent states. A sequence can then go back only to checkpoints.
    pub fn is_recurrent(&self) -> bool {
        self.states.iter().any(|s| matches!(s.kind, StateKind::Recurrent { .. }))
    }
}
