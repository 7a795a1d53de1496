//! The indexer: chooses the keys that attention reads.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::TopKeys;

impl Compute for TopKeys {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (q, w) = (host.input(self.q), host.input(self.w));
        let (heads, isa) = (w.len() / host.rows, host.isa);
        let size = q.len() / host.rows / heads;
        let mut at = 0;
        for piece in &host.pieces {
            let (keys, _, _) = piece.state.attention_inputs(self.state);
            let mut all = vec![0.0; (piece.first + piece.rows) * size];
            keys.read(isa, 0, 0, &mut all);
            for t in 0..piece.rows {
                let (q, w) = (&q[(at + t) * heads * size..], &w[(at + t) * heads..]);
                let score = |key: &[f32]| -> f32 {
                    let head = |h: usize| {
                        let dot: f32 =
                            q[h * size..][..size].iter().zip(key).map(|(a, b)| a * b).sum();
                        w[h] * dot.max(0.0)
                    };
                    // Adding 0.0 changes −0 to 0, so that both compare as equal.
                    (0..heads).map(head).sum::<f32>() + 0.0
                };
                let seen = piece.first + t + 1;
                let mut best: Vec<(f32, usize)> =
                    all.chunks_exact(size).take(seen).map(score).zip(0..).collect();
                // The sort is stable, so the earlier position comes first among equals.
                best.sort_by(|a, b| b.0.total_cmp(&a.0));
                let out = &mut outs[0][(at + t) * self.top..][..self.top];
                out.fill(-1.0);
                // Exact: there are fewer than 2^24 positions.
                out.iter_mut().zip(&best).for_each(|(o, (_, position))| *o = *position as f32);
            }
            at += piece.rows;
        }
    }
}
