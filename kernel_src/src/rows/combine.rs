//! Elementwise sums and gated units: `gpu/combine.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// The operation on two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// `a + b`.
    Add,
    /// `silu(a) · b`.
    Silu,
    /// `gelu(a) · b`, in the tanh form.
    Gelu,
}

gpu_enum!(ENUMS: Combine { Add, Silu, Gelu });

/// `y = op(a, b)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CombineSpec {
    /// The operation.
    pub op: Combine,
}

arguments! {
    /// The arguments of an operation on two values.
    CombineArgs {
        /// f32.
        a: Pointer,
        /// f32.
        b: Pointer,
        /// f32; may be `a` or `b`.
        y: Pointer,
        /// Number of elements.
        n: U64,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

const NAME: &str = "combine";
const BLOCK: u32 = 256;
/// Elements of a row if the width is not known.
pub const ROW: usize = 4096;

impl CombineSpec {
    /// Blocks per compute unit.
    pub const BLOCKS_PER_UNIT: u32 = 8;

    /// Number of blocks for `n` elements; also the kernel's last argument.
    #[must_use]
    pub fn blocks(n: u64, units: u32) -> u32 {
        n.div_ceil(u64::from(BLOCK))
            .clamp(1, u64::from(units.max(1)) * u64::from(Self::BLOCKS_PER_UNIT)) as u32
    }

    /// The grid of `blocks` blocks, and the argument that depends on it.
    #[must_use]
    pub fn grid_of(blocks: u32) -> Grid {
        Grid::of([blocks, 1, 1]).number("blocks", blocks)
    }
}

impl Family for CombineSpec {
    const NAME: &'static str = NAME;
    type Args<A> = CombineArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.op)
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new().choice("OP", &self.op);
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(CombineSpec::grid_of(CombineSpec::blocks((size.tokens * ROW) as u64, units)))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(12 * size.tokens * ROW)
    }
}
