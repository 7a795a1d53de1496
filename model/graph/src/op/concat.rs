//! Concatenation of rows.

use super::operation::{Lookup, Operation};
use crate::value::ValueId;

/// Concatenates, for each of `groups` parts of a row, the part of `a` and the part of `b`. If `b`
/// has only one part, it is used for every group.
#[derive(Debug, Clone, PartialEq)]
pub struct Concat {
    /// The first part.
    pub a: ValueId,
    /// The second part.
    pub b: ValueId,
    /// Number of parts of a row: 1, or the number of heads.
    pub groups: usize,
    /// Number of elements of a part of `b`.
    pub behind: usize,
    /// Result.
    pub out: ValueId,
}

impl Operation for Concat {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.a, self.b]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "concat"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![v(self.a), v(self.b), format!("{} groups", self.groups)]
    }
}
