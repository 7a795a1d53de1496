//! Gated linear units.

use super::{Op, Operation};
use crate::{Activation, Builder, Graph, ValueId};

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
