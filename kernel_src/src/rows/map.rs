//! Rows made element by element: `gpu/map.h`.

use crate::attention::heads::angles;
use crate::cases::{Case, CaseArg, Random, SINGLE, Storage, floats, optional, output, words};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// A function of an element. What has numbers takes them from the arguments `p0`, `p1` ….
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `x`.
    Identity,
    /// `x · sigmoid(x)`.
    Silu,
    /// The tanh form.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    ReluSquared,
    /// `1 / (1 + e^−x)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x` no further from zero than `p0`.
    Clamp,
    /// `p0 · tanh(x / p0)`.
    SoftCap,
    /// `g · sigmoid(1.702 g)`, `g` at most `p0`; as a gate: times `u + 1`, `u` no further from
    /// zero.
    ClampedSilu,
    /// `p0 · x² + p2 · x` above zero, else `(e^min(x, p3) − 1 − x) · p1 + p2 · x`.
    Xielu,
    /// `max(x − p0, 0)`.
    Above,
    /// `√x`.
    Sqrt,
}

gpu_enum!(ROW_ENUMS: Function {
    Identity, Silu, GeluTanh, Relu, ReluSquared, Sigmoid, Tanh, Softplus, Clamp, SoftCap,
    ClampedSilu, Xielu, Above, Sqrt,
});

/// What is made of a row `x`, for its element `c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Map {
    /// A function of each element.
    Act {
        /// Which.
        function: Function,
    },
    /// `p0 · a[c / each mod weights] · x + b[c / each mod biases]`.
    Affine {
        /// Factors; 0: none.
        weights: usize,
        /// Offsets; 0: none.
        biases: usize,
        /// Neighbours that share them.
        each: usize,
    },
    /// `f(a[c / each]) · x`.
    Gate {
        /// Of the gate.
        function: Function,
        /// Neighbours that share a gate.
        each: usize,
    },
    /// `x + b[which[c / each]][c mod each]`: a row of `b` for each run of the row.
    AddChosen {
        /// Elements of a run.
        each: usize,
    },
    /// `a[c / each] · x[c mod each]`: one run for several factors.
    Spread {
        /// Elements of the run.
        each: usize,
    },
    /// The sum of a row's runs.
    Sum {
        /// Runs.
        slots: usize,
    },
    /// Of each run of a row some elements.
    Slice {
        /// Elements of a run.
        run: usize,
        /// The first that is taken.
        at: usize,
        /// How many.
        take: usize,
    },
    /// Behind each run of a row some elements of `a`, or zeros.
    Concat {
        /// Elements of a run.
        first: usize,
        /// Elements behind it.
        behind: usize,
        /// Runs of `a`, taken in turn; 0: zeros.
        runs: usize,
    },
    /// The sum of `x · a` over each run.
    Dot {
        /// Elements of a run.
        each: usize,
    },
    /// `x`, which lies as halves in tiles.
    FromTiles,
    /// Heads turned by position, without a norm.
    Rotate {
        /// Elements of a head.
        head: usize,
        /// Elements that rotate, from its start; even.
        dims: usize,
        /// Elements `i` and `i + dims/2` rotate together; else `2i` and `2i + 1`.
        halves: bool,
        /// A row is a sequence's, at its own position; else rows are a sequence's tokens.
        each_own: bool,
    },
    /// `x · (1 + p0 · ln(⌊(position + offset) / period⌋ + 1))`.
    Temper {
        /// Positions for each step.
        period: usize,
        /// Added to the position.
        offset: usize,
        /// As of a rotation.
        each_own: bool,
    },
}

gpu_enum!(ROW_ENUMS: Map {
    Act, Affine, Gate, AddChosen, Spread, Sum, Slice, Concat, Dot, FromTiles, Rotate, Temper,
});

/// `y = residual + map(x)`, rows of `cols`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MapSpec {
    /// What is made.
    pub map: Map,
    /// Elements of a row of `y`.
    pub cols: usize,
    /// A residual is added.
    pub residual: bool,
}

arguments! {
    /// The arguments; null or 0 where the map has no use for one.
    MapArgs {
        /// f32 rows, or tiles of halves.
        x: Pointer,
        /// f32: factors, gates, or pairs of cosine and sine.
        a: Pointer,
        /// f32: offsets.
        b: Pointer,
        /// u32: chosen rows of `b`, or the slot of each row.
        which: Pointer,
        /// u32: positions.
        position: Pointer,
        /// `rows × cols` f32, or null.
        residual: Pointer,
        /// `rows × cols` f32; may be `residual`, or an `x` of which only element `c` goes into
        /// element `c`.
        y: Pointer,
        /// A number of the function.
        p0: F32,
        /// Likewise.
        p1: F32,
        /// Likewise.
        p2: F32,
        /// Likewise.
        p3: F32,
    }
}

const NAME: &str = "map";
const BLOCK: u32 = 256;

impl MapSpec {
    /// Blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        if let Map::Dot { .. } = self.map {
            self.cols as u32
        } else {
            (self.cols as u32).div_ceil(BLOCK)
        }
    }

    /// Elements of a row of `x`.
    fn from(&self) -> usize {
        match self.map {
            Map::Spread { each } => each,
            Map::Sum { slots } => self.cols * slots,
            Map::Dot { each } => self.cols * each,
            Map::Slice { run, take, .. } => self.cols / take * run,
            Map::Concat { first, behind, .. } => self.cols / (first + behind) * first,
            _ => self.cols,
        }
    }

    /// Elements of `a` that belong to a row.
    fn gates(&self) -> usize {
        match self.map {
            Map::Gate { each, .. } | Map::Spread { each } => self.cols / each,
            Map::Concat { behind, runs, .. } => behind * runs,
            Map::Dot { each } => self.cols * each,
            _ => 0,
        }
    }
}

impl Family for MapSpec {
    const NAME: &'static str = NAME;
    type Args<A> = MapArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}{}", self.map, self.cols, if self.residual { ", residual" } else { "" })
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let whole = match self.map {
            Map::Act { .. } | Map::FromTiles => 1,
            Map::Affine { each, .. } | Map::Gate { each, .. } => each,
            Map::AddChosen { each } | Map::Spread { each } => each,
            Map::Sum { slots: n } | Map::Dot { each: n } => usize::from(n > 0),
            Map::Slice { run, at, take } if at + take <= run => take,
            Map::Concat { first, behind, .. } if first > 0 => first + behind,
            Map::Rotate { head, dims, .. }
                if dims.is_multiple_of(2) && dims > 0 && dims <= head =>
            {
                head
            }
            Map::Temper { period, .. } => usize::from(period > 0),
            Map::Slice { .. } | Map::Rotate { .. } | Map::Concat { .. } => 0,
        };
        let fine =
            self.cols > 0 && self.cols <= 1 << 30 && whole > 0 && self.cols.is_multiple_of(whole);
        require(fine, NAME, || format!("{self:?}"))
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .choice("OP", &self.map)
            .number("COLS", self.cols)
            .flag("RESIDUAL", self.residual);
        let shape = match self.map {
            Map::FromTiles => shape,
            Map::Act { function } => shape.choice("FUNCTION", &function),
            Map::Affine { weights, biases, each } => {
                shape.number("WEIGHTS", weights).number("BIASES", biases).number("EACH", each)
            }
            Map::Gate { function, each } => {
                shape.choice("FUNCTION", &function).number("EACH", each)
            }
            Map::AddChosen { each } | Map::Spread { each } | Map::Dot { each } => {
                shape.number("EACH", each)
            }
            Map::Sum { slots } => shape.number("SLOTS", slots),
            Map::Slice { run, at, take } => {
                shape.number("RUN", run).number("AT", at).number("TAKE", take)
            }
            Map::Concat { first, behind, runs } => {
                shape.number("FIRST", first).number("BEHIND", behind).number("RUNS", runs)
            }
            Map::Rotate { head, dims, halves, each_own } => {
                let shape = shape.number("HEAD", head).number("DIMS", dims);
                shape.flag("HALVES", halves).flag("EACH_OWN", each_own)
            }
            Map::Temper { period, offset, each_own } => {
                shape.number("PERIOD", period).number("OFFSET", offset).flag("EACH_OWN", each_own)
            }
        };
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let residual = if self.residual { self.cols } else { 0 };
        Work::moves(4 * size.tokens * (self.from() + self.gates() + residual + self.cols))
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        oracle::case(self, self.launch(target, units, size)?, target, size.tokens, random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use Function::*;
        let mut add = |map, cols, residual, tokens| -> Result<(), SpecError> {
            let spec = MapSpec { map, cols, residual };
            into.push(spec.case(target, 2, Size { tokens, past: 0 }, random)?);
            Ok(())
        };
        let all = [
            Identity,
            Silu,
            GeluTanh,
            Relu,
            ReluSquared,
            Sigmoid,
            Tanh,
            Softplus,
            Clamp,
            SoftCap,
            ClampedSilu,
            Xielu,
            Above,
        ];
        for (i, function) in all.into_iter().enumerate() {
            add(Map::Act { function }, 301 + i, i % 3 == 0, 2)?;
            add(Map::Gate { function, each: [1, 7, 43][i % 3] }, 301, i % 2 == 0, 3)?;
        }
        add(Map::Act { function: Sqrt }, 77, false, 2)?;
        add(Map::Affine { weights: 0, biases: 0, each: 1 }, 257, true, 3)?;
        add(Map::Affine { weights: 1, biases: 0, each: 1 }, 5, false, 1)?;
        add(Map::Affine { weights: 0, biases: 259, each: 1 }, 259, false, 2)?;
        add(Map::Affine { weights: 13, biases: 5, each: 1 }, 520, true, 2)?;
        add(Map::Affine { weights: 6, biases: 0, each: 11 }, 66, false, 2)?;
        add(Map::AddChosen { each: 67 }, 4 * 67, false, 3)?;
        add(Map::Spread { each: 65 }, 3 * 65, true, 2)?;
        add(Map::Sum { slots: 5 }, 131, true, 3)?;
        add(Map::Slice { run: 26, at: 13, take: 13 }, 3 * 13, false, 2)?;
        add(Map::Slice { run: 9, at: 0, take: 4 }, 4 * 70, true, 2)?;
        add(Map::Concat { first: 17, behind: 5, runs: 3 }, 3 * 22, false, 2)?;
        add(Map::Concat { first: 70, behind: 9, runs: 1 }, 4 * 79, true, 2)?;
        add(Map::Concat { first: 48, behind: 16, runs: 0 }, 5 * 64, false, 3)?;
        add(Map::Dot { each: 70 }, 5, true, 2)?;
        add(Map::Dot { each: 517 }, 1, false, 3)?;
        add(Map::FromTiles, 70, true, 67)?;
        for each_own in [false, true] {
            add(Map::Rotate { head: 20, dims: 12, halves: true, each_own }, 3 * 20, false, 3)?;
            add(Map::Rotate { head: 8, dims: 8, halves: false, each_own }, 40 * 8, true, 3)?;
            add(
                Map::Temper { period: 3, offset: usize::from(each_own), each_own },
                77,
                each_own,
                5,
            )?;
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let gate = Map::Gate { function: Function::ClampedSilu, each: 1 };
        let each_own = true;
        for (name, map, residual) in [
            ("Act Xielu", Map::Act { function: Function::Xielu }, false),
            ("Affine", Map::Affine { weights: 4096, biases: 4096, each: 1 }, true),
            ("Gate ClampedSilu", gate, false),
            ("AddChosen", Map::AddChosen { each: 1024 }, false),
            ("Rotate", Map::Rotate { head: 128, dims: 64, halves: true, each_own }, false),
            ("FromTiles", Map::FromTiles, false),
            ("Temper", Map::Temper { period: 8192, offset: 1, each_own }, false),
        ] {
            list.add(format!("map {name} 4096"), MapSpec { map, cols: 4096, residual }, ONE)?;
        }
        Ok(())
    }
}

/// What must come out, in f64.
mod oracle {
    use super::*;
    use crate::cases::input;
    use crate::cases::oracle::{gelu, silu};
    use crate::cases::tiled::tiled;
    use crate::vocabulary::launch::Launch;

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn of(function: Function, x: f64, p: [f64; 4]) -> f64 {
        match function {
            Function::Identity => x,
            Function::Silu => silu(x),
            Function::GeluTanh => gelu(x),
            Function::Relu => x.max(0.0),
            Function::ReluSquared => x.max(0.0).powi(2),
            Function::Sigmoid => sigmoid(x),
            Function::Tanh => x.tanh(),
            Function::Softplus => {
                if x > 30.0 {
                    x
                } else {
                    x.exp().ln_1p()
                }
            }
            Function::Clamp => x.clamp(-p[0], p[0]),
            Function::Above => (x - p[0]).max(0.0),
            Function::Sqrt => x.sqrt(),
            Function::SoftCap => p[0] * (x / p[0]).tanh(),
            Function::ClampedSilu => {
                let g = x.min(p[0]);
                g * sigmoid(1.702 * g)
            }
            Function::Xielu if x > 0.0 => p[0] * x * x + p[2] * x,
            Function::Xielu => (x.min(p[3]).exp_m1() - x) * p[1] + p[2] * x,
        }
    }

    /// Numbers of the function that show.
    fn numbers(map: Map) -> [f32; 4] {
        match map {
            Map::Act { function: Function::Xielu }
            | Map::Gate { function: Function::Xielu, .. } => [0.9, 0.6, 0.5, -1e-6],
            Map::Affine { .. } | Map::Temper { .. } => [0.37, 0.0, 0.0, 0.0],
            _ => [1.75, 0.0, 0.0, 0.0],
        }
    }

    pub(super) fn case(
        spec: &MapSpec,
        launch: Launch,
        target: &Target,
        rows: usize,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let (cols, map, p) = (spec.cols, spec.map, numbers(spec.map));
        // From where the functions vanish to where they grow, and what must not turn into NaN.
        let mut x = random.normals(rows * spec.from(), 2.0);
        for (v, edge) in x.iter_mut().zip([0.0, 60.0, -60.0, 1e-6, -1e-4]) {
            *v = edge;
        }
        if map == (Map::Act { function: Function::Sqrt }) {
            x.iter_mut().for_each(|v| *v = v.abs());
        }
        let mut tiles = None;
        if map == Map::FromTiles {
            let made = tiled(rows, cols, random);
            x = made.values.iter().cycle().take(rows).flatten().map(|&v| v as f32).collect();
            tiles = Some(input("x", made.content()));
        }
        let experts = 9;
        let (a, b) = match map {
            Map::Affine { weights, biases, .. } => {
                (random.normals(weights, 1.0), random.normals(biases, 1.0))
            }
            Map::Gate { .. } | Map::Spread { .. } | Map::Concat { .. } | Map::Dot { .. } => {
                (random.normals(rows * spec.gates(), 2.0), vec![])
            }
            Map::AddChosen { each } => (vec![], random.normals(experts * each, 1.0)),
            Map::Rotate { dims, .. } => {
                let frequencies: Vec<f64> = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
                // Rows stand from the fourth position on, or anywhere in the first sixteen.
                (angles(&frequencies, 1.1, 16.max(rows + 4)), vec![])
            }
            _ => (vec![], vec![]),
        };
        let own =
            matches!(map, Map::Rotate { each_own: true, .. } | Map::Temper { each_own: true, .. });
        let which: Vec<u32> = match map {
            Map::AddChosen { each } => {
                (0..rows * cols / each).map(|_| random.below(experts) as u32).collect()
            }
            _ if own => (0..rows as u32).map(|r| (r + 1) % rows as u32).collect(),
            _ => vec![],
        };
        let position: Vec<u32> = match map {
            _ if own => (0..rows as u32).map(|s| (3 * s + 2) % 16).collect(),
            Map::Rotate { .. } | Map::Temper { .. } => vec![4],
            _ => vec![],
        };
        let residual = if spec.residual { random.normals(rows * cols, 1.0) } else { vec![] };
        let f = |v: &[f32], i: usize| f64::from(v[i]);
        let q = p.map(f64::from);
        let mut want = vec![];
        for row in 0..rows {
            let at = |c: usize| row * spec.from() + c;
            let here = if own {
                position[which[row] as usize]
            } else {
                position.first().map_or(0, |p| p + row as u32)
            };
            for c in 0..cols {
                let y = match map {
                    Map::Act { function } => of(function, f(&x, at(c)), q),
                    Map::FromTiles => f(&x, at(c)),
                    Map::Affine { each, .. } => {
                        let own = |v: &[f32], none| {
                            if v.is_empty() { none } else { f(v, c / each % v.len()) }
                        };
                        q[0] * own(&a, 1.0) * f(&x, at(c)) + own(&b, 0.0)
                    }
                    Map::Gate { function, each } => {
                        let up = f(&x, at(c));
                        let up = if function == Function::ClampedSilu {
                            up.clamp(-q[0], q[0]) + 1.0
                        } else {
                            up
                        };
                        of(function, f(&a, row * (cols / each) + c / each), q) * up
                    }
                    Map::AddChosen { each } => {
                        let chosen = which[row * (cols / each) + c / each] as usize;
                        f(&x, at(c)) + f(&b, chosen * each + c % each)
                    }
                    Map::Spread { each } => {
                        f(&a, row * (cols / each) + c / each) * f(&x, at(c % each))
                    }
                    Map::Sum { slots } => (0..slots).map(|s| f(&x, at(s * cols + c))).sum(),
                    Map::Dot { each } => {
                        let i = row * spec.from() + c * each;
                        (i..i + each).map(|i| f(&x, i) * f(&a, i)).sum()
                    }
                    Map::Concat { first, behind, runs } => {
                        let (g, e) = (c / (first + behind), c % (first + behind));
                        match e.checked_sub(first) {
                            None => f(&x, at(g * first + e)),
                            Some(_) if runs == 0 => 0.0,
                            Some(e) => f(&a, (row * runs + g % runs) * behind + e),
                        }
                    }
                    Map::Slice { run, at: first, take } => {
                        f(&x, at(c / take * run + first + c % take))
                    }
                    Map::Rotate { head, dims, halves, .. } => {
                        let (base, e, pairs) = (c - c % head, c % head, dims / 2);
                        let i = if halves { e % pairs } else { e / 2 };
                        let (one, two) = if halves { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
                        let turned = |one: f64, two: f64| {
                            let t = 2 * (here as usize * pairs + i);
                            let (cos, sin) = (f(&a, t), f(&a, t + 1));
                            if e == i && halves || !halves && e % 2 == 0 {
                                one * cos - two * sin
                            } else {
                                one * sin + two * cos
                            }
                        };
                        if e < dims {
                            turned(f(&x, at(base + one)), f(&x, at(base + two)))
                        } else {
                            f(&x, at(c))
                        }
                    }
                    Map::Temper { period, offset, .. } => {
                        let steps = (here as usize + offset) / period + 1;
                        f(&x, at(c)) * (1.0 + q[0] * (steps as f64).ln())
                    }
                };
                want.push(y + residual.get(row * cols + c).map_or(0.0, |&r| f64::from(r)));
            }
        }
        let some = |name, v: &[u32]| if v.is_empty() { CaseArg::Null } else { words(name, v) };
        let args = MapArgs {
            x: tiles.unwrap_or_else(|| floats("x", &x)),
            a: optional("a", &a),
            b: optional("b", &b),
            which: some("which", &which),
            position: some("position", &position),
            residual: optional("residual", &residual),
            y: output("y", Storage::F32, want, SINGLE),
            p0: CaseArg::F32(p[0]),
            p1: CaseArg::F32(p[1]),
            p2: CaseArg::F32(p[2]),
            p3: CaseArg::F32(p[3]),
        };
        let name = format!(
            "map {map:?} · {rows} × {cols}{}",
            if spec.residual { ", residual" } else { "" }
        );
        Case::of(name, spec, target, launch, args)
    }
}
