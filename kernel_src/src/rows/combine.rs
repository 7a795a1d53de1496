//! Sums and gated units, element by element: `gpu/combine.h`.

use crate::cases::oracle::{gelu, silu};
use crate::cases::{Case, CaseArg, FOLLOWS, Random, SINGLE, Storage, floats, output};
use crate::matrix::{ONE, Samples};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::{Shape, gpu_enum};
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// What is made of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combine {
    /// `a + b`.
    Add,
    /// `silu(a) · b`.
    Silu,
    /// `gelu(a) · b`, the tanh form.
    Gelu,
}

gpu_enum!(ENUMS: Combine { Add, Silu, Gelu });

/// `y = op(a, b)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CombineSpec {
    /// What is made of them.
    pub op: Combine,
}

arguments! {
    /// The arguments.
    CombineArgs {
        /// f32.
        a: Pointer,
        /// f32.
        b: Pointer,
        /// f32; may be `a` or `b`.
        y: Pointer,
        /// Elements.
        n: U64,
        /// Blocks of the grid.
        blocks: U32,
    }
}

const NAME: &str = "combine";
const BLOCK: u32 = 256;
/// Elements of a row where no width is known.
const ROW: usize = 4096;

impl CombineSpec {
    /// Blocks of a compute unit.
    pub const BLOCKS_PER_UNIT: u32 = 8;

    /// Blocks for `n` elements: also the kernel's last argument.
    #[must_use]
    pub fn blocks(n: u64, units: u32) -> u32 {
        n.div_ceil(u64::from(BLOCK))
            .clamp(1, u64::from(units.max(1)) * u64::from(Self::BLOCKS_PER_UNIT)) as u32
    }

    /// A case of `n` elements in so many blocks.
    fn of(
        &self,
        target: &Target,
        n: usize,
        blocks: u32,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        // From where the activation vanishes to where it is the identity, and infinities that must
        // not turn into NaN.
        let mut a = random.normals(n, 6.0);
        a[0] = 0.0;
        a[1] = 90.0;
        a[2] = -90.0;
        a[3] = 1e-6;
        let b = random.normals(n, 1.0);
        let want = a.iter().zip(&b).map(|(&a, &b)| {
            let (a, b) = (f64::from(a), f64::from(b));
            match self.op {
                Combine::Add => a + b,
                Combine::Silu => silu(a) * b,
                Combine::Gelu => gelu(a) * b,
            }
        });
        let args = CombineArgs {
            a: floats("a", &a),
            b: floats("b", &b),
            y: output("y", Storage::F32, want.collect(), SINGLE),
            n: CaseArg::U64(n as u64),
            blocks: FOLLOWS,
        };
        let launch = Launch::of(self.block(target, &Fixed)?, CombineSpec::grid_of(blocks));
        Case::of(format!("combine {:?} · {n}", self.op), self, target, launch, args)
    }

    fn grid_of(blocks: u32) -> Grid {
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

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let n = size.tokens * ROW;
        self.of(target, n, CombineSpec::blocks(n as u64, units), random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
            into.push(CombineSpec { op }.of(target, 1009, 2, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        for op in [Combine::Add, Combine::Silu, Combine::Gelu] {
            list.add(format!("combine {op:?}"), CombineSpec { op }, ONE)?;
        }
        Ok(())
    }
}
