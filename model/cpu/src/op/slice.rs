//! A range of the elements of each group of a row.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Slice;

impl Compute for Slice {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let x = host.input(self.x);
        let width = x.len() / host.rows / self.groups;
        for (out, x) in outs[0].chunks_exact_mut(self.take).zip(x.chunks_exact(width)) {
            out.copy_from_slice(&x[self.at..self.at + self.take]);
        }
    }
}
