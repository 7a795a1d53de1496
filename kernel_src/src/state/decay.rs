//! What stays of a state, from what a model projects: `gpu/decay.h`.

use crate::cases::{Case, CaseArg, Random, SINGLE, Storage, floats, optional, output};
use crate::matrix::{CHUNK, Samples};
use crate::rows::map::Function;
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// `y = e^(p · factors · f(x + offsets))`, rows of `cols`.
///
/// Numerics: f32 throughout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DecaySpec {
    /// Elements of a row.
    pub cols: usize,
    /// `f`: the identity, softplus or sigmoid.
    pub function: Function,
    /// Factors, which repeat; 0: none.
    pub factors: usize,
    /// Neighbours that share one.
    pub each: usize,
    /// There is an offset for each element.
    pub offsets: bool,
}

arguments! {
    /// The arguments.
    DecayArgs {
        /// `tokens × cols` f32.
        x: Pointer,
        /// `factors` f32, or null.
        a: Pointer,
        /// `cols` f32, or null.
        b: Pointer,
        /// `tokens × cols` f32.
        y: Pointer,
        /// One factor for all.
        p: F32,
    }
}

const NAME: &str = "decay";
const BLOCK: u32 = 256;

impl DecaySpec {
    /// Blocks for a row.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        (self.cols as u32).div_ceil(BLOCK)
    }
}

impl Family for DecaySpec {
    const NAME: &'static str = NAME;
    type Args<A> = DecayArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.cols, self.function)?;
        if self.factors > 0 {
            write!(f, ", {} factors for {} each", self.factors, self.each)?;
        }
        f.write_str(if self.offsets { ", offsets" } else { "" })
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        let known =
            matches!(self.function, Function::Identity | Function::Softplus | Function::Sigmoid);
        require(known && self.each > 0 && (1..1 << 24).contains(&self.cols), NAME, || {
            format!("{self:?}")
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("COLS", self.cols)
            .choice("FUNCTION", &self.function)
            .number("FACTORS", self.factors)
            .number("EACH", self.each)
            .flag("OFFSETS", self.offsets);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([self.blocks(), size.tokens as u32, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let own = self.factors + if self.offsets { self.cols } else { 0 };
        Work::moves(4 * (2 * size.tokens * self.cols + own))
    }

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let rows = size.tokens.max(1);
        // From what stays whole to what is gone, and far beyond on both sides.
        let mut x = random.normals(rows * self.cols, 2.0);
        for (v, edge) in x.iter_mut().zip([0.0, 40.0, -80.0, 1e-6]) {
            *v = edge;
        }
        let p = -0.6f32;
        let a: Vec<f32> = random.normals(self.factors, 1.0).iter().map(|v| v.abs()).collect();
        let b = if self.offsets { random.normals(self.cols, 1.0) } else { vec![] };
        let f = |x: f64| match self.function {
            Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            _ => x,
        };
        if self.function == Function::Identity {
            x.iter_mut().for_each(|v| *v = v.max(-4.0));
        }
        let of = |v: &[f32], i: usize, none: f64| v.get(i).map_or(none, |&v| f64::from(v));
        let want = (0..rows * self.cols).map(|i| {
            let c = i % self.cols;
            let factor = of(&a, (c / self.each).checked_rem(self.factors).unwrap_or(0), 1.0);
            (f64::from(p) * factor * f(f64::from(x[i]) + of(&b, c, 0.0))).exp()
        });
        let args = DecayArgs {
            x: floats("x", &x),
            a: optional("a", &a),
            b: optional("b", &b),
            y: output("y", Storage::F32, want.collect(), SINGLE),
            p: CaseArg::F32(p),
        };
        let launch = self.launch(target, units, Size { tokens: rows, past: 0 })?;
        Case::of(format!("{self:?} · {rows}"), self, target, launch, args)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        use Function::{Identity, Sigmoid, Softplus};
        for (cols, function, factors, each, offsets, tokens) in [
            (301, Identity, 0, 1, false, 2),
            (64, Identity, 0, 1, true, 3),
            (257, Sigmoid, 0, 1, true, 2),
            (32, Softplus, 32, 1, true, 5),
            (96, Softplus, 6, 16, true, 3),
            (520, Softplus, 13, 1, false, 1),
        ] {
            let spec = DecaySpec { cols, function, factors, each, offsets };
            into.push(spec.case(target, 2, Size { tokens, past: 0 }, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        let spec = DecaySpec {
            cols: 4096,
            function: Function::Softplus,
            factors: 32,
            each: 128,
            offsets: true,
        };
        list.add("decay 4096 Softplus".to_owned(), spec, CHUNK)
    }
}
