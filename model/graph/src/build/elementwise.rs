//! Appends operations on elements and rows.

use super::Builder;
use crate::activation::Activation;
use crate::op::{
    Act, Add, Affine, AttentionTemperature, Concat, Dot, Glu, Norm, NormKind, Op, Repeat, Slice,
    Spread,
};
use crate::value::{Dtype, ValueId};
use crate::weight::WeightId;

impl Builder<'_> {
    /// Appends an [`Act`].
    pub fn act(&mut self, name: impl Into<String>, x: ValueId, act: Activation) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Act(Act { x, act, out }), out)
    }

    /// Appends an [`Add`].
    pub fn add(&mut self, name: impl Into<String>, a: ValueId, b: ValueId) -> ValueId {
        let out = self.like(name.into(), a);
        self.push(Op::Add(Add { a, b, out }), out)
    }

    /// Appends an [`Affine`], unless it would change nothing.
    pub fn affine(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        scale: f32,
        (weight, bias): (Option<WeightId>, Option<WeightId>),
    ) -> ValueId {
        if scale == 1.0 && weight.is_none() && bias.is_none() {
            return x;
        }
        let out = self.like(name.into(), x);
        self.push(Op::Affine(Affine { x, scale, weight, bias, each: 1, out }), out)
    }

    /// Appends an [`Affine`] with one factor per head.
    pub fn head_factors(&mut self, name: String, x: ValueId, factors: WeightId) -> ValueId {
        let each = self.graph().value(x).width / self.graph().weight(factors).elems();
        let out = self.like(name, x);
        self.push(
            Op::Affine(Affine { x, scale: 1.0, weight: Some(factors), bias: None, each, out }),
            out,
        )
    }

    /// Appends a [`Concat`] of `groups` parts. Parts of `b` have `behind` elements.
    pub fn concat(
        &mut self,
        name: impl Into<String>,
        a: ValueId,
        b: ValueId,
        groups: usize,
        behind: usize,
    ) -> ValueId {
        let a_width = {
            let v = self.graph().value(a);
            v.slots * v.width
        };
        let out = self.value(name.into(), 1, a_width + groups * behind, Dtype::Real);
        self.push(Op::Concat(Concat { a, b, groups, behind, out }), out)
    }

    /// Appends a [`Dot`].
    pub fn dot(&mut self, name: String, a: ValueId, b: ValueId, heads: usize) -> ValueId {
        let out = self.value(name, 1, heads, Dtype::Real);
        self.push(Op::Dot(Dot { a, b, heads, out }), out)
    }

    /// Appends a [`Glu`].
    pub fn glu(
        &mut self,
        name: impl Into<String>,
        gate: ValueId,
        up: ValueId,
        act: Activation,
    ) -> ValueId {
        let out = self.like(name.into(), up);
        self.push(Op::Glu(Glu { gate, up, act, out }), out)
    }

    /// Appends an RMS [`Norm`] with groups of the weight's length.
    pub fn rms_norm(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        weight: WeightId,
        eps: f32,
    ) -> ValueId {
        let group = self.graph().weight(weight).elems();
        self.norm(name, x, NormKind::Rms, group, (Some(weight), None), eps)
    }

    /// Appends a [`Norm`] with its weight and bias.
    pub fn norm(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        kind: NormKind,
        group: usize,
        (weight, bias): (Option<WeightId>, Option<WeightId>),
        eps: f32,
    ) -> ValueId {
        let out = self.like(name.into(), x);
        self.push(Op::Norm(Norm { x, kind, group, weight, bias, eps, out }), out)
    }

    /// Appends a [`Repeat`], unless `times` is 1.
    pub fn repeat(
        &mut self,
        name: String,
        x: ValueId,
        heads: usize,
        times: usize,
        tiled: bool,
    ) -> ValueId {
        if times == 1 {
            return x;
        }
        let width = self.graph().value(x).width * times;
        let out = self.value(name, 1, width, Dtype::Real);
        self.push(Op::Repeat(Repeat { x, heads, times, tiled, out }), out)
    }

    /// Appends a [`Slice`].
    pub fn slice(
        &mut self,
        name: impl Into<String>,
        x: ValueId,
        groups: usize,
        at: usize,
        take: usize,
    ) -> ValueId {
        let from = self.graph().value(x);
        debug_assert!(
            from.slots * from.width >= groups * (at + take),
            "{}: {groups} x {at} + {take}",
            from.name
        );
        let out = self.value(name.into(), 1, groups * take, Dtype::Real);
        self.push(Op::Slice(Slice { x, groups, at, take, out }), out)
    }

    /// Appends a [`Spread`].
    pub fn spread(&mut self, name: impl Into<String>, x: ValueId, shares: ValueId) -> ValueId {
        let (slots, width) = (self.graph().value(shares).width, self.graph().value(x).width);
        let out = self.value(name.into(), slots, width, Dtype::Real);
        self.push(Op::Spread(Spread { x, shares, out }), out)
    }

    /// Appends a [`AttentionTemperature`].
    pub fn temper(
        &mut self,
        name: String,
        x: ValueId,
        scale: f32,
        period: usize,
        offset: usize,
    ) -> ValueId {
        let out = self.like(name, x);
        self.push(
            Op::AttentionTemperature(AttentionTemperature { x, scale, period, offset, out }),
            out,
        )
    }
}
