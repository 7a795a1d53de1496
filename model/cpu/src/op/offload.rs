//! Operations that the CPU computes during a GPU's pass, such as experts that do not fit on the
//! GPU.

use super::compute::Compute;
use super::{run_together, shares_step};
use crate::Run;
use kjit_graph::op::{Offload, Operation};
use kjit_graph::{Op, ValueId};

impl Compute for Offload {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (graph, rows) = (host.graph, host.rows);
        let given: Vec<(ValueId, &[f32])> =
            self.reads().into_iter().map(|v| (v, host.input(v))).collect();
        let elems = |v: &ValueId| rows * graph.value(*v).slots * graph.value(*v).width;
        let mut made: Vec<(ValueId, Vec<f32>)> = vec![];
        for ops in self.ops.chunk_by(|before, op| shares_step(op, before, graph)) {
            let mut now: Vec<(ValueId, Vec<f32>)> =
                ops.iter().flat_map(Op::writes).map(|v| (v, vec![0.0; elems(&v)])).collect();
            let input = |v: ValueId| match made.iter().find(|(of, _)| *of == v) {
                Some((_, rows)) => rows.as_slice(),
                None => given.iter().find(|(of, _)| *of == v).map_or(&[][..], |(_, rows)| rows),
            };
            let mut run = Run {
                graph,
                weights: host.weights,
                ropes: &mut *host.ropes,
                pool: &mut *host.pool,
                isa: host.isa,
                rounded: host.rounded.as_deref_mut(),
                reproducible: host.reproducible,
                given: &[],
                images: host.images,
                bidirectional: host.bidirectional,
                tokens: host.tokens,
                rows,
                pieces: vec![],
                inputs: &input,
            };
            let mut results: Vec<&mut [f32]> =
                now.iter_mut().map(|(_, rows)| rows.as_mut_slice()).collect();
            run_together(ops, &mut run, &mut results);
            made.append(&mut now);
        }
        if let Some((_, rows)) = made.iter().find(|(of, _)| *of == self.out) {
            outs[0].copy_from_slice(rows);
        }
    }
}
