//! The CPU's code for each operation of [`kjit_graph::op`], one file each.
//!
//! An operation is plain loops over rows in f32. Operations that take most of a model's time call a
//! kernel of this crate instead.

mod act;
mod adapter_scale;
mod add;
mod affine;
mod attention;
mod attention_temperature;
mod compute;
mod concat;
mod conv;
mod dot;
mod embed;
mod expert_matmul;
mod expert_sum;
mod glu;
mod head_matmul;
mod input_rows;
mod kv_write;
mod linear_attention;
mod matmul;
mod norm;
mod offload;
mod placed;
mod reduce;
mod repeat;
mod rope;
mod route;
mod scan;
mod shift;
mod slice;
mod spread;
mod top_keys;

use super::run::Run;
use compute::Compute;
use expert_matmul::expert_products;
use kjit_graph::{Graph, Op};
use matmul::products;

fn run(op: &Op, host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
    match op {
        Op::Act(op) => op.run(host, outs),
        Op::AdapterScale(op) => op.run(host, outs),
        Op::Add(op) => op.run(host, outs),
        Op::Affine(op) => op.run(host, outs),
        Op::Attention(op) => op.run(host, outs),
        Op::Concat(op) => op.run(host, outs),
        Op::Conv(op) => op.run(host, outs),
        Op::Dot(op) => op.run(host, outs),
        Op::Offload(op) => op.run(host, outs),
        Op::Embed(op) => op.run(host, outs),
        Op::ExpertMatMul(op) => op.run(host, outs),
        Op::ExpertSum(op) => op.run(host, outs),
        Op::InputRows(op) => op.run(host, outs),
        Op::Glu(op) => op.run(host, outs),
        Op::HeadMatMul(op) => op.run(host, outs),
        Op::KvWrite(op) => op.run(host, outs),
        Op::LinearAttention(op) => op.run(host, outs),
        Op::MatMul(op) => op.run(host, outs),
        Op::Norm(op) => op.run(host, outs),
        Op::Placed(op) => op.run(host, outs),
        Op::Reduce(op) => op.run(host, outs),
        Op::Repeat(op) => op.run(host, outs),
        Op::Rope(op) => op.run(host, outs),
        Op::Route(op) => op.run(host, outs),
        Op::Scan(op) => op.run(host, outs),
        Op::Shift(op) => op.run(host, outs),
        Op::Slice(op) => op.run(host, outs),
        Op::Spread(op) => op.run(host, outs),
        Op::AttentionTemperature(op) => op.run(host, outs),
        Op::TopKeys(op) => op.run(host, outs),
    }
}

/// Whether the CPU computes `op` together with the operation before it: both are products of one
/// input.
pub(super) fn shares_step(op: &Op, before: &Op, graph: &Graph) -> bool {
    match (op, before) {
        (Op::MatMul(this), Op::MatMul(before)) => this.x == before.x,
        (Op::ExpertMatMul(this), Op::ExpertMatMul(before)) => {
            expert_matmul::shares_step(this, before, graph)
        }
        _ => false,
    }
}

/// Runs operations that go together ([`shares_step`]), or a single operation of any kind.
pub(super) fn run_together(ops: &[Op], host: &mut Run<'_>, outs: &mut [&mut [f32]]) {
    let all: Vec<_> =
        ops.iter().filter_map(|op| if let Op::MatMul(m) = op { Some(m) } else { None }).collect();
    let experts =
        ops.iter().filter_map(|op| if let Op::ExpertMatMul(m) = op { Some(m) } else { None });
    match (ops, all.len()) {
        ([op], _) => run(op, host, outs),
        (_, 0) => expert_products(&experts.collect::<Vec<_>>(), host, outs),
        _ => products(&all, host, outs),
    }
}
