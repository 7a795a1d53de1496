//! A scale and an offset for each element.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Affine;

impl Compute for Affine {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, scale, each) = (host.input(self.x), self.scale, self.each);
        let [weight, bias] = [self.weight, self.bias].map(|w| w.map(|w| host.weights.vector(w)));
        host.by_rows(outs[0], &|at, out| {
            let own = |v: Option<&'_ [f32]>, i: usize, none: f32| {
                v.map_or(none, |v| v[(at + i) / each % v.len()])
            };
            for (i, o) in out.iter_mut().enumerate() {
                *o = x[at + i] * scale * own(weight, i, 1.0) + own(bias, i, 0.0);
            }
        });
    }
}
