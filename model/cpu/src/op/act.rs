//! An activation function, applied to each element.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::Act;

impl Compute for Act {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, act) = (host.input(self.x), self.act);
        host.by_rows(outs[0], &|at, out| {
            out.iter_mut().zip(&x[at..]).for_each(|(o, &x)| *o = act.of(x));
        });
    }
}
