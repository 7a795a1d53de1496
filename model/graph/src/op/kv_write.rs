//! Stores keys and values for later tokens.

use super::operation::{Lookup, Operation};
use crate::state::StateId;
use crate::value::ValueId;

/// Stores the keys and values of this token, or the only row of a latent state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvWrite {
    /// Keys of all heads.
    pub k: ValueId,
    /// Values of all heads; `None` for a latent state.
    pub v: Option<ValueId>,
    /// The state.
    pub state: StateId,
}

impl Operation for KvWrite {
    fn reads(&self) -> Vec<ValueId> {
        std::iter::once(self.k).chain(self.v).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![]
    }

    fn changed_state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        if self.v.is_some() { "kv_write" } else { "latent_write" }
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args: Vec<String> =
            self.reads().iter().map(|v| graph.value(*v).name.clone()).collect();
        args.push(format!("cache {}", graph.state(self.state).name));
        args
    }
}
