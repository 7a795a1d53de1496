//! Steps that make rows element by element: `kjit_kernels::map`.

use super::decode::rope_form;
use super::lower::{Lower, unsupported};
use super::{Bind, Control, Dim, ONE, PlanError, TOKENS};
use crate::graph::op::{Act, Affine, ExpertSum, Glu, Slice, Spread, Temper};
use crate::graph::{Activation, Op, RopeId, ValueId, WeightId};
use kjit_kernels::map::{Function, Map, MapArgs, MapSpec};

/// What a launch has for a map: rows, and what goes with them.
struct Operands {
    map: Map,
    x: Bind,
    a: Bind,
    b: Bind,
    which: Bind,
    position: Bind,
    numbers: [f32; 4],
}

impl Operands {
    fn of(map: Map, x: Bind) -> Operands {
        let null = Bind::Null;
        Operands { map, x, a: null, b: null, which: null, position: null, numbers: [0.0; 4] }
    }
}

/// A function as kernels have it, with its numbers; `None`: no kernel has it.
pub(in crate::gpu) fn function_of(act: Activation) -> Option<(Function, [f32; 4])> {
    let plain = |f| Some((f, [0.0; 4]));
    let one = |f, n| Some((f, [n, 0.0, 0.0, 0.0]));
    match act {
        Activation::Silu => plain(Function::Silu),
        Activation::GeluTanh => plain(Function::GeluTanh),
        Activation::Identity => plain(Function::Identity),
        Activation::Relu => plain(Function::Relu),
        Activation::ReluSquared => plain(Function::ReluSquared),
        Activation::Sigmoid => plain(Function::Sigmoid),
        Activation::Tanh => plain(Function::Tanh),
        Activation::Softplus => plain(Function::Softplus),
        Activation::Clamp(limit) => one(Function::Clamp, limit.abs()),
        Activation::SoftCap(cap) => one(Function::SoftCap, cap),
        Activation::ClampedSilu(limit) => one(Function::ClampedSilu, limit),
        Activation::Xielu { positive, negative, beta, eps } => Some((Function::Xielu, [positive, negative, beta, eps])),
        Activation::Exp | Activation::Sqrt | Activation::Above(_) => None,
    }
}

impl Lower<'_> {
    /// An operation that makes rows element by element, with a residual behind it.
    pub(super) fn map(&mut self, op: &Op, residual: Option<ValueId>, out: ValueId) -> Result<(), PlanError> {
        let name = self.graph.value(out).name.clone();
        let function = |act: Activation| {
            function_of(act).ok_or_else(|| unsupported(&name, format!("no kernel has its activation {act:?}")))
        };
        let elems = |v: ValueId| self.graph.value(v).slots * self.graph.value(v).width;
        let lens = |w: Option<WeightId>| w.map_or(0, |w| self.graph.weight(w).elems());
        let each_own = self.batch;
        let mut o = match *op {
            Op::Act(Act { x, act, .. }) => {
                let (function, numbers) = function(act)?;
                Operands { numbers, ..Operands::of(Map::Act { function }, self.value(x)?) }
            }
            Op::Glu(Glu { gate, up, act, .. }) => {
                let (function, numbers) = function(act)?;
                let each = elems(up) / elems(gate).max(1);
                let a = self.value(gate)?;
                Operands { a, numbers, ..Operands::of(Map::Gate { function, each }, self.value(up)?) }
            }
            Op::Affine(Affine { x, scale, weight, bias, each, .. }) => {
                let map = Map::Affine { weights: lens(weight), biases: lens(bias), each };
                let [a, b] = [weight, bias].map(|w| w.map_or(Bind::Null, |w| self.vector(w)));
                Operands { a, b, numbers: [scale, 0.0, 0.0, 0.0], ..Operands::of(map, self.value(x)?) }
            }
            Op::Spread(Spread { x, shares, .. }) => {
                let map = Map::Spread { each: elems(x) };
                Operands { a: self.value(shares)?, ..Operands::of(map, self.value(x)?) }
            }
            Op::ExpertSum(ExpertSum { x, shares: None, .. }) => {
                Operands::of(Map::Sum { slots: self.graph.value(x).slots }, self.value(x)?)
            }
            Op::Slice(Slice { x, groups, at, take, .. }) => {
                Operands::of(Map::Slice { run: elems(x) / groups.max(1), at, take }, self.value(x)?)
            }
            Op::Temper(Temper { x, scale, period, offset, .. }) => {
                let map = Map::Temper { period, offset, each_own };
                Operands { numbers: [scale, 0.0, 0.0, 0.0], ..self.positioned(map, x)? }
            }
            _ => return Err(unsupported(&name, format!("no kernel makes '{}' element by element", op.name()))),
        };
        if let Map::Spread { .. } | Map::Sum { .. } | Map::Slice { .. } = o.map {
            o.numbers = [0.0; 4];
        }
        self.run_map(name, &o, residual, &op.reads(), out)
    }

    /// Heads turned by position, where attention does not do it.
    pub(super) fn rotate(&mut self, x: ValueId, rope: RopeId, heads: usize, out: ValueId) -> Result<(), PlanError> {
        let (name, head) = (self.graph.value(out).name.clone(), self.graph.value(x).width / heads.max(1));
        let form = rope_form(self.graph.rope(rope));
        let map = Map::Rotate { head, dims: form.dims, halves: form.halves, each_own: self.batch };
        let o = Operands { a: Bind::Rope(rope), ..self.positioned(map, x)? };
        self.run_map(name, &o, None, &[x], out)
    }

    /// A value in rows, from tiles of halves.
    pub(super) fn rows_of_tiles(&mut self, tiles: Bind, out: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.rows", self.graph.value(out).name);
        self.run_map(name, &Operands::of(Map::FromTiles, tiles), None, &[], out)
    }

    /// Offsets added to a value where it is.
    pub(super) fn add_bias(&mut self, bias: WeightId, value: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.bias", self.graph.value(value).name);
        let map = Map::Affine { weights: 0, biases: self.graph.weight(bias).elems(), each: 1 };
        let x = self.value(value)?;
        let o = Operands { b: self.vector(bias), numbers: [1.0, 0.0, 0.0, 0.0], ..Operands::of(map, x) };
        self.launch_map(name, &o, Bind::Null, x, value)
    }

    /// Each expert's row of offsets added to what its matrix made, in place.
    pub(super) fn add_chosen(&mut self, bias: WeightId, experts: ValueId, value: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.bias", self.graph.value(value).name);
        let map = Map::AddChosen { each: self.graph.value(value).width };
        let x = self.value(value)?;
        let o = Operands { b: self.vector(bias), which: self.value(experts)?, ..Operands::of(map, x) };
        self.launch_map(name, &o, Bind::Null, x, value)
    }

    /// A map that knows where its rows stand.
    fn positioned(&self, map: Map, x: ValueId) -> Result<Operands, PlanError> {
        let position = Bind::Control(Control::Position);
        Ok(Operands { which: self.slots(), position, ..Operands::of(map, self.value(x)?) })
    }

    fn run_map(
        &mut self,
        name: String,
        o: &Operands,
        residual: Option<ValueId>,
        reads: &[ValueId],
        out: ValueId,
    ) -> Result<(), PlanError> {
        let added = residual.map_or(Ok(Bind::Null), |r| self.value(r))?;
        let y = match residual {
            Some(r) => self.program.make_over(out, r, reads),
            None => self.program.make(out),
        };
        self.launch_map(name, o, added, y, out)
    }

    fn launch_map(
        &mut self,
        name: String,
        o: &Operands,
        residual: Bind,
        y: Bind,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let value = self.graph.value(out);
        let spec = MapSpec { map: o.map, cols: value.slots * value.width, residual: residual != Bind::Null };
        let job = self.job(&name, spec.clone())?;
        let [p0, p1, p2, p3] = o.numbers.map(Bind::F32);
        let Operands { x, a, b, which, position, .. } = *o;
        let args = MapArgs { x, a, b, which, position, residual, y, p0, p1, p2, p3 };
        self.run(name, &job, [Dim::Is(spec.blocks()), TOKENS, ONE], args);
        Ok(())
    }
}
