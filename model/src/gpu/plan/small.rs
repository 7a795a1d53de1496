//! The steps that are the same for one token and for many: rows of the embedding, norms, routing, sums.

use super::lower::{Lower, unsupported};
use super::{Bind, Control, Dim, ONE, PlanError, TOKENS};
use crate::graph::op::{Add, Embed, ExpertSum, Glu, Norm, NormKind as Kind, Route};
use crate::graph::{Activation, Op, ValueId, WeightId};
use kjit_kernels::combine::{Combine, CombineArgs, CombineSpec};
use kjit_kernels::embed::{EmbedArgs, EmbedSpec};
use kjit_kernels::expert_sum::{ExpertSumArgs, ExpertSumSpec};
use kjit_kernels::layout::Layout;
use kjit_kernels::norm::{NormArgs, NormKind, NormSpec};
use kjit_kernels::route::{RouteArgs, RouteSpec};

impl Lower<'_> {
    pub(super) fn embed(&mut self, table: WeightId, scale: f32, out: ValueId) -> Result<(), PlanError> {
        let (name, w) = (self.graph.value(out).name.clone(), self.graph.weight(table));
        let layout =
            Layout::new(w.format, w.cols).map_err(|source| PlanError::Layout { name: w.name.clone(), source })?;
        let spec = EmbedSpec { layout, each_own: self.batch };
        let job = self.job(&name, spec.clone())?;
        let args = EmbedArgs {
            table: self.matrix(table),
            tokens: Bind::Control(Control::Tokens),
            slots: self.slots(),
            position: Bind::Control(Control::Position),
            out: self.program.make(out),
            scale: Bind::F32(scale),
            capacity: Bind::U32(self.context + 1),
        };
        self.run(name, &job, [Dim::Is(spec.blocks()), TOKENS, ONE], args);
        Ok(())
    }

    pub(super) fn norm(
        &mut self,
        x: ValueId,
        weight: WeightId,
        bias: Option<Option<WeightId>>,
        eps: f32,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let (name, cols) = (self.graph.value(out).name.clone(), self.graph.weight(weight).cols);
        let value = self.graph.value(x);
        let groups = (value.slots * value.width).checked_div(cols).filter(|g| g * cols == value.slots * value.width);
        let groups = groups.ok_or_else(|| unsupported(&name, "its weight does not divide its width"))? as u32;
        let kind = match bias {
            None => NormKind::Rms,
            Some(bias) => NormKind::Layer { bias: bias.is_some() },
        };
        let spec = self.tuned(NormSpec { cols, kind, residual: residual.is_some(), tuning: None });
        let job = self.job(&name, spec)?;
        let from = self.value(x)?;
        let (weight, bias) = (self.vector(weight), bias.flatten().map_or(Bind::Null, |b| self.vector(b)));
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

    /// An operation that no rule fused.
    pub(super) fn single(&mut self, op: &Op) -> Result<(), PlanError> {
        match *op {
            Op::Route(Route { scores, top, renormalise, scale, experts, shares, .. }) => {
                let name = self.graph.value(experts).name.clone();
                let (width, tuning) = (self.graph.value(scores).width, None);
                let spec = self.tuned(RouteSpec { experts: width, top, renormalise, tuning });
                let job = self.job(&name, spec)?;
                let args = RouteArgs {
                    scores: self.value(scores)?,
                    experts: self.program.make(experts),
                    shares: self.program.make(shares),
                    scale: Bind::F32(scale),
                };
                self.run(name, &job, [TOKENS, ONE, ONE], args);
                Ok(())
            }
            Op::Glu(Glu { gate, up, act: Activation::Silu, out }) => self.combine(Combine::Silu, gate, up, out),
            Op::Glu(Glu { gate, up, act: Activation::GeluTanh, out }) => self.combine(Combine::Gelu, gate, up, out),
            Op::Add(Add { a, b, out }) => self.combine(Combine::Add, a, b, out),
            Op::Norm(Norm { x, kind: Kind::Layer, weight: Some(weight), bias, eps, out, .. }) => {
                self.norm(x, weight, Some(bias), eps, None, out)
            }
            Op::Norm(Norm { x, kind: Kind::Rms, weight: Some(weight), bias: None, eps, out, .. }) => {
                self.norm(x, weight, None, eps, None, out)
            }
            Op::ExpertSum(ExpertSum { x, shares: Some(shares), out }) => {
                let (from, top) = (self.value(x)?, self.graph.value(x).slots);
                self.expert_sum(from, top, shares, None, out)
            }
            Op::Embed(Embed { table, scale, out, .. }) => self.embed(table, scale, out),
            _ => {
                let made = op.writes().first().map(|v| self.graph.value(*v).name.clone());
                let made = made.unwrap_or_else(|| "a cache write".to_owned());
                Err(unsupported(&made, format!("kernels have '{}' as part of a fused step only", op.name())))
            }
        }
    }

    fn combine(&mut self, op: Combine, a: ValueId, b: ValueId, out: ValueId) -> Result<(), PlanError> {
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
