//! Pooling of embedding models, and of other models that are used as embedding models.

use crate::{Graph, GraphError, Op, Pooling, ValueId};
use kjit_gguf::Gguf;

/// The pooling in `ARCH.pooling_type`. `None` if the key is absent or 0.
///
/// # Errors
/// The kind of pooling is unknown.
pub fn pooling(gguf: &Gguf) -> Result<Option<Pooling>, GraphError> {
    let key = format!("{}.pooling_type", gguf.architecture()?);
    match gguf.opt_u32(&key)? {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::First)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(n) => {
            let why = "expected 1 (mean), 2 (first token) or 3 (last token)".to_owned();
            Err(GraphError::Value { key, value: n.to_string(), why })
        }
    }
}

/// The graph up to the last norm, with its rows pooled to one vector. The kind of pooling is
/// `requested`, or otherwise the kind in the file.
///
/// # Errors
/// See [`super::build`]; also if the file of a decoder has no pooling and `requested` is `None`.
pub fn build_vector(gguf: &Gguf, requested: Option<Pooling>) -> Result<Graph, GraphError> {
    let mut graph = super::build(gguf)?;
    if graph.pooling.is_none() {
        let rows = before_head(&graph);
        // Operations after these rows are dropped.
        let last = graph.ops.iter().position(|op| op.writes().contains(&rows));
        graph.ops.truncate(last.map_or(0, |at| at + 1));
        graph.logits = rows;
        graph.pooling = pooling(gguf)?;
    }
    graph.pooling = requested.or(graph.pooling);
    match graph.pooling {
        Some(_) => Ok(graph),
        None => Err(GraphError::NoPooling { arch: graph.arch }),
    }
}

/// The input of the output projection. Factors, caps and activations on logits are skipped.
fn before_head(graph: &Graph) -> ValueId {
    let mut at = graph.logits;
    while let Some(op) = graph.ops.iter().find(|op| op.writes().contains(&at)) {
        match op {
            Op::Act(act) => at = act.x,
            Op::Affine(affine) => at = affine.x,
            Op::MatMul(head) => return head.x,
            _ => break,
        }
    }
    at
}
