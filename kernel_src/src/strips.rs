//! Matrix × a few rows of activations on the matrix units, weights straight from memory to registers: `gpu/strips.hip`. For one more token of
//! each of several sequences; for prompts there are the tiles of [`GemmSpec`](crate::gemm::GemmSpec).

use crate::format::Format;
use crate::kernel::{Kernel, SpecError, require, shared_bytes, source};
use crate::layout::Layout;
use crate::product::Product;
use crate::segments::{Finish, Segment, Segments};
use kjit_engine::{Geometry, MatrixUnit, Options, Target};

/// A product. Arguments of the kernel, in order: `x, residual, w0, b0, y0, w1, b1, y1, w2, b2, y2, parts, counters` (pointers, null where
/// there is none), `tokens, splits` (u32).
///
/// `x` is `tokens × cols` halves in strips ([`strip_index`](crate::product::strip_index)), made by
/// [`TilesSpec`](crate::tiles::TilesSpec) or by a product with `strips`; weights are row records of [`Layout`]; `b` is f32 per row; `y` and
/// `residual` are `tokens × rows` f32, `y` in strips where `strips`. `parts` ([`StripsSpec::part_bytes`]) and `counters`
/// ([`StripsSpec::counters`] u32, zero before the first launch and after every one) are needed with more than one split. Any number of
/// tokens up to the spec's can be launched.
///
/// Numerics: those of [`GemmSpec`](crate::gemm::GemmSpec): weights are rounded to halves (twice: the group's scale, the product with it),
/// activations are halves, sums f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StripsSpec {
    /// Length of a row; a multiple of 32.
    pub cols: usize,
    /// Tokens at most: 1 to 64.
    pub tokens: usize,
    /// The weights: one to three.
    pub segments: Vec<Segment>,
    /// The end.
    pub finish: Finish,
    /// Results are halves in strips, the input of another product.
    pub strips: bool,
    /// How the work is cut; `None`: the default.
    pub tuning: Option<StripsTuning>,
}

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StripsTuning {
    /// Waves of a block.
    pub waves: u32,
    /// Of these, side by side over the rows; the others share the columns.
    pub rows: u32,
    /// Times sixteen rows of a wave: 1 or 2.
    pub tiles: u32,
    /// Steps of 128 columns that weights are asked for ahead.
    pub ahead: u32,
    /// Blocks of a compute unit, which bounds registers.
    pub blocks_per_unit: u32,
}

const NAME: &str = "strips";
/// Blocks that should be there, two for each multiprocessor of the family's usual cards (H100 SXM, H200): another number costs a few
/// percent.
const BLOCKS_WANTED: usize = 264;

/// Whether a target has the kernel: the units of `mma.sync`, whose lanes hold pairs of neighbouring columns.
#[must_use]
pub fn covers(target: &Target) -> bool {
    matches!(target.arch().matrix, MatrixUnit::MmaSync | MatrixUnit::Wgmma)
}

impl StripsSpec {
    /// A plain product with one matrix.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize, tokens: usize) -> StripsSpec {
        let segments = vec![Segment { format, rows, bias: false }];
        StripsSpec { cols, tokens, segments, finish: Finish::Store, strips: false, tuning: None }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    fn check(&self, target: &Target) -> Result<(), SpecError> {
        require(covers(target), NAME, || format!("{target} has no units of mma.sync"))?;
        require((1..=64).contains(&self.tokens), NAME, || format!("{} tokens, it takes 1 to 64", self.tokens))?;
        require(self.cols > 0 && self.cols.is_multiple_of(32), NAME, || {
            format!("rows of {}: it takes multiples of 32", self.cols)
        })?;
        require(self.finish != Finish::Add || !self.strips, NAME, || "a residual goes with results in f32".to_owned())?;
        self.weights().check(NAME, 1)
    }

    /// Tokens of a block.
    fn block_tokens(&self) -> usize {
        self.tokens.next_multiple_of(8)
    }

    /// Steps of 128 columns.
    fn steps(&self) -> usize {
        self.cols.div_ceil(128)
    }

    /// Measured on an H200 (`docs/performance.md`).
    fn default_tuning(&self) -> StripsTuning {
        let wide = |rows: u32| self.weights().tiles(16 * rows as usize, 1) >= BLOCKS_WANTED;
        // Two tiles of rows share the strips; wider weights of both do not fit the registers.
        let narrow = self.segments.iter().all(|s| Layout::new(s.format, self.cols).is_ok_and(|l| l.unit() == 32));
        // Plenty of rows: many small blocks, so that none is left over at the end. Few: the waves of a block share 16 rows.
        let (waves, rows, tiles, blocks_per_unit) = match (self.block_tokens(), wide(2)) {
            (8, true) => (4, 2, 1, 7),
            (8, false) => (16, 1, 1, 1),
            (16, true) if narrow => (4, 1, 2, 4),
            (16 | 24 | 32, true) => (4, 2, 1, 4),
            (_, true) => (8, 8, 1, 2),
            (_, false) => (8, 1, 1, 2),
        };
        let rows = if self.finish.gated() && tiles == 1 { rows.max(2) } else { rows };
        StripsTuning { waves, rows, tiles, ahead: 1, blocks_per_unit }
    }

    /// The tuning in force.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    pub fn tuning(&self, target: &Target) -> Result<StripsTuning, SpecError> {
        self.check(target)?;
        let t = self.tuning.unwrap_or_else(|| self.default_tuning());
        let fine = t.waves.is_power_of_two()
            && t.waves <= 16
            && t.rows.is_power_of_two()
            && t.rows <= t.waves
            && (1..=2).contains(&t.tiles)
            && (1..=4).contains(&t.ahead)
            && (1..=8).contains(&t.blocks_per_unit)
            && (!self.finish.gated() || t.rows * t.tiles >= 2);
        require(fine, NAME, || format!("{t:?} on {target}"))?;
        Ok(t)
    }

    /// What is worth trying on a device.
    #[must_use]
    pub fn space() -> Vec<StripsTuning> {
        let mut all = vec![];
        for (waves, blocks_per_unit) in [(4, 4), (4, 7), (8, 2), (8, 4), (16, 1), (16, 2)] {
            for rows in [1, 2, 4, 8].into_iter().filter(|r| *r <= waves) {
                for tiles in [1, 2] {
                    for ahead in [1, 3] {
                        all.push(StripsTuning { waves, rows, tiles, ahead, blocks_per_unit });
                    }
                }
            }
        }
        all
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// A combination that is not covered.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let t = self.tuning(target)?;
        let (tokens, rows) = (self.block_tokens(), 16 * t.tiles * t.rows);
        let constants = Product::of(target, 32)
            .constants(kjit_engine::Constants::new())
            .set("KJ_BLOCK", 32 * t.waves)
            .set("KJ_MIN_BLOCKS", t.blocks_per_unit)
            .set("COLS", self.cols as i64)
            .set("BM", tokens as i64)
            .set("BN", rows)
            .set("ROW_TILES", t.tiles)
            .set("WAVES_ROWS", t.rows)
            .set("AHEAD", t.ahead)
            .set("OUT_F16", i64::from(self.strips))
            .set("EXPERTS", 1);
        let (header, constants) = self.weights().render(constants)?;
        let stage = (t.waves / t.rows) as usize * tokens * (rows as usize + 4) * 4;
        let shared = shared_bytes(NAME, target, stage, 128, "a tuning with more waves over the rows")?;
        Ok(Kernel {
            source: source(NAME, "strips.hip").file("weights_gen.h", header).entry(NAME),
            constants,
            options: Options::wave(32),
            entry: NAME,
            block: 32 * t.waves,
            shared,
        })
    }

    /// Blocks over the rows.
    ///
    /// # Errors
    /// As [`StripsSpec::tuning`].
    pub fn tiles(&self, target: &Target) -> Result<usize, SpecError> {
        let t = self.tuning(target)?;
        Ok(self.weights().tiles((16 * t.tiles * t.rows) as usize, 1))
    }

    /// Blocks that share a result, each with a part of the columns: also the kernel's last argument.
    ///
    /// # Errors
    /// As [`StripsSpec::tuning`].
    pub fn splits(&self, target: &Target) -> Result<u32, SpecError> {
        let t = self.tuning(target)?;
        // Two steps of each wave at least.
        let most = self.steps() / (2 * (t.waves / t.rows) as usize);
        Ok((BLOCKS_WANTED / self.tiles(target)?.max(1)).clamp(1, most.clamp(1, 8)) as u32)
    }

    /// The launch.
    ///
    /// # Errors
    /// As [`StripsSpec::kernel`].
    pub fn geometry(&self, target: &Target) -> Result<Geometry, SpecError> {
        let mut geometry = self.kernel(target)?.launch(1);
        geometry.grid = [self.tiles(target)? as u32, self.splits(target)?, 1];
        Ok(geometry)
    }

    /// Bytes of `parts`.
    ///
    /// # Errors
    /// As [`StripsSpec::tuning`].
    pub fn part_bytes(&self, target: &Target) -> Result<usize, SpecError> {
        let (t, splits) = (self.tuning(target)?, self.splits(target)? as usize);
        let each = self.block_tokens() * (16 * t.tiles * t.rows) as usize * 4;
        Ok(if splits > 1 { self.tiles(target)? * splits * each } else { 0 })
    }

    /// Counters (u32).
    ///
    /// # Errors
    /// As [`StripsSpec::tuning`].
    pub fn counters(&self, target: &Target) -> Result<usize, SpecError> {
        Ok(if self.splits(target)? > 1 { self.tiles(target)? } else { 0 })
    }
}
