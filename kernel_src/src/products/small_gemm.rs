//! Matrix × a few rows of activations on the matrix units (a small-batch GEMM). Weights are loaded
//! from memory directly to registers: `gpu/small_gemm.h`. It is for one token of each of several
//! sequences; [`GemmSpec`](crate::gemm::GemmSpec) is for prompts.

use crate::products::segments::{Finish, Results, Segment, Segments, SegmentsLabel};
use crate::vocabulary::arguments::arguments;
use crate::vocabulary::family::Family;
use crate::vocabulary::kernel::{Kernel, SpecError, of_shape, require, shared_bytes};
use crate::vocabulary::launch::{Block, Grid, Size, Work};
use crate::vocabulary::mma::Product;
use crate::vocabulary::shape::Shape;
use crate::vocabulary::variant::{Variant, choice};
use kjit_engine::{MatrixUnit, Target};
use kjit_formats::format::Format;
use kjit_formats::layout::Layout;
use std::fmt;

/// A product with a few rows. A launch may have any number of tokens up to the spec's number.
///
/// Numerics: as for [`GemmSpec`](crate::gemm::GemmSpec). Weights are rounded to f16 (twice: the
/// group's scale, and its product with the code); activations are f16, sums f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SmallGemmSpec {
    /// Length of a row; a multiple of 32.
    pub cols: usize,
    /// Largest number of tokens: 1 to 64.
    pub tokens: usize,
    /// The weight matrices: one to three.
    pub segments: Vec<Segment>,
    /// The epilogue.
    pub finish: Finish,
    /// Whether results are f16 in panels, the input of a later product.
    pub panels: bool,
    /// Whether results do not depend on `tokens`, bit for bit: one order of sums for a shape of
    /// weights.
    pub fixed: bool,
    /// The division of the work; `None`: the default.
    pub tuning: Option<SmallGemmTuning>,
}

arguments! {
    /// The arguments of a product with a few rows. Weights are row records of [`Layout`], biases
    /// f32 per row, results `tokens × rows` f32, or f16 in panels.
    SmallGemmArgs {
        /// `tokens × cols` f16 in panels ([`panel_index`](crate::mma::panel_index)), written by
        /// [`TilesSpec`](crate::tiles::TilesSpec) or by a product with `panels`.
        x: Pointer,
        /// `tokens × rows` f32, or null.
        residual: Pointer,
    } segments {
        /// [`SmallGemmSpec::part_bytes`] of working memory; null without splits.
        parts: Pointer,
        /// [`SmallGemmSpec::counters`] u32, zero before the first launch and after each launch;
        /// null without splits.
        counters: Pointer,
        /// Number of tokens of this launch.
        tokens: U32,
        /// Number of blocks that share a result, each with a part of the columns.
        splits: U32,
    }
}

/// The division of the work among blocks and waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmallGemmTuning {
    /// Number of waves in a block.
    pub waves: u32,
    /// Number of waves in the direction of the rows; the others share the columns.
    pub rows: u32,
    /// Rows of a wave, in units of sixteen: 1 or 2.
    pub tiles: u32,
    /// Steps of 128 columns between the load and the use of weights.
    pub ahead: u32,
    /// Blocks per compute unit. It limits the registers.
    pub blocks_per_unit: u32,
}

impl Variant for SmallGemmTuning {}

const NAME: &str = "small_gemm";
/// Desired number of blocks: two for each multiprocessor of an H100 SXM or H200, the usual cards of
/// the family. A different number is a few percent slower.
const BLOCKS_WANTED: usize = 264;

/// The number of rows is a multiple of this.
pub const WHOLE: usize = 32;

/// Whether a target has the kernel: it needs `mma.sync`, whose lanes hold pairs of neighbouring
/// columns.
#[must_use]
pub fn covers(target: &Target) -> bool {
    matches!(target.arch().matrix, MatrixUnit::MmaSync | MatrixUnit::Wgmma)
}

impl SmallGemmSpec {
    /// A plain product with one matrix.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize, tokens: usize) -> SmallGemmSpec {
        let segments = vec![Segment { format, rows, bias: false }];
        SmallGemmSpec {
            cols,
            tokens,
            segments,
            finish: Finish::Store,
            panels: false,
            fixed: false,
            tuning: None,
        }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    /// Number of tokens in a block.
    fn block_tokens(&self) -> usize {
        self.tokens.next_multiple_of(8)
    }

    /// Number of steps of 128 columns.
    fn steps(&self) -> usize {
        self.cols.div_ceil(128)
    }

    /// The default, measured on an H200 (`docs/performance.md`).
    fn start(&self) -> SmallGemmTuning {
        let wide = |rows: u32| self.weights().tiles(16 * rows as usize, 1) >= BLOCKS_WANTED;
        // Two tiles of rows share the panels; wider weights of both tiles do not fit in the
        // registers.
        let narrow = self
            .segments
            .iter()
            .all(|s| Layout::new(s.format, self.cols).is_ok_and(|l| l.unit() == 32));
        // Many rows: many small blocks, so that no single block remains at the end. Few rows: the
        // waves of a block share 16 rows.
        let (waves, rows, tiles, blocks_per_unit) = match (self.block_tokens(), wide(2)) {
            // The number of waves that share the columns is fixed for a shape: two, or eight (four
            // with a gate).
            (8, true) if self.fixed => (4, 2, 1, 7),
            (16 | 24 | 32, true) if self.fixed => (4, 2, 1, 4),
            (_, true) if self.fixed => (8, 4, 1, 2),
            (_, false) if self.fixed => (8, 1, 1, 2),
            (8, true) => (4, 2, 1, 7),
            (8, false) => (16, 1, 1, 1),
            (16, true) if narrow => (4, 1, 2, 4),
            (16 | 24 | 32, true) => (4, 2, 1, 4),
            (_, true) => (8, 8, 1, 2),
            (_, false) => (8, 1, 1, 2),
        };
        let rows = if self.finish.gated() && tiles == 1 { rows.max(2) } else { rows };
        SmallGemmTuning { waves, rows, tiles, ahead: 1, blocks_per_unit }
    }

    /// Number of blocks in the direction of the rows.
    fn tiles(&self, t: &SmallGemmTuning) -> usize {
        self.weights().tiles((16 * t.tiles * t.rows) as usize, 1)
    }

    /// Number of blocks that share a result.
    fn splits(&self, t: &SmallGemmTuning) -> u32 {
        // With many rows blocks have different sizes and do not share results.
        if self.fixed && self.weights().tiles(32, 1) >= BLOCKS_WANTED {
            return 1;
        }
        // Each wave has at least two steps.
        let most = self.steps() / (2 * (t.waves / t.rows) as usize);
        (BLOCKS_WANTED / self.tiles(t).max(1)).clamp(1, most.clamp(1, 8)) as u32
    }

    /// Numbers of blocks: over the rows, and over the columns of one result. The second is also the
    /// kernel's last argument.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target) -> Result<[u32; 2], SpecError> {
        let t = self.tuning(target)?;
        Ok([self.tiles(&t) as u32, self.splits(&t)])
    }

    /// Bytes of partial sums (`parts`).
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn part_bytes(&self, target: &Target) -> Result<usize, SpecError> {
        Ok(self.shared_sums(&self.tuning(target)?).0)
    }

    /// Number of counters (u32).
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn counters(&self, target: &Target) -> Result<usize, SpecError> {
        Ok(self.shared_sums(&self.tuning(target)?).1)
    }

    /// Bytes of partial sums, and number of counters.
    fn shared_sums(&self, t: &SmallGemmTuning) -> (usize, usize) {
        let (tiles, splits) = (self.tiles(t), self.splits(t) as usize);
        let each = self.block_tokens() * (16 * t.tiles * t.rows) as usize * 4;
        if splits > 1 { (tiles * splits * each, tiles) } else { (0, 0) }
    }
}

impl Family for SmallGemmSpec {
    const NAME: &'static str = NAME;
    type Args<A> = SmallGemmArgs<A>;
    choice!(SmallGemmTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weights, out) =
            (SegmentsLabel(&self.segments), if self.panels { ", panels" } else { "" });
        write!(f, "{weights} × {}, {:?}{out}, {} tokens", self.cols, self.finish, self.tokens)?;
        if self.fixed { f.write_str(", fixed") } else { Ok(()) }
    }

    fn usual(&self, _: &Target) -> Result<SmallGemmTuning, SpecError> {
        Ok(self.start())
    }

    fn check(&self, target: &Target, t: &SmallGemmTuning) -> Result<(), SpecError> {
        require(covers(target), NAME, || format!("{target} has no mma.sync"))?;
        require((1..=64).contains(&self.tokens), NAME, || {
            format!("{} tokens: 1 to 64 are supported", self.tokens)
        })?;
        require(self.cols > 0 && self.cols.is_multiple_of(32), NAME, || {
            format!("rows of {} weights: the number must be a multiple of {WHOLE}", self.cols)
        })?;
        require(self.finish != Finish::Add || !self.panels, NAME, || {
            "a residual needs results in f32".to_owned()
        })?;
        self.weights().check(NAME, 1)?;
        let fine = t.waves.is_power_of_two()
            && t.waves <= 16
            && t.rows.is_power_of_two()
            && t.rows <= t.waves
            && (1..=2).contains(&t.tiles)
            && (1..=4).contains(&t.ahead)
            && (1..=8).contains(&t.blocks_per_unit)
            && (!self.finish.gated() || t.rows * t.tiles >= 2);
        require(fine, NAME, || format!("tuning {t:?} is not supported on {target}"))
    }

    fn candidates(&self, _: &Target) -> Vec<SmallGemmTuning> {
        let mut all = vec![];
        for (waves, blocks_per_unit) in [(4, 4), (4, 7), (8, 2), (8, 4), (16, 1), (16, 2)] {
            for rows in [1, 2, 4, 8].into_iter().filter(|r| *r <= waves) {
                for tiles in [1, 2] {
                    for ahead in [1, 3] {
                        all.push(SmallGemmTuning { waves, rows, tiles, ahead, blocks_per_unit });
                    }
                }
            }
        }
        all
    }

    fn block(&self, target: &Target, t: &SmallGemmTuning) -> Result<Block, SpecError> {
        let rows = (16 * t.tiles * t.rows) as usize;
        let stage = (t.waves / t.rows) as usize * self.block_tokens() * (rows + 4) * 4;
        let shared =
            shared_bytes(NAME, target, stage, 128, "use a tuning with more waves over the rows")?;
        Ok(Block { wave: 32, threads: 32 * t.waves, shared })
    }

    fn render(
        &self,
        target: &Target,
        t: &SmallGemmTuning,
        block: Block,
    ) -> Result<Kernel, SpecError> {
        let (tokens, rows) = (self.block_tokens(), 16 * t.tiles * t.rows);
        let out = if self.panels { Results::Panels } else { Results::Singles };
        let shape = Shape::new()
            .number("COLS", self.cols)
            .number("BM", tokens)
            .number("BN", rows)
            .number("ROW_TILES", t.tiles)
            .number("WAVES_ROWS", t.rows)
            .number("AHEAD", t.ahead)
            .choice("OUT", &out)
            .and(self.weights().shape()?);
        let macros = Product::of(target, 32).macros().set("KJ_MIN_BLOCKS", t.blocks_per_unit);
        Ok(Kernel {
            shared: block.shared,
            ..of_shape(NAME, &shape, macros, block.wave, block.threads)
        })
    }

    fn grid(&self, _: &Target, t: &SmallGemmTuning, _: u32, size: Size) -> Result<Grid, SpecError> {
        let (splits, (bytes, counters)) = (self.splits(t), self.shared_sums(t));
        let grid = Grid::of([self.tiles(t) as u32, splits, 1])
            .number("tokens", size.tokens.min(self.tokens) as u32);
        Ok(grid.number("splits", splits).memory("parts", bytes).counters("counters", counters))
    }

    fn work(&self, size: Size) -> Work {
        self.weights().work(1, size.tokens, 2, if self.panels { 2 } else { 4 })
    }

    fn timed_at(&self, _: usize) -> Size {
        Size { tokens: self.tokens, past: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of sums: number of waves over the columns, and of blocks that share them.
    fn order(spec: &SmallGemmSpec, target: &Target) -> [u32; 2] {
        let t = spec.tuning(target).unwrap();
        [t.waves / t.rows, spec.blocks(target).unwrap()[1]]
    }

    #[test]
    fn fixed_gemm_summation_order_is_independent_of_token_count() {
        let target = Target::parse("sm_90a").unwrap();
        let mut others = 0;
        for (rows, cols) in
            [(40, 64), (576, 576), (1536, 576), (4096, 14336), (8448, 4096), (128_256, 4096)]
        {
            for (format, finish) in
                [("Q4_K", Finish::Store), ("F16", Finish::Add), ("Q8_0", Finish::Silu)]
            {
                let format = Format::by_name(format).unwrap();
                if cols % format.block_elems() != 0 {
                    continue;
                }
                let segments =
                    vec![Segment { format, rows, bias: false }; if finish.gated() { 2 } else { 1 }];
                let of = |tokens, fixed| SmallGemmSpec {
                    segments: segments.clone(),
                    finish,
                    fixed,
                    ..SmallGemmSpec::new(format, rows, cols, tokens)
                };
                let one = order(&of(1, true), &target);
                for tokens in 2..=64 {
                    assert_eq!(
                        order(&of(tokens, true), &target),
                        one,
                        "{}",
                        crate::spec::Spec::from(of(tokens, true))
                    );
                    others += usize::from(
                        order(&of(tokens, false), &target) != order(&of(1, false), &target),
                    );
                }
            }
        }
        assert!(others > 0, "what is not fixed has other orders");
    }
}
