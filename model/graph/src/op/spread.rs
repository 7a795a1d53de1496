//! One row, copied to several slots with a factor each.

use super::{Op, Operation};
use crate::{Builder, Dtype, Graph, ValueId};

/// `out[slot] = shares[slot] · x`: the counterpart of a weighted sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// One slot.
    pub x: ValueId,
    /// One factor per slot.
    pub shares: ValueId,
    /// One slot per factor.
    pub out: ValueId,
}

impl Operation for Spread {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x, self.shares]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "spread"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        [self.x, self.shares].map(|v| graph.value(v).name.clone()).into()
    }
}

impl Builder<'_> {
    /// Appends a [`Spread`].
    pub fn spread(&mut self, name: impl Into<String>, x: ValueId, shares: ValueId) -> ValueId {
        let (slots, width) = (self.graph().value(shares).width, self.graph().value(x).width);
        let out = self.value(name.into(), slots, width, Dtype::Real);
        self.push(Op::Spread(Spread { x, shares, out }), out)
    }
}
