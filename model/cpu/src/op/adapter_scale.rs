//! Factors of adapters, which each sequence chooses.

use super::compute::Compute;
use crate::Run;
use kjit_graph::op::AdapterScale;

impl Compute for AdapterScale {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let x = host.input(self.x);
        let width = (x.len() / host.rows.max(1)).max(1);
        let factors = host.pieces.iter().flat_map(|p| {
            let factors: &[f32] = p.state.factors();
            (0..p.rows).map(move |_| factors)
        });
        for ((x, out), factors) in
            x.chunks_exact(width).zip(outs[0].chunks_exact_mut(width)).zip(factors)
        {
            let runs = x.chunks(self.each).zip(out.chunks_mut(self.each));
            for (i, (x, out)) in runs.enumerate() {
                match factors.get(i).copied().unwrap_or(0.0) {
                    0.0 => out.fill(0.0),
                    factor => out.iter_mut().zip(x).for_each(|(o, x)| *o = factor * x),
                }
            }
        }
    }
}
