//! A factor that grows with the logarithm of the position.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::AttentionTemperature;

impl Compute for AttentionTemperature {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let x = host.input(self.x);
        let width = x.len() / host.rows;
        let rows = outs[0].chunks_exact_mut(width).zip(x.chunks_exact(width));
        for (position, (out, x)) in host.positions().zip(rows) {
            let steps = ((position + self.offset) / self.period + 1) as f64;
            let factor = (1.0 + f64::from(self.scale) * steps.ln()) as f32;
            out.iter_mut().zip(x).for_each(|(o, x)| *o = x * factor);
        }
    }
}
