//! Products with a matrix, which take most of the time.

use super::compute::Compute;
use crate::Run;
use crate::multiply::{Product, multiply};
use crate::shared_mut::SharedMut;
use kjit_graph::op::MatMul;

impl Compute for MatMul {
    fn run(&self, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
        products(&[self], host, outs);
    }
}

/// Computes products of one input, which is rounded once for all of them.
pub(super) fn products(ops: &[&MatMul], host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
    let Some(first) = ops.first() else { return };
    let products: Vec<Product<'_>> = ops
        .iter()
        .zip(outs)
        .map(|(op, out)| Product {
            w: host.weights.matrix(host.graph, op.weight, 0),
            interleaved: host.weights.interleaved(op.weight),
            bias: op.bias.map(|b| host.weights.vector(b)),
            out: SharedMut::new(out),
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
