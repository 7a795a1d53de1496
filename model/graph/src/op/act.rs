//! An activation function on each element.

use super::{Op, Operation};
use crate::{Activation, Builder, Graph, ValueId};

/// `out = act(x)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Act {
    /// Input.
    pub x: ValueId,
    /// The function.
    pub act: Activation,
    /// The result, of the shape of `x`.
    pub out: ValueId,
}

impl Operation for Act {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn name(&self) -> &'static str {
        "act"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), format!("{:?}", self.act)]
    }
}

impl Builder<'_> {
    /// Appends an [`Act`].
    pub fn act(&mut self, name: impl Into<String>, x: ValueId, act: Activation) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Act(Act { x, act, out }), out)
    }
}
