//! The choice of the keys that attention reads.

use super::operation::{Lookup, Operation};
use crate::state::StateId;
use crate::value::ValueId;

/// The `top` positions with the largest `Σ_h w[h] · max(q[h] · k, 0)` (DeepSeek-V3.2-Exp 2025, the
/// "lightning indexer"). Positions after the token's own position are excluded. Among equal values,
/// the earlier position comes first. If there are fewer than `top` positions, the rest is −1.
#[derive(Debug, Clone, PartialEq)]
pub struct TopKeys {
    /// A query per head.
    pub q: ValueId,
    /// A factor per head.
    pub w: ValueId,
    /// The cached keys, one per token, stored like latents.
    pub state: StateId,
    /// Number of positions to choose.
    pub top: usize,
    /// The chosen positions, `top` wide.
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
