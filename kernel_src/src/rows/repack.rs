//! Converts rows of the file into row records, on the device: `gpu/repack.h`.

use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Fixed, no_choice};
use crate::vocabulary::weights;
use kjit_engine::{Constants, Target};
use kjit_formats::layout::Layout;
use std::fmt;

/// Repacks rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepackSpec {
    /// The layout of a row.
    pub layout: Layout,
}

arguments! {
    /// The arguments of repacking.
    RepackArgs {
        /// Rows in the file's layout; may start at any byte.
        raw: Pointer,
        /// [`Layout::bytes`] bytes of row records.
        records: Pointer,
        /// Number of rows, of all experts together.
        rows: U64,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

const NAME: &str = "repack";
const BLOCK: u32 = 256;
/// Rows of the matrix for timing: enough for every compute unit.
pub const ROWS: usize = 4096;

impl RepackSpec {
    /// Number of blocks for `rows` rows on a device of `units` compute units; also the kernel's
    /// last argument.
    #[must_use]
    pub fn blocks(&self, rows: u64, units: u32) -> u32 {
        let each = if self.layout.block().is_some() {
            self.layout.cols / 32
        } else {
            self.layout.row_bytes / 16
        };
        let all = rows.saturating_mul(each as u64).div_ceil(u64::from(BLOCK));
        all.clamp(1, u64::from(units.max(1)) * 16) as u32
    }

    /// The launch for `rows` rows.
    ///
    /// # Errors
    /// None at present.
    pub fn launch_rows(&self, target: &Target, rows: u64, units: u32) -> Result<Launch, SpecError> {
        self.launch_blocks(target, self.blocks(rows, units))
    }

    /// The launch with `blocks` blocks.
    ///
    /// # Errors
    /// None at present.
    pub fn launch_blocks(&self, target: &Target, blocks: u32) -> Result<Launch, SpecError> {
        Ok(Launch::of(self.block(target, &Fixed)?, RepackSpec::grid_of(blocks)))
    }

    fn grid_of(blocks: u32) -> Grid {
        Grid::of([blocks, 1, 1]).number("blocks", blocks)
    }
}

impl Family for RepackSpec {
    const NAME: &'static str = NAME;
    type Args<A> = RepackArgs<A>;
    no_choice!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}", self.layout.format, self.layout.cols)
    }

    fn block(&self, target: &Target, _: &Fixed) -> Result<Block, SpecError> {
        Ok(Block::of(target.default_wave(), BLOCK))
    }

    fn render(&self, _: &Target, _: &Fixed, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("COLS", self.layout.cols)
            .inner("W", weights::records(&self.layout))
            .inner("Raw", weights::blocks(&self.layout));
        Ok(of_shape(NAME, &shape, Constants::new(), block.wave, block.threads))
    }

    fn grid(&self, _: &Target, _: &Fixed, units: u32, _: Size) -> Result<Grid, SpecError> {
        Ok(RepackSpec::grid_of(self.blocks(ROWS as u64, units)))
    }

    fn work(&self, _: Size) -> Work {
        let Layout { format, cols, row_bytes, .. } = self.layout;
        Work::moves(ROWS * (format.row_bytes(cols).unwrap_or(0) + row_bytes))
    }
}
