//! A short causal convolution along the tokens.

use super::{Op, Operation, maybe};
use crate::graph::{Builder, Graph, StateId, ValueId, WeightId};
use crate::host::Run;

/// Causal convolution of each channel: `out[t][c] = bias[c] + Σ_k weight[c][k] · x[t − (K − 1) +
/// k][c]`. The state is the previous `K − 1` tokens, zeros at first.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Input.
    pub x: ValueId,
    /// A row of K taps per channel.
    pub weight: WeightId,
    /// Added to each channel.
    pub bias: Option<WeightId>,
    /// `K − 1` rows of `x`, oldest first.
    pub state: StateId,
    /// The result, of the shape of `x`.
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

    fn keeps(&self) -> Option<StateId> {
        Some(self.state)
    }

    fn name(&self) -> &'static str {
        "conv"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let mut args =
            vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()];
        args.extend(maybe("bias", graph, self.bias));
        args.push(format!("state {}", graph.state(self.state).name));
        args
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, taps) = (host.input(self.x), host.graph.weight(self.weight).cols);
        let (w, bias) =
            (host.weights.vector(self.weight), self.bias.map(|b| host.weights.vector(b)));
        let width = x.len() / host.rows;
        let mut at = 0;
        for piece in &mut host.pieces {
            let past = piece.state.recurrent(self.state);
            let n = piece.rows * width;
            let (x, out) = (&x[at..at + n], &mut outs[0][at..at + n]);
            // Rows are counted from the first row of the state.
            let seen = |row: usize, c: usize| {
                let i = row * width + c;
                if i < past.len() { past[i] } else { x[i - past.len()] }
            };
            for (t, out) in out.chunks_exact_mut(width).enumerate() {
                for (c, o) in out.iter_mut().enumerate() {
                    let sum: f32 = (0..taps).map(|k| w[c * taps + k] * seen(t + k, c)).sum();
                    *o = sum + bias.map_or(0.0, |b| b[c]);
                }
            }
            let next: Vec<f32> =
                (0..past.len()).map(|i| seen(piece.rows + i / width, i % width)).collect();
            past.copy_from_slice(&next);
            at += n;
        }
    }
}

impl Builder<'_> {
    /// Appends a [`Conv`] with its state.
    pub fn conv(
        &mut self,
        name: &str,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> ValueId {
        let (width, taps) = (self.graph().value(x).width, self.graph().weight(weight).cols);
        let state = self.recurrent(name.to_string(), (taps - 1) * width);
        let out = self.like(name.to_string(), x);
        self.push(Op::Conv(Conv { x, weight, bias, state, out }), out)
    }
}
