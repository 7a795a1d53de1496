//! Matrix × matrix: all tokens of a prompt or of some sequences together; weights of any format are
//! read once. `gpu/gemm.h` on every matrix unit, `gpu/gemm_wgmma.h` on sm_90a.

mod tuning;

pub use tuning::{GemmTuning, STARTS, Start, Waves};

use crate::products::segments::{Finish, Results, Segment, Segments, SegmentsLabel};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Launch, Size, Work};
use crate::vocabulary::mma::{Product, TILE};
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::choice;
use kjit_engine::{Geometry, Target};
use kjit_formats::format::Format;
use std::fmt;
use tuning::GROUP_ROWS;

/// A product of matrices.
///
/// Numerics: weights are rounded to f16 (twice: the group's scale, and its product with the code),
/// activations are f16, sums f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GemmSpec {
    /// Length of a row; a multiple of 32.
    pub cols: usize,
    /// The weight matrices: one to three.
    pub segments: Vec<Segment>,
    /// The epilogue.
    pub finish: Finish,
    /// Whether results are f16 in tiles, the input of a later product.
    pub tiled: bool,
    /// Number of matrices in each weight; with more than one, every tile of tokens has its own
    /// matrix.
    pub experts: usize,
    /// The expected number of tokens of a launch (with experts: of each expert), which decides the
    /// tile. Any number can be launched.
    pub tokens: usize,
    /// The division of the work; `None`: the default of the target's family.
    pub tuning: Option<GemmTuning>,
}

arguments! {
    /// The arguments of a product of matrices; [`GemmLaunch`] gives the last five. Weights are row
    /// records of [`Layout`](crate::layout::Layout), with experts one matrix after the other;
    /// biases f32 per row; results `tokens × rows` f32, or f16 in tiles (then their columns up to a
    /// multiple of 64 are zeroed).
    GemmArgs {
        /// `tokens × cols` f16 in tiles ([`tiled_bytes`](crate::mma::tiled_bytes)), written by
        /// [`TilesSpec`](crate::tiles::TilesSpec), by attention, or by a product with `tiled`
        /// results.
        x: Pointer,
        /// `tokens × rows` f32, or null.
        residual: Pointer,
    } segments {
        /// [`GemmLaunch::parts_bytes`] of working memory; null without splits.
        parts: Pointer,
        /// [`GemmLaunch::counters`] u32, zero before the first launch and after each launch; null
        /// without splits.
        counters: Pointer,
        /// The expert of each tile, by [`MoeGroupSpec`](crate::moe::MoeGroupSpec); null without
        /// experts.
        tile_expert: Pointer,
        /// Number of tokens of this launch.
        tokens: U32,
        /// Number of blocks that share a result, each with a part of the columns.
        splits: U32,
        /// Number of tiles of tokens.
        token_tiles: U32,
        /// Number of all tiles.
        tiles: U32,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

/// A launch: its shape and the arguments that follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmLaunch {
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// Argument: number of blocks that share a result, each with a part of the columns.
    pub splits: u32,
    /// Argument: number of tiles of tokens.
    pub token_tiles: u32,
    /// Argument: number of all tiles.
    pub tiles: u32,
    /// Argument: number of blocks in the grid.
    pub blocks: u32,
    /// Bytes of partial sums (`parts`).
    pub parts_bytes: usize,
    /// Number of counters.
    pub counters: usize,
}

impl GemmLaunch {
    /// This launch without splits: a block has all columns of its results, so the order of sums is
    /// the same for any rows and device.
    #[must_use]
    pub const fn whole(mut self) -> GemmLaunch {
        self.geometry.grid[2] = 1;
        GemmLaunch { splits: 1, parts_bytes: 0, counters: 0, ..self }
    }
}

const NAME: &str = "gemm";
const NAME_GROUPS: &str = "gemm_wgmma";

impl GemmSpec {
    /// A plain product with one matrix, for about `tokens` tokens.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize, tokens: usize) -> GemmSpec {
        let segments = vec![Segment { format, rows, bias: false }];
        GemmSpec {
            cols,
            segments,
            finish: Finish::Store,
            tiled: false,
            experts: 1,
            tokens,
            tuning: None,
        }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    /// The launch for `rows` rows of activations (with experts: a multiple of the tile) on a device
    /// of `units` compute units.
    ///
    /// # Errors
    /// As [`Family::kernel`]; more tiles than a grid has.
    pub fn launch_rows(
        &self,
        target: &Target,
        rows: usize,
        units: u32,
    ) -> Result<GemmLaunch, SpecError> {
        let t = self.tuning(target)?;
        let block = self.block(target, &t)?;
        let row_tiles = self.weights().tiles(t.rows() as usize, if self.tiled { TILE } else { 1 });
        let token_tiles = rows.div_ceil(t.tokens() as usize).max(1);
        let tiles = row_tiles.saturating_mul(token_tiles);
        require(tiles <= 1 << 30 && row_tiles < 1 << 16, NAME, || {
            format!("{tiles} tiles, {row_tiles} of rows")
        })?;
        let (token_tiles, row_tiles, tiles) = (token_tiles as u32, row_tiles as u32, tiles as u32);
        let (splits, grid) = match t {
            GemmTuning::Waves { depth, .. } => {
                // If there are few tiles, blocks share one, each with at least four steps of the
                // columns, until each compute unit has two blocks.
                let steps = (self.cols.div_ceil(64) as u32).div_ceil(depth);
                let wanted = (2 * units.max(1)).div_ceil(tiles);
                let splits = wanted.clamp(1, 8).min((steps / 4).max(1));
                (splits, [token_tiles, row_tiles, splits])
            }
            GemmTuning::Groups { .. } => (1, [tiles.min(units.max(1)), 1, 1]),
        };
        let shares = if splits > 1 { tiles as usize } else { 0 };
        Ok(GemmLaunch {
            geometry: Launch::of(block, Grid::of(grid)).geometry,
            splits,
            token_tiles,
            tiles,
            blocks: grid[0],
            parts_bytes: shares * splits as usize * (t.tokens() * t.rows()) as usize * 4,
            counters: shares,
        })
    }

    /// [`GemmSpec::launch_rows`] as a grid, with the arguments that follow from the grid.
    ///
    /// # Errors
    /// As [`GemmSpec::launch_rows`].
    pub fn grid_rows(&self, target: &Target, rows: usize, units: u32) -> Result<Grid, SpecError> {
        let l = self.launch_rows(target, rows, units)?;
        let grid =
            Grid::of(l.geometry.grid).number("tokens", rows as u32).number("splits", l.splits);
        let grid = grid
            .number("token_tiles", l.token_tiles)
            .number("tiles", l.tiles)
            .number("blocks", l.blocks);
        Ok(grid.memory("parts", l.parts_bytes).counters("counters", l.counters))
    }

    /// Rows of activations. With experts: whole tiles for each expert, for any distribution of
    /// tokens.
    #[must_use]
    pub fn rows(&self, tuning: &GemmTuning, tokens: usize) -> usize {
        let tile = tuning.tokens() as usize;
        if self.experts > 1 {
            self.experts * self.tokens.div_ceil(tile).max(1) * tile
        } else {
            tokens
        }
    }

    /// Floating-point operations of a launch.
    #[must_use]
    pub fn operations(&self, tokens: usize) -> f64 {
        2.0 * tokens as f64
            * self.cols as f64
            * self.segments.iter().map(|s| s.rows as f64).sum::<f64>()
    }
}

impl Family for GemmSpec {
    const NAME: &'static str = NAME;
    type Args<A> = GemmArgs<A>;
    choice!(GemmTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tiled = if self.tiled { ", tiled" } else { "" };
        let weights = SegmentsLabel(&self.segments);
        write!(f, "{weights} × {}, {:?}{tiled}, {} tokens", self.cols, self.finish, self.tokens)?;
        if self.experts > 1 { write!(f, ", {} experts", self.experts) } else { Ok(()) }
    }

    fn usual(&self, target: &Target) -> Result<GemmTuning, SpecError> {
        Ok(self.start(target))
    }

    fn check(&self, target: &Target, tuning: &GemmTuning) -> Result<(), SpecError> {
        require(self.cols > 0 && self.cols.is_multiple_of(32), NAME, || {
            format!("rows of {} weights: the number must be a multiple of 32", self.cols)
        })?;
        require(self.finish != Finish::Add || !self.tiled, NAME, || {
            "a residual needs results in f32".to_owned()
        })?;
        require((1..=1 << 16).contains(&self.experts), NAME, || {
            format!("{} experts", self.experts)
        })?;
        self.weights().check(NAME, self.experts)?;
        require(self.fits(target, tuning), NAME, || {
            format!(
                "tuning {tuning:?} is not supported \
        on {target}"
            )
        })
    }

    fn candidates(&self, target: &Target) -> Vec<GemmTuning> {
        self.worth_trying(target)
    }

    fn block(&self, target: &Target, t: &GemmTuning) -> Result<Block, SpecError> {
        let shared = shared_bytes(NAME, target, t.shared(), 128, "use a tuning with fewer stages")?;
        Ok(match *t {
            GemmTuning::Waves { wave, waves, .. } => {
                Block { wave, threads: waves.0 * waves.1 * wave, shared }
            }
            GemmTuning::Groups { fillers, .. } => {
                Block { wave: 32, threads: 128 * (fillers + 2), shared }
            }
        })
    }

    fn render(&self, target: &Target, t: &GemmTuning, block: Block) -> Result<Kernel, SpecError> {
        let name = if let GemmTuning::Groups { .. } = t { NAME_GROUPS } else { NAME };
        let out = if self.tiled { Results::Tiles } else { Results::Singles };
        let shape = Shape::new()
            .number("COLS", self.cols)
            .choice("OUT", &out)
            .number("EXPERTS", self.experts);
        let shape = shape.and(self.weights().shape()?);
        let macros = Product::of(target, block.wave).macros();
        let (shape, macros) = match *t {
            GemmTuning::Waves { tokens, rows, waves, depth, ahead, stages, .. } => {
                let s = shape
                    .number("BM", tokens)
                    .number("BN", rows)
                    .number("WM", waves.0)
                    .number("WN", waves.1);
                let s = s.number("KB", depth).number("AHEAD", ahead).number("X_STAGES", stages);
                (s, macros)
            }
            GemmTuning::Groups { tokens, stages, ahead, fillers } => {
                // The registers of each role, 65536 in total; multiples of 8.
                let (fill, multiply) = if fillers == 1 { (88, 208) } else { (88, 160) };
                let s =
                    shape.number("WG_N", tokens).number("BN", GROUP_ROWS).number("STAGES", stages);
                let s = s.number("AHEAD", ahead).number("FILLERS", fillers);
                let s = s.number("FILL_REGS", fill).number("MULTIPLY_REGS", multiply);
                (s, macros.set("KJ_MIN_BLOCKS", 1))
            }
        };
        let kernel = of_shape(name, &shape, macros, block.wave, block.threads);
        let options = kernel.options.clone().arch_specific(name == NAME_GROUPS);
        Ok(Kernel { shared: block.shared, options, ..kernel })
    }

    fn grid(
        &self,
        target: &Target,
        tuning: &GemmTuning,
        units: u32,
        size: Size,
    ) -> Result<Grid, SpecError> {
        let spec = self.clone().with(Some(*tuning));
        spec.grid_rows(target, self.rows(tuning, size.tokens), units)
    }

    fn work(&self, size: Size) -> Work {
        let tokens = if self.experts > 1 { self.experts * self.tokens } else { size.tokens };
        self.weights().work(self.experts, tokens, 2, if self.tiled { 2 } else { 4 })
    }

    fn timed_at(&self, _: usize) -> Size {
        Size { tokens: self.tokens, past: 0 }
    }
}
