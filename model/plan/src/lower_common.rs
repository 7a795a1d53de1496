//! Lowers the steps that are equal for one token and for many tokens: embedding rows, norms,
//! routing, sums.

use super::lower::Lower;
use super::{Bind, Control, Dim, ONE, PlanError, TOKENS};
use crate::error::unsupported;
use kjit_graph::op::{
    Add, By, Embed, ExpertSum, Glu, HeadMatMul, InputRows, KvWrite, Norm, NormKind as Kind, Rope,
    Route, Shift,
};
use kjit_graph::{Activation, Op, ValueId, WeightId};
use kjit_kernels::combine::{Combine, CombineArgs, CombineSpec};
use kjit_kernels::embed::{EmbedArgs, EmbedSpec};
use kjit_kernels::expert_sum::{ExpertSumArgs, ExpertSumSpec};
use kjit_kernels::layout::Layout;
use kjit_kernels::norm::{NormArgs, NormKind, NormSpec};
use kjit_kernels::route::{Gating, RouteArgs, RouteSpec};

/// A norm in the kernels' form.
pub(super) struct NormForm {
    pub kind: NormKind,
    /// Elements of a group.
    pub group: usize,
    /// Factors for one group, or for all.
    pub weight: Option<WeightId>,
    /// Offsets of a group.
    pub bias: Option<WeightId>,
}

impl Lower<'_> {
    fn embed(
        &mut self,
        table: WeightId,
        by: By,
        scale: f32,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let (name, w) = (self.graph.value(out).name.clone(), self.graph.weight(table));
        let layout = Layout::new(w.format, w.cols)
            .map_err(|source| PlanError::Layout { name: w.name.clone(), source })?;
        let spec = EmbedSpec { layout, each_own: self.batch };
        let job = self.job(&name, spec.clone())?;
        // For position embeddings the id is the position. It is read from a list that all sequences
        // share.
        let (ids, capacity) = match by {
            // Drafted rows share one id ring.
            By::Token => (Control::Tokens, if self.drafted { 0 } else { self.context + 1 }),
            By::Position => (Control::Numbers, 0),
        };
        let to = match by {
            By::Token => self.program.make_embedded(out),
            By::Position => self.program.make(out),
        };
        let args = EmbedArgs {
            table: self.matrix(table),
            tokens: Bind::Control(ids),
            slots: self.slots(),
            position: self.position(),
            out: to,
            scale: Bind::F32(scale),
            capacity: Bind::U32(capacity),
        };
        self.run(name, &job, [Dim::Is(spec.blocks()), TOKENS, ONE], args);
        Ok(())
    }

    pub(super) fn norm(
        &mut self,
        x: ValueId,
        form: &NormForm,
        eps: f32,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let (name, cols) = (self.graph.value(out).name.clone(), form.group);
        let value = self.graph.value(x);
        let groups = (value.slots * value.width)
            .checked_div(cols)
            .filter(|g| g * cols == value.slots * value.width);
        let groups =
            groups.ok_or_else(|| unsupported(&name, "its groups do not divide its width"))? as u32;
        let elems = |w: Option<WeightId>| w.map_or(0, |w| self.graph.weight(w).elems());
        if elems(form.bias) != 0 && elems(form.bias) != cols {
            return Err(unsupported(&name, "no kernel supports different offsets for each group"));
        }
        let weights = elems(form.weight) / cols;
        let spec =
            NormSpec { cols, kind: form.kind, weights, residual: residual.is_some(), tuning: None };
        let spec = self.tuned(spec);
        let job = self.job(&name, spec)?;
        let from = self.value(x)?;
        let [weight, bias] =
            [form.weight, form.bias].map(|w| w.map_or(Bind::Null, |w| self.vector(w)));
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let y = match residual {
            Some(r) => self.program.make_over(out, r, &[x]),
            None => self.program.make(out),
        };
        let args = NormArgs { x: from, weight, bias, residual: added, y, eps: Bind::F32(eps) };
        self.run(name, &job, [Dim::Tokens { per: 1, each: groups }, ONE, ONE], args);
        Ok(())
    }

    pub(super) fn expert_sum(
        &mut self,
        x: Bind,
        top: usize,
        shares: ValueId,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let value = self.graph.value(out);
        let name = value.name.clone();
        let spec = ExpertSumSpec { cols: value.width, top, residual: residual.is_some() };
        let job = self.job(&name, spec.clone())?;
        let shares = self.value(shares)?;
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let to = match residual {
            Some(r) => self.program.make_over(out, r, &[]),
            None => self.program.make(out),
        };
        let args = ExpertSumArgs { x, shares, residual: added, out: to };
        self.run(name, &job, [Dim::Is(spec.blocks()), TOKENS, ONE], args);
        Ok(())
    }

    /// An operation without a fusion rule.
    pub(super) fn single(&mut self, op: &Op) -> Result<(), PlanError> {
        match *op {
            Op::Route(ref route) => self.route(route),
            Op::Glu(Glu { gate, up, act: Activation::Silu, out }) => {
                self.combine(Combine::Silu, gate, up, out)
            }
            Op::Glu(Glu { gate, up, act: Activation::GeluTanh, out }) => {
                self.combine(Combine::Gelu, gate, up, out)
            }
            Op::InputRows(InputRows { out }) => {
                self.program.give(out);
                Ok(())
            }
            Op::Offload(ref apart) if apart.with.is_empty() => {
                self.program.pause(op)?;
                self.take_rows(apart.out)
            }
            Op::Offload(_) | Op::Placed(_) => self.program.pause(op),
            Op::Add(Add { a, b, out }) => self.combine(Combine::Add, a, b, out),
            Op::Norm(Norm {
                x,
                kind: kind @ (Kind::Layer | Kind::Rms),
                group,
                weight,
                bias,
                eps,
                out,
            }) => {
                // The kernel adds offsets only if they are equal for all groups.
                let own =
                    bias.filter(|b| kind == Kind::Layer && self.graph.weight(*b).elems() == group);
                let of = match kind {
                    Kind::Layer => NormKind::Layer { bias: own.is_some() },
                    _ => NormKind::Rms,
                };
                self.norm(x, &NormForm { kind: of, group, weight, bias: own }, eps, None, out)?;
                match bias.filter(|_| own.is_none()) {
                    Some(bias) => self.add_bias(bias, out),
                    None => Ok(()),
                }
            }
            // Dividing by the length is equal to dividing by the root mean square and by √n.
            Op::Norm(Norm { x, kind: Kind::Length, group, weight: None, bias: None, eps, out }) => {
                let n = group as f32;
                let form = NormForm { kind: NormKind::Rms, group, weight: None, bias: None };
                self.norm(x, &form, (eps * eps / n).max(1e-30), None, out)?;
                self.multiply(1.0 / n.sqrt(), out)
            }
            Op::ExpertSum(ExpertSum { x, shares: Some(shares), out }) => {
                let (from, top) = (self.value(x)?, self.graph.value(x).slots);
                self.expert_sum(from, top, shares, None, out)
            }
            Op::Embed(Embed { table, by, scale, out }) => self.embed(table, by, scale, out),
            Op::Rope(Rope { x, rope, heads, out }) => self.rotate(x, rope, heads, out),
            Op::HeadMatMul(HeadMatMul { x, weight, out }) => self.head_product(x, weight, out),
            Op::AdapterScale(_)
            | Op::AttentionTemperature(_)
            | Op::Spread(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Dot(_) => {
                let out = op.writes().first().copied();
                out.map_or(Ok(()), |out| self.map(op, None, out))
            }
            Op::ExpertSum(ExpertSum { shares: None, out, .. }) => self.map(op, None, out),
            Op::Shift(Shift { x, state, out }) => self.shift(x, state, out),
            Op::Scan(ref scan) => self.scan(scan),
            Op::LinearAttention(ref linear) => self.linear(linear),
            Op::Repeat(ref repeat) => self.repeat(repeat),
            Op::KvWrite(KvWrite { k, v: None, state }) => {
                let name = format!("{}.keep", self.graph.value(k).name);
                self.keep(name, k, state)
            }
            Op::TopKeys(ref keys) => self.top_keys(keys),
            _ => {
                let made = op.writes().first().map(|v| self.graph.value(*v).name.clone());
                let made = made.unwrap_or_else(|| "a cache write".to_owned());
                Err(unsupported(
                    &made,
                    format!("'{}' is supported only as part of a fused step", op.name()),
                ))
            }
        }
    }

    fn route(&mut self, route: &Route) -> Result<(), PlanError> {
        let name = self.graph.value(route.experts).name.clone();
        let spec = self.tuned(RouteSpec {
            experts: self.graph.value(route.scores).width,
            top: route.top,
            renormalise: route.renormalise,
            gating: match route.gating {
                kjit_graph::op::Gating::Softmax => Gating::Softmax,
                kjit_graph::op::Gating::Sigmoid => Gating::Sigmoid,
                kjit_graph::op::Gating::Chosen => Gating::Chosen,
            },
            bias: route.bias.is_some(),
            factors: route.factors.is_some(),
            groups: route.groups.map(|g| (g.count, g.used)),
            alike: route.each,
            tuning: None,
        });
        let job = self.job(&name, spec)?;
        let [bias, factors] =
            [route.bias, route.factors].map(|w| w.map_or(Bind::Null, |w| self.vector(w)));
        let args = RouteArgs {
            scores: self.value(route.scores)?,
            bias,
            factors,
            experts: self.program.make(route.experts),
            shares: self.program.make(route.shares),
            scale: Bind::F32(route.scale),
        };
        self.run(name, &job, [TOKENS, ONE, ONE], args);
        Ok(())
    }

    fn combine(
        &mut self,
        op: Combine,
        a: ValueId,
        b: ValueId,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let value = self.graph.value(out);
        let (name, each) = (value.name.clone(), (value.slots * value.width) as u64);
        let job = self.job(&name, CombineSpec { op })?;
        let most = CombineSpec::blocks(each * u64::from(self.program.tokens()), u32::MAX);
        let blocks = Dim::Fill { per_unit: CombineSpec::BLOCKS_PER_UNIT, most };
        let (a, b) = (self.value(a)?, self.value(b)?);
        let (y, n) = (self.program.make(out), Bind::Elements(each));
        let args = CombineArgs { a, b, y, n, blocks: Bind::Dim(blocks) };
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }
}
