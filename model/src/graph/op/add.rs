//! Sums of two values.

use super::{Op, Operation};
use crate::graph::{Builder, Graph, ValueId};
use crate::host::Run;
use crate::host::elementwise::AddRows;

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

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (a, b, isa) = (host.input(self.a), host.input(self.b), host.isa);
        host.by_rows(outs[0], &|at, out| {
            // SAFETY: this job has no requirement on its fields.
            #[allow(unsafe_code, reason = "entry to code for the detected instruction set")]
            unsafe {
                isa.run(AddRows(&a[at..at + out.len()], &b[at..at + out.len()], out))
            }
        });
    }
}

impl Builder<'_> {
    /// Appends an [`Add`].
    pub fn add(&mut self, name: impl Into<String>, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(name.into(), a);
        self.push(Op::Add(Add { a, b, out }), out)
    }
}
