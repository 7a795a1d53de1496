//! The previous token's row.

use super::operation::{Lookup, Operation};
use crate::state::StateId;
use crate::value::ValueId;

/// `out[t] = x[t − 1]`; zeros before the first token.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift {
    /// Input.
    pub x: ValueId,
    /// The row of the last token.
    pub state: StateId,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Shift {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn changed_state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "shift"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), format!("state {}", graph.state(self.state).name)]
    }
}
