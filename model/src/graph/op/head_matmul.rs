//! Products with one matrix per head.

use super::{Op, Operation};
use crate::graph::{Builder, Dtype, Graph, ValueId, WeightId};
use crate::host::Run;
use crate::host::multiply::{Product, multiply};
use crate::host::share::Shared;

/// `out[h] = weight[h] · x[h]`, for each head. If `x` has the width of one head, it serves all
/// heads.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadMatMul {
    /// Input: the rows of all heads, or one row that serves all.
    pub x: ValueId,
    /// One matrix per head.
    pub weight: WeightId,
    /// The results of all heads.
    pub out: ValueId,
}

impl Operation for HeadMatMul {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
    }

    fn writes(&self) -> Vec<ValueId> {
        vec![self.out]
    }

    fn matrices(&self) -> Vec<WeightId> {
        vec![self.weight]
    }

    fn name(&self) -> &'static str {
        "head_matmul"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()]
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        let (x, tokens) = (host.input(self.x), host.rows);
        let w = host.graph.weight(self.weight);
        let (heads, rows, cols) = (w.experts, w.rows, w.cols);
        let width = x.len() / tokens;
        let (mut gathered, mut results) = (vec![0.0; tokens * cols], vec![0.0; tokens * rows]);
        for head in 0..heads {
            let from = if width == cols { 0 } else { head * cols };
            for (row, to) in x.chunks_exact(width).zip(gathered.chunks_exact_mut(cols)) {
                to.copy_from_slice(&row[from..from + cols]);
            }
            let w = host.weights.matrix(host.graph, self.weight, head);
            let product = Product { w, beside: None, bias: None, out: Shared::new(&mut results) };
            multiply(
                host.pool,
                host.isa,
                &gathered,
                tokens,
                &[product],
                host.rounded.as_deref_mut(),
                host.reproducible,
            );
            for (out, y) in outs[0].chunks_exact_mut(heads * rows).zip(results.chunks_exact(rows)) {
                out[head * rows..][..rows].copy_from_slice(y);
            }
        }
    }
}

impl Builder<'_> {
    /// Appends a [`HeadMatMul`].
    pub fn head_matmul(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        weight: WeightId,
    ) -> ValueId {
        let w = self.graph().weight(weight);
        let width = w.experts * w.rows;
        let out = self.value(name.into(), 1, width, Dtype::Real);
        self.push(Op::HeadMatMul(HeadMatMul { x, weight, out }), out)
    }
}
