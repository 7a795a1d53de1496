//! Products with the matrices of the chosen experts.

use super::compute::Compute;
use crate::Run;
use crate::groups::{Group, multiply_groups};
use kjit_graph::Graph;
use kjit_graph::op::ExpertMatMul;

impl Compute for ExpertMatMul {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        expert_products(&[self], host, outs);
    }
}

/// Whether the CPU computes both operations together. They must have the same input and experts,
/// and their matrices the same shape and format.
pub(super) fn shares_step(this: &ExpertMatMul, other: &ExpertMatMul, graph: &Graph) -> bool {
    let (a, b) = (graph.weight(this.weight), graph.weight(other.weight));
    (this.x, this.experts) == (other.x, other.experts)
        && (a.rows, a.cols, a.format.ggml_id) == (b.rows, b.cols, b.format.ggml_id)
}

/// Computes operations that go together. Each (token, slot) pair is multiplied by the matrices of
/// its expert, with all pairs of an expert in one product. Rows whose expert is below 0 (on another
/// device) stay unchanged.
pub(super) fn expert_products(ops: &[&ExpertMatMul], host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
    let Some(first) = ops.first() else { return };
    let (x, experts) = (host.input(first.x), host.input(first.experts));
    let slots = host.graph.value(first.experts).width;
    let shared = host.graph.value(first.x).slots == 1;
    let here = experts.iter().zip(0..).filter(|(e, _)| **e >= 0.0);
    let mut uses: Vec<(usize, usize)> = here.map(|(&e, slot)| (e as usize, slot)).collect();
    uses.sort_unstable();
    let mut groups = vec![];
    for (out, op) in ops.iter().enumerate() {
        let rows = host.graph.weight(op.weight).rows;
        let bias = op.bias.map(|b| host.weights.vector(b));
        groups.extend(uses.chunk_by(|a, b| a.0 == b.0).map(|run| {
            let expert = run[0].0;
            let w = host.weights.matrix(host.graph, op.weight, expert);
            let bias = bias.map(|b| &b[expert * rows..][..rows]);
            let each =
                run.iter().map(|&(_, slot)| (if shared { slot / slots } else { slot }, slot));
            Group { w, bias, rows: each.collect(), out }
        }));
    }
    multiply_groups(
        host.pool,
        host.isa,
        x,
        &groups,
        outs,
        host.rounded.is_some(),
        host.reproducible,
    );
}
