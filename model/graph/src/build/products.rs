//! Appends products with matrices, and the choice of experts.

use super::Builder;
use crate::op::{By, Embed, ExpertMatMul, ExpertSum, Gating, HeadMatMul, MatMul, Op, Route};
use crate::value::{Dtype, ValueId};
use crate::weight::WeightId;

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

    /// Appends an [`ExpertSum`].
    pub fn expert_sum(&mut self, name: impl Into<String>, x: ValueId, shares: ValueId) -> ValueId {
        self.sum_slots(name.into(), x, Some(shares))
    }

    /// Appends an [`ExpertSum`] without shares.
    pub fn slot_sum(&mut self, name: impl Into<String>, x: ValueId) -> ValueId {
        self.sum_slots(name.into(), x, None)
    }

    fn sum_slots(&mut self, name: String, x: ValueId, shares: Option<ValueId>) -> ValueId {
        let width = self.graph().value(x).width;
        let out = self.value(name, 1, width, Dtype::Real);
        self.push(Op::ExpertSum(ExpertSum { x, shares, out }), out)
    }

    /// Appends a [`Route`]: softmax over all experts, without bias, groups and factors, one score
    /// per expert. `with` may change these. The values are `name.experts` and `name.shares`.
    pub fn route(
        &mut self,
        name: &str,
        scores: ValueId,
        top: usize,
        (renormalise, scale): (bool, f32),
        with: impl FnOnce(&mut Route),
    ) -> (ValueId, ValueId) {
        let experts = self.value(format!("{name}.experts"), 1, top, Dtype::Index);
        let shares = self.value(format!("{name}.shares"), 1, top, Dtype::Real);
        let (gating, bias, groups, factors, each) = (Gating::Softmax, None, None, None, 1);
        let mut op = Route {
            scores,
            top,
            gating,
            renormalise,
            scale,
            bias,
            groups,
            factors,
            each,
            experts,
            shares,
        };
        with(&mut op);
        self.push_op(Op::Route(op));
        (experts, shares)
    }

    /// Appends an [`Embed`].
    pub fn embed(
        &mut self,
        name: impl Into<String>,
        table: WeightId,
        by: By,
        scale: f32,
    ) -> ValueId {
        let width = self.graph().weight(table).cols;
        let out = self.value(name.into(), 1, width, Dtype::Real);
        self.push(Op::Embed(Embed { table, by, scale, out }), out)
    }
}
