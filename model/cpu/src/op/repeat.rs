//! Repeats heads.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Repeat;

impl Compute for Repeat {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, heads) = (host.input(self.x), self.heads);
        let each = x.len() / host.rows / heads;
        for (i, out) in outs[0].chunks_exact_mut(each).enumerate() {
            let (row, run) = (i / (heads * self.times), i % (heads * self.times));
            let head = if self.tiled { run % heads } else { run / self.times };
            out.copy_from_slice(&x[(row * heads + head) * each..][..each]);
        }
    }
}
