//! Cuts a graph between layers.

use crate::op::InputRows;
use crate::{Dtype, Graph, Op, StateId, StateKind, ValueId};
use std::ops::Range;

/// The reason why a model's layers cannot be on several devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// The model is an encoder.
    #[error("architecture '{arch}' is an encoder: it runs only on one device")]
    Encoder {
        /// `general.architecture`.
        arch: String,
    },
    /// The layers are not in sequence.
    #[error("the layers of architecture '{arch}' are not a sequence: it runs only on one device")]
    Order {
        /// `general.architecture`.
        arch: String,
    },
    /// More than one value crosses a layer border.
    #[error(
        "architecture '{arch}' cannot be cut before layer {layer}, because {what} cross: \
         it runs only on one device"
    )]
    Crossing {
        /// `general.architecture`.
        arch: String,
        /// The layer after the border.
        layer: usize,
        /// Values and states on both sides.
        what: String,
    },
}

/// The layers of a graph: ranges of its operations, and the value that is passed from each layer to
/// the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers {
    /// The first operation of each layer. Operations before the first layer belong to the first
    /// layer.
    starts: Vec<usize>,
    /// The value that each layer reads from the previous one. The first entry is not used.
    borders: Vec<ValueId>,
}

impl Layers {
    /// Finds the layers of a graph.
    ///
    /// # Errors
    /// The graph cannot be cut at every layer border.
    pub fn of(graph: &Graph) -> Result<Layers, CutError> {
        let arch = || graph.arch.clone();
        if graph.pooling.is_some() {
            return Err(CutError::Encoder { arch: arch() });
        }
        let mut starts: Vec<usize> = vec![];
        for (i, op) in graph.ops.iter().enumerate() {
            match layer_of(graph, op) {
                Some(layer) if layer == starts.len() => starts.push(i),
                // The operation is in the current layer. Operations without a layer belong to the
                // previous layer.
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

    /// The number of layers.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Elements of the hidden state that crosses a border.
    pub fn width(&self, graph: &Graph) -> usize {
        self.borders.get(1).map_or(0, |v| graph.value(*v).width)
    }

    /// The range of a layer's operations in the graph.
    pub fn range(&self, graph: &Graph, layer: usize) -> Range<usize> {
        let at = |layer: usize| self.starts.get(layer).copied().unwrap_or(graph.ops.len());
        at(layer)..at(layer + 1)
    }

    /// The operations of some layers. The first layer includes the operations before it, the last
    /// layer includes the operations after it.
    pub fn ops<'g>(&self, graph: &'g Graph, layers: Range<usize>) -> &'g [Op] {
        let at = |layer: usize| self.starts.get(layer).copied().unwrap_or(graph.ops.len());
        graph.ops.get(at(layers.start)..at(layers.end)).unwrap_or_default()
    }

    /// Some layers as a graph, with the ids of the whole graph. States of other layers are
    /// [`StateKind::Remote`].
    pub fn part(&self, graph: &Graph, layers: Range<usize>) -> Graph {
        let mut ops = self.ops(graph, layers.clone()).to_vec();
        let mut here: Vec<StateId> = ops.iter().flat_map(Op::states).collect();
        here.sort_unstable();
        here.dedup();
        let states = graph.states.iter().zip(0..).map(|(state, id)| {
            match here.binary_search(&StateId(id)) {
                Ok(_) => state.clone(),
                Err(_) => crate::State { kind: StateKind::Remote, ..state.clone() },
            }
        });
        let states = states.collect();
        if let Some(&out) = self.borders.get(layers.start).filter(|_| layers.start > 0) {
            ops.insert(0, Op::InputRows(InputRows { out }));
        }
        let next = self.borders.get(layers.end).copied();
        Graph {
            ops,
            states,
            logits: next.unwrap_or(graph.logits),
            feeds_next_stage: next.is_some(),
            ..graph.clone()
        }
    }
}

/// The layer in an operation's name: `blk.3.attn_q` is in layer 3.
pub(super) fn layer_of(graph: &Graph, op: &Op) -> Option<usize> {
    let of = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse().ok();
    let made = op.writes().first().and_then(|v| of(&graph.value(*v).name));
    made.or_else(|| op.states().first().and_then(|s| of(&graph.state(*s).name)))
}

/// The only value of earlier operations that operations from `at` on read. If it is not exactly one
/// hidden state, the error names all such values.
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
