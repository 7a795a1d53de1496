//! Host FFN: feed-forward parts that the CPU computes, while a GPU computes the rest of the model.
//!
//! Attention stays on the GPU with its keys and values. So only one hidden state of each token is
//! copied, and the GPU can also compute a whole prompt without the CPU. In a large model,
//! feed-forward matrices are four fifths of the bytes.

use super::cut::{CutError, Layers, border, layer_of};
use super::experts::is_expert_op;
use crate::op::Offload;
use crate::{Graph, Op};
use std::ops::Range;

/// The reason why feed-forward parts cannot be on the CPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FfnError {
    /// No layer has a separable feed-forward part.
    #[error(
        "--host-ffn: no layer of architecture '{arch}' has a separate feed-forward part \
         after its attention: use --host-layers for whole layers, or --host-experts for experts"
    )]
    None {
        /// `general.architecture`.
        arch: String,
    },
    /// The layers are not in sequence.
    #[error("--host-ffn: {0}: remove this flag")]
    Cut(#[from] CutError),
}

/// A graph with the feed-forward parts of some layers on the CPU ([`Offload`]).
#[derive(Debug, Clone)]
pub struct HostFfnGraph {
    /// The graph.
    pub graph: Graph,
    /// Number of layers whose feed-forward part is on the CPU.
    pub taken: usize,
    /// Number of layers that have such a part.
    pub of: usize,
}

impl std::fmt::Display for HostFfnGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the CPU computes the feed-forward of {} of {} layers", self.taken, self.of)
    }
}

/// Whether item `i` of `n` is one of `k` evenly spread items; the last item always is.
pub fn spread(i: usize, n: usize, k: usize) -> bool {
    (i + 1) * k / n > i * k / n
}

/// Like [`spread`], but the first item is included: the CPU computes while the first streamed layer
/// is copied. If the last item is included instead (70B in 24 GB of an H200), the CPU waits for
/// that copy for 10 ms of a token's 230 ms, and the copy engine is idle for the same time at the
/// end.
pub fn spread_from_first(i: usize, n: usize, k: usize) -> bool {
    spread(n - 1 - i, n, k)
}

impl HostFfnGraph {
    /// Moves the parts of `n` layers (at most all) to the CPU. They are spread evenly, so that
    /// other layers can be streamed between them.
    ///
    /// # Errors
    /// See [`FfnError`].
    pub fn of(graph: &Graph, n: usize) -> Result<HostFfnGraph, FfnError> {
        let layers = Layers::of(graph)?;
        let parts: Vec<Range<usize>> =
            (0..layers.len()).filter_map(|l| part(graph, l, layers.range(graph, l))).collect();
        if parts.is_empty() {
            return Err(FfnError::None { arch: graph.arch.clone() });
        }
        let (of, taken) = (parts.len(), n.min(parts.len()));
        let (mut ops, mut at): (Vec<Op>, usize) = (vec![], 0);
        for (_, part) in
            parts.into_iter().enumerate().filter(|(i, _)| spread_from_first(*i, of, taken))
        {
            let (Ok(x), Ok(out)) = (border(graph, part.start), border(graph, part.end)) else {
                continue;
            };
            ops.extend_from_slice(graph.ops.get(at..part.start).unwrap_or_default());
            at = part.end;
            ops.push(
                Offload {
                    x,
                    with: vec![],
                    ops: graph.ops.get(part).unwrap_or_default().to_vec(),
                    out,
                }
                .into(),
            );
        }
        ops.extend_from_slice(graph.ops.get(at..).unwrap_or_default());
        Ok(HostFfnGraph { graph: Graph { ops, ..graph.clone() }, taken, of })
    }
}

/// Whether all parts of a graph that are on the CPU are feed-forward parts without experts.
pub fn is_host_ffn(graph: &Graph) -> bool {
    let mut apart = graph.ops.iter().filter_map(|op| match op {
        Op::Offload(apart) => Some(!apart.ops.iter().any(is_expert_op)),
        _ => None,
    });
    apart.next().is_some_and(|first| first && apart.all(|one| one))
}

/// The operations from a layer's attention to its end, with one hidden state as input and one as
/// output. `None` if they contain no matrix, depend on positions, or contain experts (a token reads
/// few of them).
fn part(graph: &Graph, layer: usize, range: Range<usize>) -> Option<Range<usize>> {
    let ops = graph.ops.get(range.clone())?;
    let behind = ops
        .iter()
        .rposition(|op| !op.states().is_empty())
        .map_or(range.start, |i| range.start + i + 1);
    // Operations without a layer, such as the output matrix, follow the last layer.
    let last = range.start + ops.iter().rposition(|op| layer_of(graph, op) == Some(layer))?;
    let start = (behind..=last).find(|at| border(graph, *at).is_ok())?;
    let end = (start + 1..=last + 1).rev().find(|at| border(graph, *at).is_ok())?;
    let part = graph.ops.get(start..end)?;
    let knows = |op: &Op| {
        matches!(op, Op::Embed(_) | Op::Rope(_) | Op::AttentionTemperature(_) | Op::InputRows(_))
    };
    let apart = !part.iter().any(|op| knows(op) || is_expert_op(op));
    (apart && part.iter().any(|op| matches!(op, Op::MatMul(_)))).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::{spread, spread_from_first};

    #[test]
    fn spread_picks_the_requested_number() {
        for (n, k) in (1..90).flat_map(|n| (0..=n).map(move |k| (n, k))) {
            assert_eq!((0..n).filter(|&i| spread(i, n, k)).count(), k);
            assert_eq!((0..n).filter(|&i| spread_from_first(i, n, k)).count(), k);
            assert!(k == 0 || spread_from_first(0, n, k) && spread(n - 1, n, k));
        }
    }
}
