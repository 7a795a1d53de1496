//! Attention of the rows' queries to the stored keys and values.

use super::compute::Compute;
use crate::Run;
use crate::attend::Layer;
use crate::attention::attend;
use crate::shared_mut::SharedMut;
use kjit_exec::image_end;
use kjit_graph::op::Attention;

impl Compute for Attention {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (q, rows) = (host.input(self.q), host.rows);
        let slopes = self.slopes();
        let sinks = self.sinks.map(|w| host.weights.vector(w));
        let only = self.only.map(|v| host.input(v));
        let only_width = only.map_or(0, |o| o.len() / rows);
        let (mut at, q_width, out_width) = (0, q.len() / rows, outs[0].len() / rows);
        for piece in &host.pieces {
            let tokens = host.tokens.get(at..at + piece.rows).filter(|_| host.bidirectional);
            let until = tokens.map(|tokens| ends(tokens, piece.first));
            let (keys, values, value_dim) = piece.state.attention_inputs(self.state);
            let layer = Layer {
                q: &q[at * q_width..][..piece.rows * q_width],
                heads: self.heads,
                dim: q_width / self.heads,
                value_dim,
                first: piece.first,
                end: piece.first + piece.rows,
                keys,
                values,
                window: host.graph.state(self.state).window(),
                mask: self.mask,
                until: until.as_deref(),
                scale: self.scale,
                soft_cap: self.soft_cap,
                sinks,
                slopes: slopes.as_deref(),
                only: only.map(|o| (&o[at * only_width..][..piece.rows * only_width], only_width)),
                out: SharedMut::new(&mut outs[0][at * out_width..][..piece.rows * out_width]),
            };
            attend(
                host.pool,
                host.isa,
                layer,
                piece.rows,
                (host.rounded.is_none(), host.reproducible),
            );
            at += piece.rows;
        }
    }
}

/// One past the last position that each of these tokens sees, the first of which is at `first`: the
/// end of its image, or the next position.
fn ends(tokens: &[u32], first: usize) -> Vec<usize> {
    let mut all = Vec::with_capacity(tokens.len());
    while all.len() < tokens.len() {
        let end = image_end(tokens, all.len());
        all.resize(end, first + end);
    }
    all
}
