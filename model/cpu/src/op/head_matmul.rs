//! Products of each head with a separate matrix.

use super::compute::Compute;
use crate::Run;
use crate::multiply::{Product, multiply};
use crate::shared_mut::SharedMut;
use kjit_graph::op::HeadMatMul;

impl Compute for HeadMatMul {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, tokens) = (host.input(self.x), host.rows);
        let w = host.graph.weight(self.weight);
        let (heads, rows, cols) = (w.experts, w.rows, w.cols);
        let width = x.len() / tokens;
        let (mut gathered, mut results) = (vec![0.0; tokens * cols], vec![0.0; tokens * rows]);
        for head in 0..heads {
            let from = if width == cols { 0 } else { head * cols };
            for (row, to) in x.chunks_exact(width).zip(gathered.chunks_exact_mut(cols)) {
                to.copy_from_slice(&row[from..from + cols]);
            }
            let w = host.weights.matrix(host.graph, self.weight, head);
            let product =
                Product { w, interleaved: None, bias: None, out: SharedMut::new(&mut results) };
            multiply(
                host.pool,
                host.isa,
                &gathered,
                tokens,
                &[product],
                host.rounded.as_deref_mut(),
                host.reproducible,
            );
            for (out, y) in outs[0].chunks_exact_mut(heads * rows).zip(results.chunks_exact(rows)) {
                out[head * rows..][..rows].copy_from_slice(y);
            }
        }
    }
}
