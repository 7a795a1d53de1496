//! A graph cut at borders of layers.

use crate::op::Given;
use crate::{Dtype, Graph, Op, StateId, StateKind, ValueId};
use std::ops::Range;

/// Why a model's layers cannot be on several devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// It makes one vector of a text.
    #[error("architecture '{arch}' is an encoder, which runs on one device")]
    Encoder {
        /// `general.architecture`.
        arch: String,
    },
    /// Its layers do not come one behind the other.
    #[error(
        "the layers of architecture '{arch}' are not one behind the other: it runs on one device"
    )]
    Order {
        /// `general.architecture`.
        arch: String,
    },
    /// More than one row goes from a layer to the next one.
    #[error(
        "architecture '{arch}' cannot be cut before layer {layer}, where {what} cross: it runs on \
         one device"
    )]
    Crossing {
        /// `general.architecture`.
        arch: String,
        /// The layer behind the border.
        layer: usize,
        /// Values and states of both sides.
        what: String,
    },
}

/// Where the layers of a graph are among its operations, and what goes from one to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// The first operation of each layer. What comes before the first layer is the first one's.
    starts: Vec<usize>,
    /// What each layer reads of the one before it; the first one's is of no meaning.
    borders: Vec<ValueId>,
}

impl Layers {
    /// Finds the layers of a graph.
    ///
    /// # Errors
    /// A graph that can be cut at no border, or not at all of them.
    pub fn of(graph: &Graph) -> Result<Layers, CutError> {
        let arch = || graph.arch.clone();
        if graph.pooling.is_some() {
            return Err(CutError::Encoder { arch: arch() });
        }
        let mut starts: Vec<usize> = vec![];
        for (i, op) in graph.ops.iter().enumerate() {
            match layer_of(graph, op) {
                Some(layer) if layer == starts.len() => starts.push(i),
                // Within the layer at hand; what belongs to no layer goes with the one before it.
                Some(layer) if layer + 1 != starts.len() => {
                    return Err(CutError::Order { arch: arch() });
                }
                _ => {}
            }
        }
        let mut borders = vec![];
        for (layer, &at) in starts.iter().enumerate() {
            let crossing = |what| CutError::Crossing { arch: arch(), layer, what };
            borders.push(if layer == 0 {
                graph.logits
            } else {
                border(graph, at).map_err(crossing)?
            });
        }
        if let Some(first) = starts.first_mut() {
            *first = 0;
        }
        Ok(Layers { starts, borders })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Elements of a row that goes from one layer to the next.
    pub fn width(&self, graph: &Graph) -> usize {
        self.borders.get(1).map_or(0, |v| graph.value(*v).width)
    }

    /// Where a layer's own operations are among the graph's.
    pub fn range(&self, graph: &Graph, layer: usize) -> Range<usize> {
        let at = |layer: usize| self.starts.get(layer).copied().unwrap_or(graph.ops.len());
        at(layer)..at(layer + 1)
    }

    /// The operations of some layers: with the first goes what comes before it, with the last what
    /// comes behind.
    pub fn ops<'g>(&self, graph: &'g Graph, layers: Range<usize>) -> &'g [Op] {
        let at = |layer: usize| self.starts.get(layer).copied().unwrap_or(graph.ops.len());
        graph.ops.get(at(layers.start)..at(layers.end)).unwrap_or_default()
    }

    /// Some layers as a graph. Ids are those of the whole one; the states of other layers are
    /// [`StateKind::Elsewhere`].
    pub fn part(&self, graph: &Graph, layers: Range<usize>) -> Graph {
        let mut ops = self.ops(graph, layers.clone()).to_vec();
        let mut here: Vec<StateId> = ops.iter().flat_map(Op::states).collect();
        here.sort_unstable();
        here.dedup();
        let states = graph.states.iter().zip(0..).map(|(state, id)| {
            match here.binary_search(&StateId(id)) {
                Ok(_) => state.clone(),
                Err(_) => crate::State { kind: StateKind::Elsewhere, ..state.clone() },
            }
        });
        let states = states.collect();
        if let Some(&out) = self.borders.get(layers.start).filter(|_| layers.start > 0) {
            ops.insert(0, Op::Given(Given { out }));
        }
        let next = self.borders.get(layers.end).copied();
        Graph {
            ops,
            states,
            logits: next.unwrap_or(graph.logits),
            hands_on: next.is_some(),
            ..graph.clone()
        }
    }
}

/// The layer that an operation's name says: `blk.3.attn_q`.
pub(super) fn layer_of(graph: &Graph, op: &Op) -> Option<usize> {
    let of = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
    let made = op.writes().first().and_then(|v| of(&graph.value(*v).name));
    made.or_else(|| op.states().first().and_then(|s| of(&graph.state(*s).name)))
}

/// The one value that operations from here on read of those before; what else crosses, if it is not
/// one.
pub(super) fn border(graph: &Graph, at: usize) -> Result<ValueId, String> {
    let (before, behind) = graph.ops.split_at(at.min(graph.ops.len()));
    let mut made: Vec<ValueId> = before.iter().flat_map(Op::writes).collect();
    made.sort_unstable();
    let mut cross: Vec<ValueId> = behind.iter().flat_map(Op::reads).chain([graph.logits]).collect();
    cross.retain(|v| made.binary_search(v).is_ok());
    cross.sort_unstable();
    cross.dedup();
    let mut states: Vec<StateId> = before.iter().flat_map(Op::states).collect();
    states.retain(|s| behind.iter().any(|op| op.states().contains(s)));
    states.dedup();
    match (&*cross, &*states) {
        (&[one], []) if graph.value(one).slots == 1 && graph.value(one).dtype == Dtype::Real => {
            Ok(one)
        }
        _ => {
            let values = cross.iter().map(|v| format!("'{}'", graph.value(*v).name));
            let states = states.iter().map(|s| format!("the state of '{}'", graph.state(*s).name));
            Err(values.chain(states).collect::<Vec<_>>().join(", "))
        }
    }
}
