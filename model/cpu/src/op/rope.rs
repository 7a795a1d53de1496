//! Rotary position embedding.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Rope;

impl Compute for Rope {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, rows, heads) = (host.input(self.x), host.rows, self.heads);
        let width = x.len() / rows;
        let (table, mut threads) = host.angles(self.rope);
        threads.run(outs[0], &|at, out| {
            out.copy_from_slice(&x[at..at + out.len()]);
            for (i, row) in out.chunks_exact_mut(width).enumerate() {
                table.rotate(at / width + i, width / heads, row);
            }
        });
    }
}
