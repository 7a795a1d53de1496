//! Products with a matrix. Most of the time of a step is spent here.

use super::expert_matmul::expert_products;
use super::{Op, Operation, maybe};
use crate::graph::{Builder, Dtype, Graph, ValueId, WeightId};
use crate::host::Run;
use crate::host::multiply::{Product, multiply};
use crate::host::share::Shared;

/// `out = weight · x + bias`. The weight has a row per output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatMul {
    /// Input, as wide as a row of the weight.
    pub x: ValueId,
    /// The matrix.
    pub weight: WeightId,
    /// Added to the result.
    pub bias: Option<WeightId>,
    /// One element per row of the weight.
    pub out: ValueId,
}

impl Operation for MatMul {
    fn reads(&self) -> Vec<ValueId> {
        vec![self.x]
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

    fn name(&self) -> &'static str {
        "matmul"
    }

    fn args(&self, graph: &Graph) -> Vec<String> {
        let mut args =
            vec![graph.value(self.x).name.clone(), graph.weight(self.weight).name.clone()];
        args.extend(maybe("bias", graph, self.bias));
        args
    }

    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        products(&[self], host, outs);
    }
}

/// Whether the host computes an operation together with the one before: products of the same input.
pub(crate) fn goes_with(op: &Op, before: &Op, graph: &Graph) -> bool {
    match (op, before) {
        (Op::MatMul(this), Op::MatMul(before)) => this.x == before.x,
        (Op::ExpertMatMul(this), Op::ExpertMatMul(before)) => this.goes_with(before, graph),
        _ => false,
    }
}

/// Runs a group of operations that [`goes_with`] joined, or a single operation of any kind.
pub(crate) fn run_together(ops: &[Op], host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
    let all: Vec<&MatMul> =
        ops.iter().filter_map(|op| if let Op::MatMul(m) = op { Some(m) } else { None }).collect();
    let experts =
        ops.iter().filter_map(|op| if let Op::ExpertMatMul(m) = op { Some(m) } else { None });
    match (ops, all.len()) {
        ([op], _) => op.run(host, outs),
        (_, 0) => expert_products(&experts.collect::<Vec<_>>(), host, outs),
        _ => products(&all, host, outs),
    }
}

fn products(ops: &[&MatMul], host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
    let Some(first) = ops.first() else { return };
    let products: Vec<Product<'_>> = ops
        .iter()
        .zip(outs)
        .map(|(op, out)| Product {
            w: host.weights.matrix(host.graph, op.weight, 0),
            beside: host.weights.beside(op.weight),
            bias: op.bias.map(|b| host.weights.vector(b)),
            out: Shared::new(out),
        })
        .collect();
    let (x, rows) = (host.input(first.x), host.rows);
    multiply(
        host.pool,
        host.isa,
        x,
        rows,
        &products,
        host.rounded.as_deref_mut(),
        host.reproducible,
    );
}

impl Builder<'_> {
    /// Appends a [`MatMul`].
    pub fn matmul(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> ValueId {
        let rows = self.graph().weight(weight).rows;
        let out = self.value(name.into(), 1, rows, Dtype::Real);
        self.push(Op::MatMul(MatMul { x, weight, bias, out }), out)
    }
}
