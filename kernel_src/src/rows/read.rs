//! Reads memory at the highest rate: the limit of other kernels. `gpu/read.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::files::source;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Reads memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadSpec {
    /// Vectors of 16 bytes that a thread has in flight: 1 to 16.
    pub in_flight: u32,
}

arguments! {
    /// The arguments of reading.
    ReadArgs {
        /// Vectors of 16 bytes.
        x: Pointer,
        /// A u32 for each thread.
        out: Pointer,
        /// Number of vectors.
        vectors: U64,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

const NAME: &str = "read";
const ENTRY: &str = "read_all";
const BLOCK: u32 = 512;
/// MiB that are read for timing.
const READ: Size = Size { tokens: 1024, past: 0 };

impl ReadSpec {
    /// The grid for `vectors` vectors, and the argument that depends on it.
    #[must_use]
    pub fn grid_of(vectors: usize, units: u32) -> Grid {
        let blocks = vectors.div_ceil(BLOCK as usize).clamp(1, 2 * units.max(1) as usize) as u32;
        Grid::of([blocks, 1, 1]).number("blocks", blocks)
    }
}

impl Family for ReadSpec {
    const NAME: &'static str = NAME;
    type Args<A> = ReadArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in flight", self.in_flight)
    }

    fn check(&self, _: &Target, _: &Fixed) -> Result<(), SpecError> {
        require((1..=16).contains(&self.in_flight), NAME, || {
            format!("{} vectors in flight: 1 to 16 are supported", self.in_flight)
        })
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new().number("FLIGHT", self.in_flight);
        let kernel = of_shape(NAME, &shape, Constants::new(), block.wave, block.threads);
        let source = source(NAME, "read.hip").file("shape.h", shape.header()).entry(ENTRY);
        Ok(Kernel { source, entry: ENTRY, ..kernel })
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(ReadSpec::grid_of(size.tokens << 16, units))
    }

    fn work(&self, size: Size) -> Work {
        Work::moves(size.tokens << 20)
    }

    fn timed_at(&self, _: usize) -> Size {
        READ
    }
}
