//! Elementwise operations on rows: `gpu/map.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// A function of an element. Its parameters are the arguments `p0`, `p1` ….
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `x`.
    Identity,
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in the tanh form.
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
    /// `x` limited to the range from `−p0` to `p0`.
    Clamp,
    /// `p0 · tanh(x / p0)`.
    SoftCap,
    /// `g · sigmoid(1.702 g)` with `g` limited to at most `p0`. As a gate: times `u + 1`, with `u`
    /// limited to `−p0` to `p0`.
    ClampedSilu,
    /// `p0 · x² + p2 · x` if `x` is above zero; if not, `(e^min(x, p3) − 1 − x) · p1 + p2 · x`.
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

/// An operation on a row `x`, for its element `c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Map {
    /// A function of each element.
    Act {
        /// The function.
        function: Function,
    },
    /// `p0 · a[c / each mod weights] · x + b[c / each mod biases]`.
    Affine {
        /// Number of factors; 0: none.
        weights: usize,
        /// Number of offsets; 0: none.
        biases: usize,
        /// Number of neighbours that share a factor and an offset.
        each: usize,
    },
    /// `f(a[c / each]) · x`.
    Gate {
        /// The gate's function.
        function: Function,
        /// Number of neighbours that share a gate.
        each: usize,
    },
    /// `x + b[which[c / each]][c mod each]`: a row of `b` for each run of the row.
    AddChosen {
        /// Elements of a run.
        each: usize,
    },
    /// `a[c / each] · x[c mod each]`: one run with several factors.
    Spread {
        /// Elements of the run.
        each: usize,
    },
    /// The sum of a row's runs.
    Sum {
        /// Number of runs.
        slots: usize,
    },
    /// A slice of each run of a row.
    Slice {
        /// Elements of a run.
        run: usize,
        /// Index of the first element that is taken.
        at: usize,
        /// Number of elements that are taken.
        take: usize,
    },
    /// Each run of a row followed by some elements of `a`, or by zeros.
    Concat {
        /// Elements of a run.
        first: usize,
        /// Number of elements after it.
        behind: usize,
        /// Runs of `a`, used in order and repeated; 0: zeros.
        runs: usize,
    },
    /// The sum of `x · a` over each run.
    Dot {
        /// Elements of a run.
        each: usize,
    },
    /// `x`, which is f16 in tiles.
    FromTiles,
    /// Heads rotated by position, without a norm.
    Rotate {
        /// Elements of a head.
        head: usize,
        /// Number of elements that rotate, from the start of the head; even.
        dims: usize,
        /// True: elements `i` and `i + dims/2` rotate together. False: `2i` and `2i + 1`.
        halves: bool,
        /// True: each row belongs to a sequence, at its own position. False: rows are successive
        /// tokens of one sequence.
        each_own: bool,
    },
    /// `x · (1 + p0 · ln(⌊(position + offset) / period⌋ + 1))`.
    Temper {
        /// Positions for each step.
        period: usize,
        /// Added to the position.
        offset: usize,
        /// As for `Rotate`.
        each_own: bool,
    },
    /// `f · x`, or 0 where the factor `f` is 0: a factor for each run, from the row `a[slot]`.
    Adapters {
        /// Elements of a run.
        each: usize,
        /// True: each row belongs to a slot. False: all rows belong to the first one.
        each_own: bool,
    },
}

gpu_enum!(ROW_ENUMS: Map {
    Act, Affine, Gate, AddChosen, Spread, Sum, Slice, Concat, Dot, FromTiles, Rotate, Temper,
    Adapters,
});

/// `y = residual + map(x)`, rows of `cols`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MapSpec {
    /// The operation.
    pub map: Map,
    /// Elements of a row of `y`.
    pub cols: usize,
    /// Whether a residual is added.
    pub residual: bool,
}

arguments! {
    /// The arguments; null or 0 if the map does not use one.
    MapArgs {
        /// f32 rows, or f16 tiles.
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
        /// `rows × cols` f32; may be `residual`, or `x` if element `c` depends on element `c` only.
        y: Pointer,
        /// A parameter of the function.
        p0: F32,
        /// As `p0`.
        p1: F32,
        /// As `p0`.
        p2: F32,
        /// As `p0`.
        p3: F32,
    }
}

const NAME: &str = "map";
const BLOCK: u32 = 256;

impl MapSpec {
    /// Number of blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        if let Map::Dot { .. } = self.map {
            self.cols as u32
        } else {
            (self.cols as u32).div_ceil(BLOCK)
        }
    }

    /// Elements of a row of `x`.
    #[must_use]
    pub fn x_cols(&self) -> usize {
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
    #[must_use]
    pub fn a_cols(&self) -> usize {
        match self.map {
            Map::Gate { each, .. } | Map::Spread { each } | Map::Adapters { each, .. } => {
                self.cols / each
            }
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
            Map::AddChosen { each } | Map::Spread { each } | Map::Adapters { each, .. } => each,
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
            Map::Adapters { each, each_own } => {
                shape.number("EACH", each).flag("EACH_OWN", each_own)
            }
        };
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let residual = if self.residual { self.cols } else { 0 };
        Work::moves(4 * size.tokens * (self.x_cols() + self.a_cols() + residual + self.cols))
    }
}
