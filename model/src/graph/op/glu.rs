//! Gated linear units.

use super::{Op, Operation};
use crate::graph::{Activation, Builder, Graph, ValueId};
use crate::host::Run;
use crate::host::elementwise::GluRows;

/// `out = act(gate) · up`. If the gate is narrower than `up`, each of its elements serves several
/// neighbouring ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Glu {
    /// Input of the activation.
    pub gate: ValueId,
    /// The other factor.
    pub up: ValueId,
    /// The activation.
    pub act: Activation,
    /// The result, of the shape of `up`.
    pub out: ValueId,
}

impl Operation for Glu {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.gate, self.up]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "glu"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![v(self.gate), v(self.up), format!("{:?}", self.act)]
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (gate, up, isa, act) = (host.input(self.gate), host.input(self.up), host.isa, self.act);
        let each = up.len() / gate.len();
        if each == 1 && matches!(act, Activation::Silu | Activation::GeluTanh) {
            return host.by_rows(outs[0], &|at, out| {
                let (gate, up) = (&gate[at..at + out.len()], &up[at..at + out.len()]);
                // SAFETY: this job has no requirement on its fields.
                #[allow(unsafe_code, reason = "entry to code for the detected instruction set")]
                unsafe {
                    isa.run(GluRows { gate, up, act, out })
                }
            });
        }
        host.by_rows(outs[0], &|at, out| {
            for (i, o) in out.iter_mut().enumerate() {
                *o = act.gate(gate[(at + i) / each], up[at + i]);
            }
        });
    }
}

impl Builder<'_> {
    /// Appends a [`Glu`].
    pub fn glu(
        &mut self,
        name: impl Into<String>,
        gate: ValueId,
        up: ValueId,
        act: Activation,
    ) -> ValueId {
        let out = self.like(name.into(), up);
        self.push(Op::Glu(Glu { gate, up, act, out }), out)
    }
}
