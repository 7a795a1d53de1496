//! Rows side by side.

use super::Compute;
use crate::Run;
use kjit_graph::op::Concat;

impl Compute for Concat {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (a, b, groups) = (host.input(self.a), host.input(self.b), self.groups);
        let (first, behind) = (a.len() / host.rows / groups, self.behind);
        // Runs of b in a row: one for each group, or one for all.
        let runs = b.len() / host.rows / behind;
        for (i, out) in outs[0].chunks_exact_mut(first + behind).enumerate() {
            let (row, group) = (i / groups, i % groups);
            out[..first].copy_from_slice(&a[i * first..][..first]);
            out[first..].copy_from_slice(&b[(row * runs + group % runs) * behind..][..behind]);
        }
    }
}
