//! Host experts: experts of a mixture that the CPU computes, while a GPU computes the rest of the
//! model.

use super::cut::{CutError, Layers, border};
use crate::op::Offload;
use crate::{Graph, Op};
use std::ops::Range;

/// The reason why experts cannot be on the CPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertsError {
    /// The model has no experts.
    #[error(
        "--host-experts: architecture '{arch}' has no experts: \
         use --host-layers for whole layers on the CPU"
    )]
    None {
        /// `general.architecture`.
        arch: String,
    },
    /// The experts cannot be separated from operations with a state.
    #[error(
        "--host-experts: the experts of layer {layer} of architecture '{arch}' cannot be separated \
         from its attention: use --host-layers for whole layers on the CPU"
    )]
    Beside {
        /// `general.architecture`.
        arch: String,
        /// The layer.
        layer: usize,
    },
    /// The expert cache does not support this kind of experts.
    #[error(
        "--hot-experts: the experts of architecture '{arch}' cannot be cached on the GPU: \
         remove this flag"
    )]
    Hot {
        /// `general.architecture`.
        arch: String,
    },
    /// An expert cache without host experts.
    #[error("--hot-experts needs --host-experts N (the number of layers with experts on the CPU)")]
    HotAlone,
    /// The expert cache is too small.
    #[error(
        "--hot-experts: {given} MiB are not enough: two experts of each layer need {bytes} MiB"
    )]
    FewPlaces {
        /// Size of two experts in each layer, in MiB.
        bytes: u64,
        /// Requested size in MiB.
        given: u64,
    },
    /// The layers are not in sequence.
    #[error("--host-experts: {0}: remove this flag")]
    Cut(#[from] CutError),
}

/// Moves the experts of the first `n` MoE layers to the CPU ([`Offload`]). Returns the graph, the
/// number of such layers, and the number of MoE layers. The part of a layer between its attention
/// and the next layer is moved as well: norm, routing, shared experts.
///
/// # Errors
/// See [`ExpertsError`].
pub fn split_host_experts(graph: &Graph, n: usize) -> Result<(Graph, usize, usize), ExpertsError> {
    let layers = Layers::of(graph)?;
    let parts = (0..layers.len()).filter_map(|layer| {
        let range = layers.range(graph, layer);
        let ops = graph.ops.get(range.clone()).unwrap_or_default();
        let first = ops.iter().position(is_expert_op)? + range.start;
        let last = ops.iter().rposition(is_expert_op)? + range.start;
        Some((layer, part(graph, &range, first, last)))
    });
    let parts: Vec<(usize, Option<Range<usize>>)> = parts.collect();
    if parts.is_empty() {
        return Err(ExpertsError::None { arch: graph.arch.clone() });
    }
    let (of, taken) = (parts.len(), n.min(parts.len()));
    let mut ops: Vec<Op> = vec![];
    let mut at = 0;
    for (layer, part) in parts.into_iter().take(taken) {
        let beside = || ExpertsError::Beside { arch: graph.arch.clone(), layer };
        let part = part.ok_or_else(beside)?;
        let edge = |at| border(graph, at).map_err(|_| beside());
        let (x, out) = (edge(part.start)?, edge(part.end)?);
        ops.extend_from_slice(graph.ops.get(at..part.start).unwrap_or_default());
        at = part.end;
        ops.push(
            Offload { x, with: vec![], ops: graph.ops.get(part).unwrap_or_default().to_vec(), out }
                .into(),
        );
    }
    ops.extend_from_slice(graph.ops.get(at..).unwrap_or_default());
    Ok((Graph { ops, ..graph.clone() }, taken, of))
}

/// Undoes [`split_host_experts`]. `None` if the graph has no host part.
pub fn merge_host_experts(graph: &Graph) -> Option<Graph> {
    let apart = graph.ops.iter().any(|op| matches!(op, Op::Offload(_)));
    let (mut ops, mut skip) = (vec![], 0);
    for op in &graph.ops {
        match op {
            _ if skip > 0 => skip -= 1,
            Op::Offload(host) => ops.extend_from_slice(&host.ops),
            Op::Placed(placed) => {
                ops.extend_from_slice(&placed.whole);
                skip = placed.instead;
            }
            other => ops.push(other.clone()),
        }
    }
    apart.then(|| Graph { ops, ..graph.clone() })
}

/// Whether an operation belongs to a mixture of experts.
pub fn is_expert_op(op: &Op) -> bool {
    matches!(op, Op::Route(_) | Op::ExpertMatMul(_) | Op::ExpertSum(_))
}

/// The smallest range of operations around a layer's experts that has one hidden state as input and
/// one as output. `None` if it includes a state or depends on token ids or positions.
fn part(graph: &Graph, layer: &Range<usize>, first: usize, last: usize) -> Option<Range<usize>> {
    let start = (layer.start..=first).rev().find(|at| border(graph, *at).is_ok())?;
    let end = (last + 1..=layer.end).find(|at| border(graph, *at).is_ok())?;
    // The CPU does not have the ids and positions of the tokens there.
    let knows = |op: &Op| {
        matches!(op, Op::Embed(_) | Op::Rope(_) | Op::AttentionTemperature(_) | Op::InputRows(_))
    };
    let apart = graph.ops.get(start..end)?.iter().all(|op| op.states().is_empty() && !knows(op));
    apart.then_some(start..end)
}
