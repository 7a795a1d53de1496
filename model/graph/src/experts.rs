//! Experts of a mixture that the CPU has, beside a GPU that has all else.

use super::cut::{CutError, Layers, border};
use crate::op::Elsewhere;
use crate::{Graph, Op};
use std::ops::Range;

/// Why experts cannot be the CPU's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertsError {
    /// There are none.
    #[error(
        "--host-experts: architecture '{arch}' has no experts; --host-layers leaves whole layers \
         to the CPU"
    )]
    None {
        /// `general.architecture`.
        arch: String,
    },
    /// They are not apart from what keeps a state.
    #[error(
        "--host-experts: the experts of layer {layer} of architecture '{arch}' are not computed \
         apart from its attention; \
         --host-layers leaves whole layers to the CPU"
    )]
    Beside {
        /// `general.architecture`.
        arch: String,
        /// The layer.
        layer: usize,
    },
    /// They are not such as a device can have some of.
    #[error(
        "--hot-experts: the experts of architecture '{arch}' are not such as the card can have \
         some of: leave it out"
    )]
    Hot {
        /// `general.architecture`.
        arch: String,
    },
    /// The CPU has none.
    #[error(
        "--hot-experts is for experts that the CPU has: --host-experts says of how many layers"
    )]
    HotAlone,
    /// There is room for too few.
    #[error(
        "--hot-experts: {given} MiB are too little: two experts of each layer take {bytes} MiB"
    )]
    FewPlaces {
        /// MiB of two in each layer.
        bytes: u64,
        /// MiB that there are.
        given: u64,
    },
    /// Layers are not one behind the other.
    #[error("--host-experts: {0}; leave it out")]
    Cut(#[from] CutError),
}

/// A graph in which the experts of the first `n` layers that have some are the CPU's
/// ([`Elsewhere`]), with how many layers that are, and how many have experts. What a layer computes
/// between its attention and the next layer goes with them: the norm before, the routing, shared
/// experts.
///
/// # Errors
/// See [`ExpertsError`].
pub fn experts_apart(graph: &Graph, n: usize) -> Result<(Graph, usize, usize), ExpertsError> {
    let layers = Layers::of(graph)?;
    let parts = (0..layers.len()).filter_map(|layer| {
        let range = layers.range(graph, layer);
        let ops = graph.ops.get(range.clone()).unwrap_or_default();
        let first = ops.iter().position(of_experts)? + range.start;
        let last = ops.iter().rposition(of_experts)? + range.start;
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
            Elsewhere {
                x,
                with: vec![],
                ops: graph.ops.get(part).unwrap_or_default().to_vec(),
                out,
            }
            .into(),
        );
    }
    ops.extend_from_slice(graph.ops.get(at..).unwrap_or_default());
    Ok((Graph { ops, ..graph.clone() }, taken, of))
}

/// The operations that [`experts_apart`] or [`Apart::of`](super::Apart::of) was given, from what it
/// made of them; none where nothing is apart there.
pub fn experts_here(graph: &Graph) -> Option<Graph> {
    let apart = graph.ops.iter().any(|op| matches!(op, Op::Elsewhere(_)));
    let (mut ops, mut skip) = (vec![], 0);
    for op in &graph.ops {
        match op {
            _ if skip > 0 => skip -= 1,
            Op::Elsewhere(elsewhere) => ops.extend_from_slice(&elsewhere.ops),
            Op::Placed(placed) => {
                ops.extend_from_slice(&placed.whole);
                skip = placed.instead;
            }
            other => ops.push(other.clone()),
        }
    }
    apart.then(|| Graph { ops, ..graph.clone() })
}

/// Whether an operation is one of a mixture of experts.
pub fn of_experts(op: &Op) -> bool {
    matches!(op, Op::Route(_) | Op::ExpertMatMul(_) | Op::ExpertSum(_))
}

/// The fewest operations around the experts of a layer that one row goes into and one comes out of;
/// none where a state is among them, or what needs to know of tokens more than their rows.
fn part(graph: &Graph, layer: &Range<usize>, first: usize, last: usize) -> Option<Range<usize>> {
    let start = (layer.start..=first).rev().find(|at| border(graph, *at).is_ok())?;
    let end = (last + 1..=layer.end).find(|at| border(graph, *at).is_ok())?;
    // Nor does the CPU know there which tokens these are, and where.
    let knows = |op: &Op| matches!(op, Op::Embed(_) | Op::Rope(_) | Op::Temper(_) | Op::Given(_));
    let apart = graph.ops.get(start..end)?.iter().all(|op| op.states().is_empty() && !knows(op));
    apart.then_some(start..end)
}
