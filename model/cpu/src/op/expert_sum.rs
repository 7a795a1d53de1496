//! The sum of a token's slots, weighted by their shares.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::ExpertSum;

impl Compute for ExpertSum {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, shares) = (host.input(self.x), self.shares.map(|s| host.input(s)));
        let (width, slots) = (host.graph.value(self.out).width, host.graph.value(self.x).slots);
        host.by_rows(outs[0], &|at, out| {
            for (i, out) in out.chunks_exact_mut(width).enumerate() {
                let t = at / width + i;
                out.fill(0.0);
                for s in 0..slots {
                    let share = shares.map_or(1.0, |shares| shares[t * slots + s]);
                    let x = &x[(t * slots + s) * width..][..width];
                    out.iter_mut().zip(x).for_each(|(o, x)| *o += share * x);
                }
            }
        });
    }
}
