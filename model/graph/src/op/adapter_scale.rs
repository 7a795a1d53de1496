//! Factors of adapters, which each sequence chooses.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out = factor · x`. Each run of `each` elements belongs to one adapter of
/// [`Graph::adapters`](crate::Graph::adapters). It is multiplied by that adapter's factor in the
/// row's sequence. Elements of an adapter with the factor 0 become 0, even if `x` is infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterScale {
    /// The input: a run for each adapter.
    pub x: ValueId,
    /// Elements of a run.
    pub each: usize,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for AdapterScale {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "adapter_scale"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), format!("for {} each", self.each)]
    }
}
