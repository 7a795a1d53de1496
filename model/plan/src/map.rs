//! Lowers element-wise steps to `kjit_kernels::map`.

use super::decode::rope_form;
use super::lower::Lower;
use super::{Bind, Control, Dim, ONE, PlanError, TOKENS};
use crate::error::unsupported;
use kjit_graph::op::{
    Act, AdapterScale, Affine, AttentionTemperature, Concat, Dot, ExpertSum, Glu, Slice, Spread,
};
use kjit_graph::{Activation, Op, RopeId, ValueId, WeightId};
use kjit_kernels::map::{Function, Map, MapArgs, MapSpec};

/// The operands of a map launch.
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

/// An activation as a kernel function with its parameters. `None` if no kernel supports it.
pub fn function_of(act: Activation) -> Option<(Function, [f32; 4])> {
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
        Activation::Xielu { positive, negative, beta, eps } => {
            Some((Function::Xielu, [positive, negative, beta, eps]))
        }
        Activation::Above(least) => one(Function::Above, least),
        Activation::Sqrt => plain(Function::Sqrt),
        Activation::Exp => None,
    }
}

impl Lower<'_> {
    /// An element-wise operation, with a residual after it.
    pub(super) fn map(
        &mut self,
        op: &Op,
        residual: Option<ValueId>,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let name = self.graph.value(out).name.clone();
        let function = |act: Activation| {
            function_of(act).ok_or_else(|| {
                unsupported(&name, format!("no kernel supports its activation {act:?}"))
            })
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
                Operands {
                    a,
                    numbers,
                    ..Operands::of(Map::Gate { function, each }, self.value(up)?)
                }
            }
            Op::Affine(Affine { x, scale, weight, bias, each, .. }) => {
                let map = Map::Affine { weights: lens(weight), biases: lens(bias), each };
                let [a, b] = [weight, bias].map(|w| w.map_or(Bind::Null, |w| self.vector(w)));
                Operands {
                    a,
                    b,
                    numbers: [scale, 0.0, 0.0, 0.0],
                    ..Operands::of(map, self.value(x)?)
                }
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
            Op::Concat(Concat { a, b, groups, behind, .. }) => {
                let (first, runs) = (elems(a) / groups.max(1), elems(b) / behind.max(1));
                Operands {
                    a: self.value(b)?,
                    ..Operands::of(Map::Concat { first, behind, runs }, self.value(a)?)
                }
            }
            Op::Dot(Dot { a, b, .. }) => {
                let map = Map::Dot { each: elems(a) / elems(out).max(1) };
                Operands { a: self.value(b)?, ..Operands::of(map, self.value(a)?) }
            }
            Op::AdapterScale(AdapterScale { x, each, .. }) => {
                let (a, which) = (Bind::Control(Control::Adapters), self.slots());
                let map = Map::Adapters { each, each_own: which != Bind::Null };
                Operands { a, which, ..Operands::of(map, self.value(x)?) }
            }
            Op::AttentionTemperature(AttentionTemperature { x, scale, period, offset, .. }) => {
                let map = Map::Temper { period, offset, each_own };
                Operands { numbers: [scale, 0.0, 0.0, 0.0], ..self.positioned(map, x)? }
            }
            _ => {
                return Err(unsupported(
                    &name,
                    format!("no kernel supports '{}' as an element-wise operation", op.name()),
                ));
            }
        };
        if let Map::Spread { .. } | Map::Sum { .. } | Map::Slice { .. } | Map::Concat { .. } = o.map
        {
            o.numbers = [0.0; 4];
        }
        self.run_map(name, &o, residual, &op.reads(), out)
    }

    /// Rotates heads by position, if the attention kernel does not.
    pub(super) fn rotate(
        &mut self,
        x: ValueId,
        rope: RopeId,
        heads: usize,
        out: ValueId,
    ) -> Result<(), PlanError> {
        let (name, head) =
            (self.graph.value(out).name.clone(), self.graph.value(x).width / heads.max(1));
        let form = rope_form(self.graph.rope(rope));
        let map = Map::Rotate { head, dims: form.dims, halves: form.halves, each_own: self.batch };
        let o = Operands { a: Bind::Rope(rope), ..self.positioned(map, x)? };
        self.run_map(name, &o, None, &[x], out)
    }

    /// Heads padded with zeros from `size` to `to` elements; unchanged if the sizes are equal.
    pub(super) fn filled(
        &mut self,
        name: &str,
        x: Bind,
        heads: usize,
        [size, to]: [usize; 2],
    ) -> Result<Bind, PlanError> {
        if size == to {
            return Ok(x);
        }
        let bytes = 4 * u64::from(self.program.tokens()) * (heads * to) as u64;
        let y = self.program.scratch(name.to_owned(), bytes);
        let map = Map::Concat { first: size, behind: to - size, runs: 0 };
        self.launch_rows(name.to_owned(), &Operands::of(map, x), Bind::Null, y, heads * to)?;
        Ok(y)
    }

    /// Appends to each of `runs` runs of a row a run of another row. The sizes are `first` and
    /// `behind`.
    pub(super) fn join(
        &mut self,
        name: &str,
        [x, a]: [Bind; 2],
        [first, behind]: [usize; 2],
        runs: usize,
        y: Bind,
    ) -> Result<(), PlanError> {
        let o = Operands { a, ..Operands::of(Map::Concat { first, behind, runs }, x) };
        self.launch_rows(name.to_owned(), &o, Bind::Null, y, runs * (first + behind))
    }

    /// The first `take` elements of each head of `run` elements: removes the padding.
    pub(super) fn cut(
        &mut self,
        x: Bind,
        [run, take]: [usize; 2],
        out: ValueId,
    ) -> Result<(), PlanError> {
        let name = format!("{}.cut", self.graph.value(out).name);
        self.run_map(name, &Operands::of(Map::Slice { run, at: 0, take }, x), None, &[], out)
    }

    /// Rows of `cols` elements from f16 tiles, for this step only.
    pub(super) fn scratch_of_tiles(
        &mut self,
        name: &str,
        tiles: Bind,
        cols: usize,
    ) -> Result<Bind, PlanError> {
        let bytes = 4 * u64::from(self.program.tokens()) * cols as u64;
        let y = self.program.scratch(name.to_owned(), bytes);
        self.launch_rows(
            name.to_owned(),
            &Operands::of(Map::FromTiles, tiles),
            Bind::Null,
            y,
            cols,
        )?;
        Ok(y)
    }

    /// A value in rows, from f16 tiles.
    pub(super) fn rows_of_tiles(&mut self, tiles: Bind, out: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.rows", self.graph.value(out).name);
        self.run_map(name, &Operands::of(Map::FromTiles, tiles), None, &[], out)
    }

    /// A value that the CPU computed. A kernel reads it from host memory. A copy would wait behind
    /// copies of streamed layers, and each of these takes milliseconds.
    pub(super) fn take_rows(&mut self, out: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.from the CPU", self.graph.value(out).name);
        let o = Operands::of(Map::Act { function: Function::Identity }, Bind::HostParts);
        self.run_map(name, &o, None, &[], out)
    }

    /// Multiplies a value in place.
    pub(super) fn multiply(&mut self, by: f32, value: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.by", self.graph.value(value).name);
        let x = self.value(value)?;
        let map = Map::Affine { weights: 0, biases: 0, each: 1 };
        self.launch_map(
            name,
            &Operands { numbers: [by, 0.0, 0.0, 0.0], ..Operands::of(map, x) },
            Bind::Null,
            x,
            value,
        )
    }

    /// Adds a bias to a value in place.
    pub(super) fn add_bias(&mut self, bias: WeightId, value: ValueId) -> Result<(), PlanError> {
        let name = format!("{}.bias", self.graph.value(value).name);
        let map = Map::Affine { weights: 0, biases: self.graph.weight(bias).elems(), each: 1 };
        let x = self.value(value)?;
        let o = Operands {
            b: self.vector(bias),
            numbers: [1.0, 0.0, 0.0, 0.0],
            ..Operands::of(map, x)
        };
        self.launch_map(name, &o, Bind::Null, x, value)
    }

    /// Adds each chosen expert's bias to its rows in place.
    pub(super) fn add_chosen(
        &mut self,
        bias: WeightId,
        experts: ValueId,
        value: ValueId,
    ) -> Result<(), PlanError> {
        let name = format!("{}.bias", self.graph.value(value).name);
        let map = Map::AddChosen { each: self.graph.value(value).width };
        let x = self.value(value)?;
        let o =
            Operands { b: self.vector(bias), which: self.value(experts)?, ..Operands::of(map, x) };
        self.launch_map(name, &o, Bind::Null, x, value)
    }

    /// A map that uses the positions of its rows.
    fn positioned(&self, map: Map, x: ValueId) -> Result<Operands, PlanError> {
        let position = self.position();
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
        self.launch_rows(name, o, residual, y, value.slots * value.width)
    }

    fn launch_rows(
        &mut self,
        name: String,
        o: &Operands,
        residual: Bind,
        y: Bind,
        cols: usize,
    ) -> Result<(), PlanError> {
        let spec = MapSpec { map: o.map, cols, residual: residual != Bind::Null };
        let job = self.job(&name, spec.clone())?;
        let [p0, p1, p2, p3] = o.numbers.map(Bind::F32);
        let Operands { x, a, b, which, position, .. } = *o;
        let args = MapArgs { x, a, b, which, position, residual, y, p0, p1, p2, p3 };
        self.run(name, &job, [Dim::Is(spec.blocks()), TOKENS, ONE], args);
        Ok(())
    }
}
