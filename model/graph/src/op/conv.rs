//! A short causal convolution along the tokens.

use super::operation::{Lookup, Operation, maybe};
use crate::state::StateId;
use crate::value::ValueId;
use crate::weight::WeightId;

/// Causal convolution of each channel: `out[t][c] = bias[c] + Σ_k weight[c][k] · x[t − (K − 1) +
/// k][c]`. The state is the previous `K − 1` tokens. It starts as zeros.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Input.
    pub x: ValueId,
    /// The weights, a row of K taps per channel.
    pub weight: WeightId,
    /// Bias that is added to each channel.
    pub bias: Option<WeightId>,
    /// The state: `K − 1` rows of `x`, the oldest first.
    pub state: StateId,
    /// The result, with the shape of `x`.
    pub out: ValueId,
}

impl Operation for Conv {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn vectors(&self) -> Vec<WeightId> {
        std::iter::once(self.weight).chain(self.bias).collect()
    }

    fn changed_state(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "conv"
    }

    fn args(&self, graph: &dyn Lookup) -> Vec<String> {
        let mut args =
            vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()];
        args.extend(maybe("bias", graph, self.bias));
        args.push(format!("state {}", graph.state(self.state).name));
        args
    }
}
