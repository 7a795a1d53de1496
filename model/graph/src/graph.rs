//! A model's computation.

use crate::adapt::AdapterSlots;
use crate::op;
use crate::op::{Lookup, Op};
use crate::pooling::Pooling;
use crate::rope::{Rope, RopeId};
use crate::state::{Kv, State, StateId, StateKind};
use crate::value::{Value, ValueId};
use crate::weight::{Weight, WeightId};

/// A model's computation, from token ids to a row of logits per token.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The architecture's name in the file.
    pub arch: String,
    /// The context length used in training, in tokens.
    pub context: usize,
    /// The weights. Each weight is listed once.
    pub weights: Vec<Weight>,
    /// The rotations.
    pub ropes: Vec<Rope>,
    /// The states of a sequence.
    pub states: Vec<State>,
    /// All values.
    pub values: Vec<Value>,
    /// All operations, in execution order.
    pub ops: Vec<Op>,
    /// The result: one logit per token of the vocabulary. For an encoder, and for a stage that is
    /// not the last one, the rows of the last layer.
    pub logits: ValueId,
    /// Whether a stage on another device follows. The result then has a row for every token.
    pub feeds_next_stage: bool,
    /// The pooling of the result's rows. `None`: the result is logits.
    pub pooling: Option<Pooling>,
    /// Positions of a learned position table; they limit the context.
    pub positions: Option<usize>,
    /// The adapters, whose scales [`op::AdapterScale`] applies. A sequence has a scale for each.
    pub adapters: Vec<GraphAdapter>,
    /// Places for adapters that are loaded later, if [`Graph::adapters`] are such places.
    pub adapter_slots: Option<AdapterSlots>,
}

/// An adapter of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphAdapter {
    /// Its name.
    pub name: String,
    /// The factor of its pairs at a scale of 1: alpha / rank.
    pub unit: f32,
    /// The scale of sequences that choose no adapter.
    pub scale: f32,
}

/// Ids come from the builder of this graph. An id of another graph is a bug of the program.
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

    /// The keys and values of an id; `None` if the state is of a different kind.
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

    /// Elements of a row that may replace the embedding of a token. `None` if the model reads
    /// tokens in more than one place, or if they attend to later ones.
    pub fn image_width(&self) -> Option<usize> {
        let mut reads = self.ops.iter().filter_map(|op| match op {
            Op::Embed(e) if e.by == op::By::Token => Some(self.value(e.out)),
            _ => None,
        });
        let value = reads.next()?;
        let alone = reads.next().is_none() && self.pooling.is_none() && !self.is_bidirectional();
        alone.then_some(value.slots * value.width)
    }

    /// The same graph for a pass with the last `rows` tokens of its sequence or more, all of which
    /// see each other: the rows of an image. A window bounds the distance on both sides.
    ///
    /// # Errors
    /// The reason why the model cannot attend in this way.
    pub fn with_rows_that_see_each_other(&self, rows: usize) -> Result<Graph, String> {
        use op::Mask::{All, Around, Causal};
        let mut graph = self.clone();
        for op in &mut graph.ops {
            let Op::Attention(a) = op else { continue };
            let state = self.state(a.state);
            let window = state.window();
            if a.mask != Causal || a.only.is_some() || self.kv(a.state).is_none() {
                return Err(format!("'{}' has another mask", state.name));
            }
            a.mask = match window {
                None => All,
                Some(window) if window < rows => {
                    let name = &state.name;
                    return Err(format!(
                        "the window of '{name}' is below the {rows} rows of an image"
                    ));
                }
                Some(window) => Around(2 * (window - 1)),
            };
        }
        if self.is_recurrent() || self.pooling.is_some() {
            return Err("it has recurrent states, or it is an encoder".to_owned());
        }
        Ok(graph)
    }

    /// The factor of each adapter for sequences that choose none.
    pub fn adapter_factors(&self) -> Vec<f32> {
        self.adapters.iter().map(|a| a.unit * a.scale).collect()
    }

    /// Bytes of weights that one decoded token reads: each matrix once, one row of the embedding,
    /// and the chosen experts.
    pub fn bytes_per_token(&self) -> u64 {
        self.ops.iter().map(|op| op.bytes(self)).sum()
    }

    /// Number of elements of keys, values and latents per token, over all layers.
    pub fn kv_elems_per_token(&self) -> usize {
        self.states.iter().map(|s| s.elems_per_token()).sum()
    }

    /// Number of elements of a sequence's recurrent states, over all layers.
    pub fn recurrent_elems(&self) -> usize {
        let elems = |s: &State| if let StateKind::Recurrent { elems } = s.kind { elems } else { 0 };
        self.states.iter().map(elems).sum()
    }

    /// Whether the graph has recurrent states. If so, a sequence can be rewound only to
    /// checkpoints.
    pub fn is_recurrent(&self) -> bool {
        self.states.iter().any(|s| matches!(s.kind, StateKind::Recurrent { .. }))
    }
}

impl Lookup for Graph {
    fn value(&self, id: ValueId) -> &Value {
        Graph::value(self, id)
    }

    fn weight(&self, id: WeightId) -> &Weight {
        Graph::weight(self, id)
    }

    fn state(&self, id: StateId) -> &State {
        Graph::state(self, id)
    }
}
