//! Parts of rows.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// Takes `take` elements from `at` on from each of `groups` equal parts of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// Input.
    pub x: ValueId,
    /// Number of parts of a row: 1, or the number of heads.
    pub groups: usize,
    /// First element taken, within a part.
    pub at: usize,
    /// Number of elements taken from each part.
    pub take: usize,
    /// The result, `groups · take` wide.
    pub out: ValueId,
}

impl Operation for Slice {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "slice"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let part = format!("{} .. {} of {} groups", self.at, self.at + self.take, self.groups);
        vec![graph.value(self.x).name.clone(), part]
    }
}
