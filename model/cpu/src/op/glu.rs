//! Gated linear units: an activation of the gate times the up projection.

use super::compute::Compute;
use crate::Run;
use crate::elementwise::GluRows;
use kjit_graph::Activation;
use kjit_graph::op::Glu;

impl Compute for Glu {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (gate, up, isa, act) = (host.input(self.gate), host.input(self.up), host.isa, self.act);
        let each = up.len() / gate.len();
        if each == 1 && matches!(act, Activation::Silu | Activation::GeluTanh) {
            return host.by_rows(outs[0], &|at, out| {
                let (gate, up) = (&gate[at..at + out.len()], &up[at..at + out.len()]);
                // SAFETY: `GluRows` has no safety requirements of its own.
                unsafe { isa.run(GluRows { gate, up, act, out }) }
            });
        }
        host.by_rows(outs[0], &|at, out| {
            for (i, o) in out.iter_mut().enumerate() {
                *o = act.gate(gate[(at + i) / each], up[at + i]);
            }
        });
    }
}
