//! Linear attention: the past is one matrix per head.

use super::operation::{Lookup, Operation, maybe};
use crate::state::StateId;
use crate::value::ValueId;
use crate::weight::WeightId;

/// Linear attention with decay, and with a correction if `a` and `b` are given. For each head, with
/// keys of length `K` and values of length `V`:
///
/// ```text
/// S'[i][v] = w[i] · S[i][v] + b[i] · Σ_j a[j] · S[j][v] + k[i] · v[v]
/// out[v]   = Σ_i q[i] · S'[i][v]
/// ```
///
/// With a bonus `u`, as in RWKV-6 (arXiv 2404.05892): `out[v] = Σ_i q[i] · (S[i][v] + u[i] · k[i] ·
/// v[v])`. RWKV-7 (arXiv 2503.14456) uses general `a` and `b`. The delta rule (Yang et al. 2024,
/// arXiv 2412.06464) is `a = −w k`, `b = β k`, with `β k` for `k`.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearAttention {
    /// Queries, `heads · K` wide.
    pub q: ValueId,
    /// Keys, `heads · K` wide.
    pub k: ValueId,
    /// Values, `heads · V` wide.
    pub v: ValueId,
    /// Decay factor of the state: one per head, or `K` per head.
    pub w: ValueId,
    /// The vectors `a` and `b` of the correction, `heads · K` wide each.
    pub correction: Option<(ValueId, ValueId)>,
    /// Factor on the token's own key, `K` per head.
    pub bonus: Option<WeightId>,
    /// Number of heads.
    pub heads: usize,
    /// The state: `heads · K · V` elements.
    pub state: StateId,
    /// The result, with the shape of `v`.
    pub out: ValueId,
}

impl Operation for LinearAttention {
    fn reads(&self) -> Vec<ValueId> {
        let (a, b) = self.correction.unzip();
        [self.q, self.k, self.v, self.w].into_iter().chain(a).chain(b).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.bonus.into_iter().collect()
    }

    fn changed_state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "linear_attention"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args: Vec<String> =
            self.reads().iter().map(|v| graph.value(*v).name.clone()).collect();
        args.extend(maybe("bonus", graph, self.bonus));
        args.push(format!("heads {}", self.heads));
        args.push(format!("state {}", graph.state(self.state).name));
        args
    }
}

/// The inputs of a [`LinearAttention`].
#[derive(Debug, Clone, Copy)]
pub struct LinearInputs {
    /// See [`LinearAttention::q`].
    pub q: ValueId,
    /// See [`LinearAttention::k`].
    pub k: ValueId,
    /// See [`LinearAttention::v`].
    pub v: ValueId,
    /// See [`LinearAttention::w`].
    pub w: ValueId,
    /// See [`LinearAttention::correction`].
    pub correction: Option<(ValueId, ValueId)>,
    /// See [`LinearAttention::bonus`].
    pub bonus: Option<WeightId>,
}
