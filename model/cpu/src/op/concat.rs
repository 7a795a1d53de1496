//! Concatenates the rows of two inputs, group by group.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Concat;

impl Compute for Concat {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (a, b, groups) = (host.input(self.a), host.input(self.b), self.groups);
        let (first, behind) = (a.len() / host.rows / groups, self.behind);
        // A row of `b` has one part for each group, or one part that all groups share.
        let runs = b.len() / host.rows / behind;
        for (i, out) in outs[0].chunks_exact_mut(first + behind).enumerate() {
            let (row, group) = (i / groups, i % groups);
            out[..first].copy_from_slice(&a[i * first..][..first]);
            out[first..].copy_from_slice(&b[(row * runs + group % runs) * behind..][..behind]);
        }
    }
}
