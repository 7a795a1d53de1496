//! Concatenation of rows.

use super::{Op, Operation};
use crate::{Builder, Dtype, Graph, ValueId};

/// Concatenates, for each of `groups` parts of a row, the part of `a` and the part of `b`. If `b`
/// has one part only, it serves every group.
#[derive(Debug, Clone, PartialEq)]
pub struct Concat {
    /// The first part.
    pub a: ValueId,
    /// The second part.
    pub b: ValueId,
    /// Parts of a row: 1, or the number of heads.
    pub groups: usize,
    /// Elements of a part of `b`.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![v(self.a), v(self.b), format!("{} groups", self.groups)]
    }
}

impl Builder<'_> {
    /// Appends a [`Concat`] of `groups` parts. Parts of `b` have `behind` elements.
    pub fn concat(
        &mut self,
        name: impl Into<String>,
        a: ValueId,
        b: ValueId,
        groups: usize,
        behind: usize,
    ) -> ValueId {
        let a_width = {
            let v = self.graph().value(a);
            v.slots * v.width
        };
        let out = self.value(name.into(), 1, a_width + groups * behind, Dtype::Real);
        self.push(Op::Concat(Concat { a, b, groups, behind, out }), out)
    }
}
