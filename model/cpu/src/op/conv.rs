//! A short causal convolution along the tokens.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Conv;

impl Compute for Conv {
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
            // Row 0 is the oldest row of the state. The rows of the piece follow those of the
            // state.
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
