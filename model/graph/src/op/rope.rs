//! Rotary position embedding.

use super::operation::{Lookup, Operation};
use crate::rope::RopeId;
use crate::value::ValueId;

/// Rotary position embedding of every head (Su et al. 2021, arXiv 2104.09864), with the angles of
/// [`Rope`](crate::Rope).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Input, `heads · head_dim` wide.
    pub x: ValueId,
    /// Number of heads in a row.
    pub heads: usize,
    /// The angles.
    pub rope: RopeId,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Rope {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "rope"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        vec![
            graph.value(self.x).name.clone(),
            format!("heads {}", self.heads),
            format!("rope {}", self.rope.0),
        ]
    }
}
