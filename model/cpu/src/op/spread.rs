//! Copies a token's row to each of its slots, times the slot's share.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Spread;

impl Compute for Spread {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, shares) = (host.input(self.x), host.input(self.shares));
        let (width, slots) = (x.len() / host.rows, shares.len() / host.rows);
        for ((i, out), share) in outs[0].chunks_exact_mut(width).enumerate().zip(shares) {
            let x = &x[i / slots * width..][..width];
            out.iter_mut().zip(x).for_each(|(o, x)| *o = share * x);
        }
    }
}
