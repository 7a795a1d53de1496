//! The steps that are the same for one token and for many: rows of the embedding, norms, routing, sums.

use super::lower::{Lower, unsupported};
use super::{Bind, Control, Dim, ONE, PlanError, TOKENS};
use crate::graph::{Activation, Op, ValueId, WeightId};
use kjit_kernels::elementwise::{Combine, CombineSpec};
use kjit_kernels::embed::EmbedSpec;
use kjit_kernels::experts::{ExpertSumSpec, RouteSpec};
use kjit_kernels::layout::Layout;
use kjit_kernels::norm::{NormKind, NormSpec};

impl Lower<'_> {
    pub(super) fn embed(&mut self, table: WeightId, scale: f32, out: ValueId) -> Result<(), PlanError> {
        let (name, w) = (self.graph.value(out).name.clone(), self.graph.weight(table));
        let layout =
            Layout::new(w.format, w.cols).map_err(|source| PlanError::Layout { name: w.name.clone(), source })?;
        let spec = EmbedSpec { layout, batch: self.batch };
        let job = self.job(&name, spec.clone())?;
        let blocks = self.spec(&name, spec.geometry(&self.target, 1))?.grid[0];
        let (table, to) = (self.matrix(table), self.program.make(out));
        let (tokens, position) = (Bind::Control(Control::Tokens), Bind::Control(Control::Position));
        let args = vec![table, tokens, self.slots(), position, to, Bind::F32(scale), Bind::U32(self.context + 1)];
        self.run(name, &job, [Dim::Is(blocks), TOKENS, ONE], args);
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
        let spec = NormSpec { cols, kind, residual: residual.is_some() };
        let job = self.job(&name, spec.clone())?;
        let from = self.value(x)?;
        let (weight, bias) = (self.vector(weight), bias.flatten().map_or(Bind::Null, |b| self.vector(b)));
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let to = match residual {
            Some(r) => self.program.make_over(out, r, &[x]),
            None => self.program.make(out),
        };
        let args = vec![from, weight, bias, added, to, Bind::F32(eps)];
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
        let blocks = self.spec(&name, spec.geometry(&self.target, 1))?.grid[0];
        let shares = self.value(shares)?;
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let to = match residual {
            Some(r) => self.program.make_over(out, r, &[]),
            None => self.program.make(out),
        };
        self.run(name, &job, [Dim::Is(blocks), TOKENS, ONE], vec![x, shares, added, to]);
        Ok(())
    }

    /// An operation that no rule fused.
    pub(super) fn single(&mut self, op: &Op) -> Result<(), PlanError> {
        match *op {
            Op::Route { scores, top, renormalise, scale, experts, shares } => {
                let name = self.graph.value(experts).name.clone();
                let spec = RouteSpec { experts: self.graph.value(scores).width, top, renormalise };
                let job = self.job(&name, spec.clone())?;
                let scores = self.value(scores)?;
                let args = vec![scores, self.program.make(experts), self.program.make(shares), Bind::F32(scale)];
                self.run(name, &job, [TOKENS, ONE, ONE], args);
                Ok(())
            }
            Op::Glu { gate, up, act: Activation::Silu, out } => self.combine(Combine::Silu, gate, up, out),
            Op::Glu { gate, up, act: Activation::GeluTanh, out } => self.combine(Combine::Gelu, gate, up, out),
            Op::Add { a, b, out } => self.combine(Combine::Add, a, b, out),
            Op::LayerNorm { x, weight, bias, eps, out } => self.norm(x, weight, Some(bias), eps, None, out),
            Op::RmsNorm { x, weight, eps, out } => self.norm(x, weight, None, eps, None, out),
            Op::ExpertSum { x, shares, out } => {
                let (from, top) = (self.value(x)?, self.graph.value(x).slots);
                self.expert_sum(from, top, shares, None, out)
            }
            Op::Embed { table, scale, out } => self.embed(table, scale, out),
            Op::MatMul { .. }
            | Op::ExpertMatMul { .. }
            | Op::Rope { .. }
            | Op::KvWrite { .. }
            | Op::Attention { .. } => {
                let made =
                    op.writes().first().map_or("a cache write".to_string(), |v| self.graph.value(*v).name.clone());
                Err(unsupported(&made, "kernels have it as part of a fused step only"))
            }
        }
    }

    fn combine(&mut self, op: Combine, a: ValueId, b: ValueId, out: ValueId) -> Result<(), PlanError> {
        let value = self.graph.value(out);
        let (name, each) = (value.name.clone(), (value.slots * value.width) as u64);
        let spec = CombineSpec { op };
        let job = self.job(&name, spec.clone())?;
        let most = CombineSpec::blocks(each * u64::from(self.program.tokens()), u32::MAX);
        let blocks = Dim::Fill { per_unit: 8, most };
        let args =
            vec![self.value(a)?, self.value(b)?, self.program.make(out), Bind::Elements(each), Bind::Dim(blocks)];
        self.run(name, &job, [blocks, ONE, ONE], args);
        Ok(())
    }
}
