//! Sums of two values.

use super::{Op, Operation};
use crate::{Builder, Graph, ValueId};

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

    fn args(&self, graph: &Graph) -> Vec<String> {
        [self.a, self.b].map(|v| graph.value(v).name.clone()).into()
    }
}

impl Builder<'_> {
    /// Appends an [`Add`].
    pub fn add(&mut self, name: impl Into<String>, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(name.into(), a);
        self.push(Op::Add(Add { a, b, out }), out)
    }
}
