//! The indexer: chooses the keys that attention reads.

use super::{Op, Operation};
use crate::graph::{Builder, Dtype, Graph, StateId, ValueId};
use crate::host::Run;

/// The `top` positions, up to the token's own, with the largest `Σ_h w[h] · max(q[h] · k, 0)` (the
/// "lightning indexer" of DeepSeek-V3.2-Exp, 2025). Of equal scores, the earlier position comes
/// first. Missing positions are −1.
#[derive(Debug, Clone, PartialEq)]
pub struct TopKeys {
    /// One query per head.
    pub q: ValueId,
    /// One factor per head.
    pub w: ValueId,
    /// One key per token, stored as latents are.
    pub state: StateId,
    /// Number of chosen positions.
    pub top: usize,
    /// The positions, `top` wide.
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

    fn args(&self, graph: &Graph) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        vec![
            v(self.q),
            v(self.w),
            format!("cache {}", graph.state(self.state).name),
            format!("top {}", self.top),
        ]
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (q, w) = (host.input(self.q), host.input(self.w));
        let (heads, isa) = (w.len() / host.rows, host.isa);
        let size = q.len() / host.rows / heads;
        let mut at = 0;
        for piece in &host.pieces {
            let (keys, _, _) = piece.state.kept(self.state);
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
                    // Adding 0.0 turns −0 into 0: both must compare as equal.
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

impl Builder<'_> {
    /// Appends a [`TopKeys`].
    pub fn top_keys(
        &mut self,
        name: String,
        q: ValueId,
        w: ValueId,
        state: StateId,
        top: usize,
    ) -> ValueId {
        let out = self.value(name, 1, top, Dtype::Index);
        self.push(Op::TopKeys(TopKeys { q, w, state, top, out }), out)
    }
}
