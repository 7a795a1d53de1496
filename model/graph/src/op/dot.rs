//! Inner products per head.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// `out[h] = Σ_i a[h][i] · b[h][i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// First factor.
    pub a: ValueId,
    /// Second factor.
    pub b: ValueId,
    /// Number of heads.
    pub heads: usize,
    /// The result, one number per head.
    pub out: ValueId,
}

impl Operation for Dot {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.a, self.b]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "dot"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![v(self.a), v(self.b), format!("heads {}", self.heads)]
    }
}
