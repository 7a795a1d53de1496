//! Sums of two values.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out = a + b`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Add {
    /// First summand.
    pub a: ValueId,
    /// Second summand.
    pub b: ValueId,
    /// Sum.
    pub out: ValueId,
}

impl Operation for Add {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.a, self.b]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "add"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        [self.a, self.b].map(|v| graph.value(v).name.clone()).into()
    }
}
