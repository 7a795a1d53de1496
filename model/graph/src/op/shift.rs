//! The previous token's row.

use super::{Op, Operation};
use crate::{Builder, Graph, StateId, ValueId};

/// `out[t] = x[t − 1]`; zeros before the first token.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift {
    /// Input.
    pub x: ValueId,
    /// The last row.
    pub state: StateId,
    /// The result, of the shape of `x`.
    pub out: ValueId,
}

impl Operation for Shift {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn keeps(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "shift"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), format!("state {}", graph.state(self.state).name)]
    }
}

impl Builder<'_> {
    /// Appends a [`Shift`] with its state.
    pub fn shift(&mut self, name: &str, x: ValueId) -> ValueId {
        let width = self.graph().value(x).width;
        let state = self.recurrent(name.to_string(), width);
        let out = self.like(name.to_string(), x);
        self.push(Op::Shift(Shift { x, state, out }), out)
    }
}
