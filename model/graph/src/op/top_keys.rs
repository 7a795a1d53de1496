//! The choice of the keys that attention reads.

use super::operation::{Lookup, Operation};
use crate::state::StateId;
use crate::value::ValueId;

/// The `top` positions up to the token's own with the largest `Σ_h w[h] · max(q[h] · k, 0)`
/// (DeepSeek-V3.2-Exp 2025, the "lightning indexer"), the earlier one first among equals; −1 where
/// there are fewer.
#[derive(Debug, Clone, PartialEq)]
pub struct TopKeys {
    /// A query per head.
    pub q: ValueId,
    /// A factor per head.
    pub w: ValueId,
    /// A key per token, as latents are kept.
    pub state: StateId,
    /// How many.
    pub top: usize,
    /// Positions, `top` wide.
    pub out: ValueId,
}

impl Operation for TopKeys {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.q, self.w]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn states(&self) -> Vec<StateId> {
        vec![self.state]
    }

    fn name(&self) -> &'static str {
        "top_keys"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![
            v(self.q),
            v(self.w),
            format!("cache {}", graph.state(self.state).name),
            format!("top {}", self.top),
        ]
    }
}
