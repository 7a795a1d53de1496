//! Rotary position embedding.

use super::{Op, Operation};
use crate::{Builder, Graph, RopeId, ValueId};

/// Rotary position embedding of every head (Su et al. 2021, arXiv 2104.09864), with the angles of
/// [`Rope`](crate::graph::Rope).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// `heads · head_dim` wide.
    pub x: ValueId,
    /// Heads in a row.
    pub heads: usize,
    /// The angles.
    pub rope: RopeId,
    /// The result, of the shape of `x`.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
        vec![
            graph.value(self.x).name.clone(),
            format!("heads {}", self.heads),
            format!("rope {}", self.rope.0),
        ]
    }
}

impl Builder<'_> {
    /// Appends a [`Rope`].
    pub fn rope(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        heads: usize,
        rope: RopeId,
    ) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Rope(Rope { x, heads, rope, out }), out)
    }
}
