//! Normalises groups of elements.

use super::compute::Compute;
use crate::Run;
use crate::elementwise::NormRows;
use kjit_graph::op::Norm;

impl Compute for Norm {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let x = host.input(self.x);
        let (isa, group, eps, kind) = (host.isa, self.group, self.eps, self.kind);
        let [weight, bias] = [self.weight, self.bias].map(|w| w.map(|w| host.weights.vector(w)));
        host.by_rows(outs[0], &|at, out| {
            let x = &x[at..at + out.len()];
            // SAFETY: `NormRows` has no safety requirements of its own.
            unsafe { isa.run(NormRows { x, weight, bias, group, eps, kind, out }) }
        });
    }
}
