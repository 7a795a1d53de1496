//! One row, copied to several slots with a factor each.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out[slot] = shares[slot] · x`: the counterpart of a weighted sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// Input, one slot.
    pub x: ValueId,
    /// One factor per slot.
    pub shares: ValueId,
    /// The result, one slot per factor.
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

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        [self.x, self.shares].map(|v| graph.value(v).name.clone()).into()
    }
}
