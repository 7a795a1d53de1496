//! Products with the matrices of chosen experts.

use super::{Op, Operation, maybe};
use crate::graph::{Builder, Dtype, Graph, ValueId, WeightId};
use crate::host::Run;
use crate::host::groups::{Group, multiply_groups};

/// `out[slot] = weight[experts[slot]] · x[slot] + bias[experts[slot]]`. An `x` of one slot serves
/// all slots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertMatMul {
    /// Input: one slot, or one per chosen expert.
    pub x: ValueId,
    /// The chosen experts.
    pub experts: ValueId,
    /// One matrix per expert.
    pub weight: WeightId,
    /// One row per expert, added.
    pub bias: Option<WeightId>,
    /// One slot per chosen expert.
    pub out: ValueId,
}

impl Operation for ExpertMatMul {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x, self.experts]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        vec![self.weight]
    }

    fn vectors(&self) -> Vec<WeightId> {
        self.bias.into_iter().collect()
    }

    fn bytes(&self, graph: &Graph) -> u64 {
        let w = graph.weight(self.weight);
        (w.bytes() / w.experts.max(1) * graph.value(self.experts).width) as u64
    }

    fn name(&self) -> &'static str {
        "expert_matmul"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let v = |id: ValueId| graph.value(id).name.clone();
        let mut args = vec![v(self.x), v(self.experts), graph.weight(self.weight).name.clone()];
        args.extend(maybe("bias", graph, self.bias));
        args
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        expert_products(&[self], host, outs);
    }
}

impl ExpertMatMul {
    /// Whether the host can compute both together: the input, the experts and the shape of the
    /// matrices are equal.
    pub(crate) fn goes_with(&self, other: &ExpertMatMul, graph: &Graph) -> bool {
        let (a, b) = (graph.weight(self.weight), graph.weight(other.weight));
        (self.x, self.experts) == (other.x, other.experts)
            && (a.rows, a.cols, a.format.ggml_id) == (b.rows, b.cols, b.format.ggml_id)
    }
}

/// Computes products with equal inputs and experts together. All (token, slot) pairs of one expert
/// are multiplied at once. Rows whose expert is negative (on another device) are left unchanged.
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

impl Builder<'_> {
    /// Appends an [`ExpertMatMul`].
    pub fn expert_matmul(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        experts: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> ValueId {
        let (slots, rows) = (self.graph().value(experts).width, self.graph().weight(weight).rows);
        let out = self.value(name.into(), slots, rows, Dtype::Real);
        self.push(Op::ExpertMatMul(ExpertMatMul { x, experts, weight, bias, out }), out)
    }
}
