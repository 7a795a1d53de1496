//! Memory read as fast as it goes: the limit that other kernels are held against. `gpu/read.h`.

use crate::cases::{Case, CaseArg, Expect, FOLLOWS, Random, input};
use crate::matrix::Samples;
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::files::source;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use kjit_engine::{Constants, Target};
use std::fmt;

/// Reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadSpec {
    /// Vectors of 16 bytes that a thread has in flight: 1 to 16.
    pub in_flight: u32,
}

arguments! {
    /// The arguments.
    ReadArgs {
        /// Vectors of 16 bytes.
        x: Pointer,
        /// A u32 for each thread.
        out: Pointer,
        /// Vectors.
        vectors: U64,
        /// Blocks of the grid.
        blocks: U32,
    }
}

const NAME: &str = "read";
const ENTRY: &str = "read_all";
const BLOCK: u32 = 512;
/// MiB that are read where it is timed.
const READ: Size = Size { tokens: 1024, past: 0 };

impl ReadSpec {
    fn grid_of(vectors: usize, units: u32) -> Grid {
        let blocks = vectors.div_ceil(BLOCK as usize).clamp(1, 2 * units.max(1) as usize) as u32;
        Grid::of([blocks, 1, 1]).number("blocks", blocks)
    }

    /// A case of so many vectors.
    fn of(
        &self,
        target: &Target,
        units: u32,
        vectors: usize,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        let launch = Launch::of(self.block(target, &Fixed)?, ReadSpec::grid_of(vectors, units));
        // A prime number of words in turn.
        let some: Vec<u8> = (0..4099).flat_map(|_| (random.bits() as u32).to_le_bytes()).collect();
        let mut x = some.repeat((16 * vectors).div_ceil(some.len()));
        x.truncate(16 * vectors);
        let blocks = launch.geometry.grid[0];
        let mut want = vec![0u32; (blocks * BLOCK) as usize];
        let threads = want.len();
        for (i, vector) in x.as_chunks::<16>().0.iter().enumerate() {
            want[i % threads] ^= vector
                .as_chunks::<4>()
                .0
                .iter()
                .fold(0, |all, word| all ^ u32::from_le_bytes(*word));
        }
        let want = want.iter().flat_map(|w| w.to_le_bytes()).collect();
        let args = ReadArgs {
            x: input("x", x),
            out: CaseArg::Buffer {
                name: "out",
                before: vec![0xff; 4 * threads].into(),
                expect: Expect::Bytes(want),
            },
            vectors: CaseArg::U64(vectors as u64),
            blocks: FOLLOWS,
        };
        let name = format!("read {vectors} vectors, {} in flight, {blocks} blocks", self.in_flight);
        Case::of(name, self, target, launch, args)
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
            format!("{} vectors in flight, 1 to 16", self.in_flight)
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

    fn case(
        &self,
        target: &Target,
        units: u32,
        size: Size,
        random: &mut Random,
    ) -> Result<Case, SpecError> {
        self.of(target, units, size.tokens << 16, random)
    }

    fn cases(
        target: &Target,
        _: u32,
        random: &mut Random,
        into: &mut Vec<Case>,
    ) -> Result<(), SpecError> {
        // Fewer vectors than threads, and some rounds of all threads that do not come out even.
        for (in_flight, vectors) in [(1, 33), (4, 1031), (8, 8 * 1024 + 7)] {
            into.push(ReadSpec { in_flight }.of(target, 1, vectors, random)?);
        }
        Ok(())
    }

    fn samples(list: &mut Samples<'_>) -> Result<(), SpecError> {
        list.add("read".to_owned(), ReadSpec { in_flight: 8 }, READ)
    }
}
