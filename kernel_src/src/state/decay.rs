//! The decay of a state, from a model's projections: `gpu/decay.h`.

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
    /// Number of elements in a row.
    pub cols: usize,
    /// `f`: the identity, softplus or sigmoid.
    pub function: Function,
    /// Number of factors, used in order and repeated; 0: none.
    pub factors: usize,
    /// Number of neighbours that share a factor.
    pub each: usize,
    /// Whether there is an offset for each element.
    pub offsets: bool,
}

arguments! {
    /// The arguments of a decay.
    DecayArgs {
        /// `tokens × cols` f32.
        x: Pointer,
        /// `factors` f32, or null.
        a: Pointer,
        /// `cols` f32, or null.
        b: Pointer,
        /// `tokens × cols` f32.
        y: Pointer,
        /// One factor for all elements.
        p: F32,
    }
}

const NAME: &str = "decay";
const BLOCK: u32 = 256;

impl DecaySpec {
    /// Number of blocks for a row.
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
}
