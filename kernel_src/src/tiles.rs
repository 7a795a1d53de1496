//! Rows of f32 made into the tiles of halves that products take: `gpu/tiles.hip`.

use crate::activations::Prologue;
use crate::kernel::{Kernel, SpecError, require, source};
use crate::product::Product;
use kjit_engine::{Constants, Geometry, Options, Target};

/// Arguments: `x, aux, y, source` (pointers, null where there is none), `eps: f32`. `x` is rows of `cols` f32; `aux` the norm's weight
/// (`cols` f32) or the other factor of a gated unit (as `x`); `y` is [`tiled_bytes`](crate::product::tiled_bytes); `source` with
/// `gather` is a u32 for each row of `y`: the row of `x`, or `u32::MAX`: the row stays as it is. A block a row of `y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TilesSpec {
    /// Length of a row.
    pub cols: usize,
    /// What happens to the values.
    pub prologue: Prologue,
    /// Rows are picked by `source`.
    pub gather: bool,
    /// Into strips ([`strip_index`](crate::product::strip_index)) instead of tiles.
    pub strips: bool,
}

const NAME: &str = "tiles";

impl TilesSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// A row that does not fit a block's registers (more than 65536 elements).
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        self.kernel_at(target, target.default_wave())
    }

    pub(crate) fn kernel_at(&self, target: &Target, wave: u32) -> Result<Kernel, SpecError> {
        require(self.cols > 0 && self.cols <= 1 << 16, NAME, || format!("rows of {}, it takes 1 to 65536", self.cols))?;
        require(target.waves().contains(&wave), NAME, || format!("wave {wave} on {target}"))?;
        // A thread keeps its part of the row in registers: eight elements up to rows of 2048, 64 at most.
        let block = if self.cols <= 2048 {
            256
        } else if self.cols <= 8192 {
            512
        } else {
            1024
        };
        let constants = Product::of(target, wave)
            .constants(Constants::new())
            .set("KJ_BLOCK", block)
            .set("COLS", self.cols as i64)
            .set("INPUT", self.prologue.number())
            .set("GATHER", i64::from(self.gather))
            .set("OUT_STRIPS", i64::from(self.strips));
        Ok(Kernel {
            source: source(NAME, "tiles.hip").entry(NAME),
            constants,
            options: Options::wave(wave),
            entry: NAME,
            block,
            shared: 0,
        })
    }

    /// The launch for so many rows of `y`.
    ///
    /// # Errors
    /// As [`TilesSpec::kernel`].
    pub fn geometry(&self, target: &Target, rows: u32) -> Result<Geometry, SpecError> {
        Ok(self.kernel(target)?.launch(rows))
    }
}
