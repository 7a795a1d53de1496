//! The inner product of two inputs, head by head.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Dot;

impl Compute for Dot {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (a, b) = (host.input(self.a), host.input(self.b));
        let each = a.len() / outs[0].len();
        for (out, (a, b)) in outs[0].iter_mut().zip(a.chunks_exact(each).zip(b.chunks_exact(each)))
        {
            *out = a.iter().zip(b).map(|(a, b)| a * b).sum();
        }
    }
}
