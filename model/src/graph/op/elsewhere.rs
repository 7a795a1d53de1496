//! Operations that the CPU computes within a GPU's pass, such as experts that have no room there.

use super::{Op, Operation, goes_with, run_together};
use crate::graph::{Graph, ValueId, WeightId};
use crate::host::Run;

/// The result of a group of operations on `x`: one row per token, without a state.
#[derive(Debug, Clone, PartialEq)]
pub struct Elsewhere {
    /// The input rows.
    pub x: ValueId,
    /// Further inputs. If the device has some of the experts: the chosen experts (negative: not for
    /// the CPU) and their weights.
    pub with: Vec<ValueId>,
    /// The operations in order. Only `out` is read outside.
    pub ops: Vec<Op>,
    /// The output rows.
    pub out: ValueId,
}

impl Operation for Elsewhere {
    fn reads(&self) -> Vec<ValueId> {
        std::iter::once(self.x).chain(self.with.iter().copied()).collect()
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        let vectors = self.vectors();
        self.ops.iter().flat_map(Op::weights).filter(|w| !vectors.contains(w)).collect()
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.ops.iter().flat_map(Op::vectors).collect()
    }

    fn bytes(&self, graph: &Graph) -> u64 {
        self.ops.iter().map(|op| op.bytes(graph)).sum()
    }

    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let made = self.ops.iter().flat_map(Op::writes);
        self.reads().into_iter().chain(made).map(|v| graph.value(v).name.clone()).collect()
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (graph, rows) = (host.graph, host.rows);
        let given: Vec<(ValueId, &[f32])> =
            self.reads().into_iter().map(|v| (v, host.input(v))).collect();
        let elems = |v: &ValueId| rows * graph.value(*v).slots * graph.value(*v).width;
        let mut made: Vec<(ValueId, Vec<f32>)> = vec![];
        for ops in self.ops.chunk_by(|before, op| goes_with(op, before, graph)) {
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
