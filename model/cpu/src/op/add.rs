//! The elementwise sum of two inputs.

use super::compute::Compute;
use crate::Run;
use crate::elementwise::AddRows;
use kjit_graph::op::Add;

impl Compute for Add {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (a, b, isa) = (host.input(self.a), host.input(self.b), host.isa);
        host.by_rows(outs[0], &|at, out| {
            // SAFETY: `AddRows` has no safety requirements of its own.
            unsafe { isa.run(AddRows(&a[at..at + out.len()], &b[at..at + out.len()], out)) }
        });
    }
}
