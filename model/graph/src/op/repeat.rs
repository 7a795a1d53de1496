//! Repetition of heads.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// Repeats each of `heads` parts of a row `times` times. The copies of a part are adjacent. If
/// `tiled`, the whole row is repeated instead.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// Input.
    pub x: ValueId,
    /// Number of parts of a row.
    pub heads: usize,
    /// Number of copies of each part.
    pub times: usize,
    /// Whether the whole row is repeated.
    pub tiled: bool,
    /// The result, `times` as wide.
    pub out: ValueId,
}

impl Operation for Repeat {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        if self.tiled { "tile" } else { "repeat" }
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let x = graph.value(self.x).name.clone();
        vec![x, format!("heads {}", self.heads), format!("times {}", self.times)]
    }
}
