//! Converts rows of f32 into the tiles, panels or turned tiles of f16 that products read:
//! `gpu/tiles.h`.

use crate::vocabulary::activations::{Prologue, PrologueLabel};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Wave, choice_of_wave};
use kjit_engine::Target;
use std::fmt;

/// The layout of the f16 input of a product of many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TileLayout {
    /// [`tiled_index`](crate::mma::tiled_index): for [`GemmSpec`](crate::gemm::GemmSpec).
    Tiles,
    /// [`panel_index`](crate::mma::panel_index): for
    /// [`SmallGemmSpec`](crate::small_gemm::SmallGemmSpec).
    Panels,
    /// [`turned_index`](crate::mma::turned_index): for
    /// [`BatchGemmSpec`](crate::batch_gemm::BatchGemmSpec).
    Turned,
}

impl TileLayout {
    /// Index of an element of a matrix with `cols` columns.
    #[must_use]
    pub const fn index(self, row: usize, col: usize, cols: usize) -> usize {
        match self {
            TileLayout::Tiles => crate::mma::tiled_index(row, col, cols),
            TileLayout::Panels => crate::mma::panel_index(row, col, cols),
            TileLayout::Turned => crate::mma::turned_index(row, col, cols),
        }
    }

    /// The name in specs and in names of cases.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            TileLayout::Tiles => "",
            TileLayout::Panels => ", panels",
            TileLayout::Turned => ", turned",
        }
    }
}

/// Converts rows to f16 in tiles, one block per row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TilesSpec {
    /// Length of a row.
    pub cols: usize,
    /// Transformation of the values.
    pub prologue: Prologue,
    /// Whether `source` selects the rows.
    pub gather: bool,
    /// The layout of the f16 values.
    pub form: TileLayout,
    /// Lanes in a wave; `None`: the target's own.
    pub tuning: Option<Wave>,
}

arguments! {
    /// The arguments of the conversion.
    TilesArgs {
        /// Rows of `cols` f32.
        x: Pointer,
        /// The norm's weight (`cols` f32) or the other factor of a gated unit (as `x`); null
        /// without either.
        aux: Pointer,
        /// [`tiled_bytes`](crate::mma::tiled_bytes), [`panel_bytes`](crate::mma::panel_bytes) or
        /// [`turned_bytes`](crate::mma::turned_bytes).
        y: Pointer,
        /// A u32 for each row of `y`: the row of `x`, or `u32::MAX` if the row stays unchanged.
        /// Null without `gather`.
        source: Pointer,
        /// Epsilon of the norm.
        eps: F32,
    }
}

const NAME: &str = "tiles";

impl Family for TilesSpec {
    const NAME: &'static str = NAME;
    type Args<A> = TilesArgs<A>;
    choice_of_wave!();

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gather, form) = (if self.gather { ", gathered" } else { "" }, self.form.word());
        write!(f, "{}{}{gather}{form}", self.cols, PrologueLabel(self.prologue, false))
    }

    fn check(&self, target: &Target, tuning: &Wave) -> Result<(), SpecError> {
        require(self.cols > 0 && self.cols <= 1 << 16, NAME, || {
            format!("rows of {} elements: 1 to 65536 are supported", self.cols)
        })?;
        tuning.check(NAME, target)
    }

    fn block(&self, _: &Target, &Wave { wave }: &Wave) -> Result<Block, SpecError> {
        // A thread has its part of the row in registers: eight elements for rows up to 2048, at
        // most 64.
        let threads = match self.cols {
            0..=2048 => 256,
            2049..=8192 => 512,
            _ => 1024,
        };
        Ok(Block::of(wave, threads))
    }

    fn render(&self, target: &Target, _: &Wave, block: Block) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("COLS", self.cols)
            .choice("PROLOGUE", &self.prologue)
            .flag("GATHER", self.gather)
            .flag("OUT_PANELS", self.form == TileLayout::Panels)
            .flag("OUT_TURNED", self.form == TileLayout::Turned);
        Ok(of_shape(
            NAME,
            &shape,
            Product::of(target, block.wave).macros(),
            block.wave,
            block.threads,
        ))
    }

    fn grid(&self, _: &Target, _: &Wave, _: u32, size: Size) -> Result<Grid, SpecError> {
        Ok(Grid::of([size.tokens as u32, 1, 1]))
    }

    fn work(&self, size: Size) -> Work {
        let inputs = if matches!(self.prologue, Prologue::Silu | Prologue::Gelu) { 2 } else { 1 };
        Work::moves((4 * inputs + 2) * size.tokens * self.cols)
    }

    fn timed_at(&self, _: usize) -> Size {
        Size::CHUNK
    }
}
