//! Models that make one vector of a text: what the file asks for, and any other model as one.

use crate::{Graph, GraphError, Op, Pooling, ValueId};
use kjit_gguf::Gguf;

/// What `ARCH.pooling_type` asks for; none where it is not there, or asks for nothing.
///
/// # Errors
/// A way to pool that kjit does not know.
pub fn pooling(gguf: &Gguf) -> Result<Option<Pooling>, GraphError> {
    let key = format!("{}.pooling_type", gguf.architecture()?);
    match gguf.opt_u32(&key)? {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::First)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(n) => {
            let why = "kjit knows 1 (mean), 2 (first token) and 3 (last token)".to_owned();
            Err(GraphError::Value { key, value: n.to_string(), why })
        }
    }
}

/// What the file's model computes up to its last norm, its rows made one vector: as `wanted`, else
/// as the file asks.
///
/// # Errors
/// As [`super::build`]; a model that scores tokens and whose file does not say how to pool, where
/// nothing is wanted either.
pub fn build_vector(gguf: &Gguf, wanted: Option<Pooling>) -> Result<Graph, GraphError> {
    let mut graph = super::build(gguf)?;
    if graph.pooling.is_none() {
        let rows = before_head(&graph);
        // Nothing behind the rows is computed.
        let last = graph.ops.iter().position(|op| op.writes().contains(&rows));
        graph.ops.truncate(last.map_or(0, |at| at + 1));
        graph.logits = rows;
        graph.pooling = pooling(gguf)?;
    }
    graph.pooling = wanted.or(graph.pooling);
    match graph.pooling {
        Some(_) => Ok(graph),
        None => Err(GraphError::NoPooling { arch: graph.arch }),
    }
}

/// The rows that the scores are made from: what the last product reads, before what is done to
/// scores one by one.
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
