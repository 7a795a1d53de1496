//! Rows side by side.

use super::{Op, Operation};
use crate::{Builder, Dtype, Graph, ValueId};

/// Each of `groups` runs of a row: the run of `a`, then that of `b`. Where `b` is one run only, it
/// is taken for every group.
#[derive(Debug, Clone, PartialEq)]
pub struct Concat {
    /// Comes first.
    pub a: ValueId,
    /// Comes behind it.
    pub b: ValueId,
    /// Runs: 1, or heads.
    pub groups: usize,
    /// Elements of a run of `b`.
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
    /// Appends a [`Concat`] of `groups` runs, those of `b` `behind` elements long.
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
