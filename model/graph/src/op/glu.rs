//! Gated linear units.

use super::operation::{Lookup, Operation};
use crate::activation::Activation;
use crate::value::ValueId;

/// `out = act(gate) · up`. If the gate is narrower than `up`, each of its elements is used for
/// several adjacent elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Glu {
    /// Input of the activation.
    pub gate: ValueId,
    /// The other factor.
    pub up: ValueId,
    /// The activation.
    pub act: Activation,
    /// The result, with the shape of `up`.
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

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![v(self.gate), v(self.up), format!("{:?}", self.act)]
    }
}
