//! Matrix × the rows of a batch (one token of each of many sequences) or of a prompt, on the
//! asynchronous matrix units of sm_90a, weights unpacked into registers: `gpu/batch_gemm.h`.

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

/// A product with the rows of a batch or of a prompt. Any number of tokens up to the spec's can be
/// launched.
///
/// Numerics: as for [`GemmSpec`](crate::gemm::GemmSpec). Weights are rounded to f16 (twice: the
/// group's scale, and its product with the code); activations are f16, sums f32. The order of a
/// result's sum depends on the shape of the weights and on the tuning, which differs with the
/// number of tokens. If a row must have the same bits for any other rows, use
/// [`SmallGemmSpec`](crate::small_gemm::SmallGemmSpec).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchGemmSpec {
    /// Length of a row; a multiple of 32.
    pub cols: usize,
    /// Largest number of tokens: 1 to [`MOST`]. More than [`WIDEST`] are multiplied in tiles of as
    /// many.
    pub tokens: usize,
    /// The weight matrices: one to three.
    pub segments: Vec<Segment>,
    /// The last operation: bias, residual or gated unit.
    pub finish: Finish,
    /// Results are f16 in turned tiles, the input of another product.
    pub turned: bool,
    /// The division of the work; `None`: the default.
    pub tuning: Option<BatchGemmTuning>,
}

arguments! {
    /// The arguments of a product with the rows of a batch. Weights are row records of [`Layout`],
    /// biases f32 per row, results `tokens × rows` f32, or f16 in turned tiles (then their columns
    /// up to a multiple of 128 are zeroed).
    BatchGemmArgs {
        /// `tokens × cols` f16 in turned tiles ([`turned_index`](crate::mma::turned_index)), made
        /// by [`TilesSpec`](crate::tiles::TilesSpec) or by a product with `turned`.
        x: Pointer,
        /// `tokens × rows` f32, or null.
        residual: Pointer,
    } segments {
        /// [`BatchGemmSpec::part_bytes`] of working memory.
        parts: Pointer,
        /// [`BatchGemmSpec::counters`] u32, zero before the first launch and after each launch.
        counters: Pointer,
        /// Number of tokens.
        tokens: U32,
        /// Number of blocks in the grid.
        blocks: U32,
    }
}

/// The division of the work among blocks and warps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchGemmTuning {
    /// Groups of four warps that multiply: 2 to 4.
    pub groups: u32,
    /// Tiles of 64 rows of a group: 1 or 2.
    pub tiles: u32,
    /// Units of 128 columns by which weights are requested ahead.
    pub ahead: u32,
    /// Number of units of X in shared memory.
    pub stages: u32,
    /// Products that are started together, as a batch: 1, 2 or 4.
    pub deep: u32,
    /// Blocks per multiprocessor: 1, or 2 with up to 16 tokens.
    pub blocks_per_unit: u32,
    /// Batches that run while weights for the next are unpacked: 1 or 3.
    pub flight: u32,
}

impl Variant for BatchGemmTuning {}

const NAME: &str = "batch_gemm";
/// Multiprocessors of an H100 SXM or H200, the usual cards of the family. With another number some
/// blocks wait for others, or some multiprocessors idle.
const UNITS: u32 = 132;
/// Largest number of tokens.
pub const MOST: usize = 1 << 16;
/// Largest number of tokens of a tile: the widest product.
pub const WIDEST: usize = 256;
/// Tokens that are stored together at the end of a tile.
const PIECE: usize = 32;
/// Nanoseconds of the end of a tile on an H200: of storing results of a piece, of storing and
/// loading a piece's part of the sum of a block, and of meeting the other blocks of the tile.
const STORE_NS: usize = 700;
const PART_NS: usize = 250;
const MEET_NS: usize = 3000;
/// Bytes of shared memory of a block beside the dynamic ones: its barriers, and the driver's part.
const BESIDE: usize = 1536;

/// Whether a target has the kernel.
#[must_use]
pub fn covers(target: &Target) -> bool {
    target.arch().matrix == MatrixUnit::Wgmma
}

/// Start values of the tuning: of those for the fewest sufficient tokens, the fastest is taken.
/// Measured on an H100 (`docs/performance.md`).
const STARTS: [Start; 7] = [
    Start { up_to: 32, unit_ns: 880, tuning: BatchGemmTuning::of([3, 1, 6, 4, 1, 1, 3]) },
    Start { up_to: 32, unit_ns: 630, tuning: BatchGemmTuning::of([2, 1, 8, 4, 1, 1, 3]) },
    Start { up_to: 64, unit_ns: 1000, tuning: BatchGemmTuning::of([3, 1, 5, 4, 1, 1, 3]) },
    Start { up_to: 64, unit_ns: 720, tuning: BatchGemmTuning::of([2, 1, 6, 5, 1, 1, 3]) },
    Start { up_to: 128, unit_ns: 900, tuning: BatchGemmTuning::of([2, 1, 6, 3, 1, 1, 3]) },
    Start { up_to: 192, unit_ns: 1200, tuning: BatchGemmTuning::of([2, 1, 6, 2, 1, 1, 3]) },
    Start { up_to: MOST, unit_ns: 1480, tuning: BatchGemmTuning::of([2, 1, 6, 2, 1, 1, 3]) },
];

/// A tuning, and the largest number of tokens that it is for.
struct Start {
    up_to: usize,
    /// Nanoseconds of a unit of one of its blocks: a product of 28672 × 4096 in Q4_K without the
    /// ends of tiles, divided by the units of a block.
    unit_ns: usize,
    tuning: BatchGemmTuning,
}

impl BatchGemmTuning {
    /// The fields in order.
    #[must_use]
    pub const fn of(
        [groups, tiles, ahead, stages, deep, blocks_per_unit, flight]: [u32; 7],
    ) -> BatchGemmTuning {
        BatchGemmTuning { groups, tiles, ahead, stages, deep, blocks_per_unit, flight }
    }

    /// Rows of a block.
    const fn rows(&self) -> u32 {
        64 * self.groups * self.tiles
    }

    /// Threads of a block: one extra group loads X.
    const fn threads(&self) -> u32 {
        128 * (self.groups + 1)
    }
}

/// Largest dynamic shared memory of a block.
fn room(target: &Target, t: &BatchGemmTuning) -> usize {
    (target.arch().shared_per_block / t.blocks_per_unit.max(1)) as usize - BESIDE
}

/// Bytes of 32 weights in `gpu/span_ring.h`: a section smaller than a word takes a whole word.
fn span_bytes(layout: &Layout) -> usize {
    let [ones, twos, fours, eights] = layout.codes.map(|at| at.is_some());
    let big = if layout.block().is_none() || fours || eights { 16 * 32 / layout.unit() } else { 0 };
    let codes = big + if twos { 8 } else { 0 } + if ones { 4 } else { 0 };
    let word = |there: bool| if there { 4 } else { 0 };
    let book = layout
        .vectors
        .map_or(0, |v| 32 / v.book.grid.vector + word(v.signs.is_some()) + word(v.high.is_some()));
    codes + book + word(layout.groups.bytes() > 0) + word(layout.blocks.bytes() > 0)
}

impl BatchGemmSpec {
    /// A plain product with one matrix.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize, tokens: usize) -> BatchGemmSpec {
        let segments = vec![Segment { format, rows, bias: false }];
        BatchGemmSpec { cols, tokens, segments, finish: Finish::Store, turned: false, tuning: None }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    /// Tokens of the products: one of the widths in `gpu/held.h`.
    fn width(&self) -> usize {
        let tokens = self.tokens.min(WIDEST);
        tokens.next_multiple_of(if tokens <= 64 { 8 } else { 32 })
    }

    /// Number of tiles of tokens.
    fn token_tiles(&self) -> usize {
        self.tokens.div_ceil(WIDEST).max(1)
    }

    /// Bytes of 32 weights of the widest format.
    fn span_bytes(&self) -> Result<usize, SpecError> {
        let mut most = 0;
        for s in &self.segments {
            most = most.max(span_bytes(&Layout::new(s.format, self.cols)?));
        }
        Ok(most)
    }

    /// Bytes of the rings of X and of weights.
    fn rings(&self, t: &BatchGemmTuning) -> Result<usize, SpecError> {
        let [groups, tiles, ahead, stages] =
            [t.groups, t.tiles, t.ahead, t.stages].map(|n| n as usize);
        Ok(stages * 256 * self.width() + ahead * 2 * tiles * 128 * groups * self.span_bytes()?)
    }

    /// Dynamic shared memory: the rings at a multiple of 1024, and results of [`PIECE`] tokens for
    /// each group.
    fn shared(&self, t: &BatchGemmTuning) -> Result<usize, SpecError> {
        let at_once = self.width().min(PIECE);
        Ok(1024 + self.rings(t)? + t.groups as usize * at_once * 68 * 4)
    }

    /// Number of row tiles.
    fn row_tiles(&self, t: &BatchGemmTuning) -> usize {
        self.weights().tiles(t.rows() as usize, if self.turned { 128 } else { 1 })
    }

    /// Number of tiles.
    fn tiles(&self, t: &BatchGemmTuning) -> usize {
        self.row_tiles(t).saturating_mul(self.token_tiles()).max(1)
    }

    /// Blocks of a launch, and its nanoseconds. As many blocks as run at the same time, or fewer
    /// that share tiles evenly. After the last unit of a block, its rings must have room for one
    /// piece of each block that it shares a tile with.
    fn blocks_and_ns(&self, t: &BatchGemmTuning, unit_ns: usize) -> (usize, usize) {
        let (tiles, steps) = (self.tiles(t), self.cols.div_ceil(128).max(1));
        let (all, most) = (tiles.saturating_mul(steps), (UNITS * t.blocks_per_unit) as usize);
        let pieces = t.tiles as usize * self.width().div_ceil(PIECE);
        let piece_bytes = self.width().min(PIECE) * 2 * 128 * t.groups as usize;
        let room = self.rings(t).unwrap_or(0) / piece_bytes.max(1);
        // Blocks that share a tile, at most.
        let sharers = |blocks: usize| {
            if all.is_multiple_of(blocks) && steps.is_multiple_of(all / blocks) {
                return steps / (all / blocks);
            }
            (steps.max(2) - 2) / (all / blocks).max(1) + 2
        };
        let ns = |blocks: usize| {
            let (each, shared) = (all.div_ceil(blocks), sharers(blocks));
            let even = all.is_multiple_of(blocks);
            let ends = if even && each.is_multiple_of(steps) {
                each / steps * pieces * STORE_NS
            } else if even && steps.is_multiple_of(each) {
                MEET_NS + pieces * PART_NS + pieces.div_ceil(shared) * STORE_NS
            } else {
                let whole = each.saturating_sub(1) / steps;
                MEET_NS + (whole + 1) * pieces * STORE_NS + shared * pieces * PART_NS
            };
            each * unit_ns + ends
        };
        let even = (1..=most / tiles).map(|n| n * tiles).filter(|blocks| *blocks <= all);
        let fits = |blocks: &usize| *blocks <= tiles || sharers(*blocks) <= room + 1;
        let costs = even.chain([most.min(all)]).filter(fits).map(|blocks| (blocks, ns(blocks)));
        costs.min_by_key(|&(n, ns)| (ns, std::cmp::Reverse(n))).unwrap_or((1, all))
    }

    /// Nanoseconds of a unit with these numbers of groups and tiles.
    fn unit_ns(&self, t: &BatchGemmTuning) -> usize {
        let tokens = self.tokens.min(WIDEST);
        let like = |s: &&Start| tokens <= s.up_to && s.tuning.rows() == t.rows();
        STARTS.iter().find(like).map_or(STARTS[6].unit_ns, |s| s.unit_ns)
    }

    /// Blocks of a launch.
    fn blocks_of(&self, t: &BatchGemmTuning) -> u32 {
        self.blocks_and_ns(t, self.unit_ns(t)).0 as u32
    }

    /// Bytes of `parts`: two tiles for each block, the tile it begins in and the tile it ends in.
    fn parts_of(&self, t: &BatchGemmTuning) -> usize {
        2 * self.blocks_of(t) as usize * t.rows() as usize * self.width() * 4
    }

    /// Blocks of a launch, also the kernel's last argument.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn blocks(&self, target: &Target) -> Result<u32, SpecError> {
        Ok(self.blocks_of(&self.tuning(target)?))
    }

    /// Bytes of `parts`.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn part_bytes(&self, target: &Target) -> Result<usize, SpecError> {
        Ok(self.parts_of(&self.tuning(target)?))
    }

    /// Number of counters (u32): one for each tile.
    ///
    /// # Errors
    /// As [`Family::tuning`].
    pub fn counters(&self, target: &Target) -> Result<usize, SpecError> {
        Ok(self.tiles(&self.tuning(target)?))
    }
}

impl Family for BatchGemmSpec {
    const NAME: &'static str = NAME;
    type Args<A> = BatchGemmArgs<A>;
    choice!(BatchGemmTuning);

    fn text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (weights, out) =
            (SegmentsLabel(&self.segments), if self.turned { ", turned" } else { "" });
        write!(f, "{weights} × {}, {:?}{out}, {} tokens", self.cols, self.finish, self.tokens)
    }

    fn usual(&self, target: &Target) -> Result<BatchGemmTuning, SpecError> {
        let tokens = self.tokens.min(WIDEST);
        let up_to = STARTS.iter().map(|s| s.up_to).find(|n| tokens <= *n);
        let mut best = None;
        for s in STARTS.iter().filter(|s| Some(s.up_to) == up_to) {
            let mut t = s.tuning;
            let room = room(target, &t);
            // Wider weights: requested fewer units ahead.
            while t.ahead > 2 && self.shared(&t)? > room {
                t.ahead -= 1;
            }
            while t.stages > 2 && self.shared(&t)? > room {
                t.stages -= 1;
            }
            let cost = (self.shared(&t)? > room, self.blocks_and_ns(&t, s.unit_ns).1);
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, t));
            }
        }
        Ok(best.map_or(STARTS[0].tuning, |(_, t)| t))
    }

    fn check(&self, target: &Target, t: &BatchGemmTuning) -> Result<(), SpecError> {
        require(covers(target), NAME, || format!("{target} has no wgmma"))?;
        require((1..=MOST).contains(&self.tokens), NAME, || {
            format!("{} tokens: 1 to {MOST} are supported", self.tokens)
        })?;
        require(self.cols > 0 && self.cols.is_multiple_of(32), NAME, || {
            format!("rows of {} weights: the number must be a multiple of 32", self.cols)
        })?;
        require(self.finish != Finish::Add || !self.turned, NAME, || {
            "a residual needs results in f32".to_owned()
        })?;
        require(!self.turned || self.weights().results().len() == 1, NAME, || {
            "results in `turned` tiles need exactly one weight".to_owned()
        })?;
        self.weights().check(NAME, 1)?;
        let units = (self.tiles(t) + 1).saturating_mul(self.cols.div_ceil(128));
        require(units < 1 << 30, NAME, || format!("{units} units"))?;
        let fine = (2..=4).contains(&t.groups)
            && (1..=2).contains(&t.tiles)
            && (2..=16).contains(&t.ahead)
            && (1..=8).contains(&t.stages)
            && [1, 2, 4].contains(&t.deep)
            && [1, 3].contains(&t.flight)
            // If the registers of a batch are reused only in the next unit, ptxas makes all
            // products wait for each other.
            && 8 * t.tiles / t.deep > t.flight + 1
            && (1..=2).contains(&t.blocks_per_unit)
            // Results of a thread, in addition to about 90 registers.
            && t.tiles as usize * self.width() / 2 <= [128, 64, 32][t.groups as usize - 2]
            && (t.blocks_per_unit == 1 || self.width() <= 16 && t.groups == 2 && t.tiles == 1);
        require(fine, NAME, || format!("tuning {t:?} is not supported on {target}"))
    }

    fn candidates(&self, _: &Target) -> Vec<BatchGemmTuning> {
        let mut all = vec![];
        for [groups, tiles, blocks_per_unit] in
            [[2, 1, 1], [2, 1, 2], [3, 1, 1], [4, 1, 1], [2, 2, 1]]
        {
            for [ahead, stages] in [[8, 4], [6, 4], [6, 3], [5, 4], [4, 4], [4, 3], [3, 2], [2, 3]]
            {
                for [deep, flight] in [[1, 3], [2, 1]] {
                    let one = [groups, tiles, ahead, stages, deep, blocks_per_unit, flight];
                    all.push(BatchGemmTuning::of(one));
                }
            }
        }
        all
    }

    fn block(&self, target: &Target, t: &BatchGemmTuning) -> Result<Block, SpecError> {
        let bytes = self.shared(t)?;
        require(bytes <= room(target, t), NAME, || {
            format!("{bytes} bytes of shared memory are too many (tuning {t:?})")
        })?;
        let shared = shared_bytes(NAME, target, bytes, 128, "use a tuning with fewer stages")?;
        Ok(Block { wave: 32, threads: t.threads(), shared })
    }

    fn render(
        &self,
        target: &Target,
        t: &BatchGemmTuning,
        block: Block,
    ) -> Result<Kernel, SpecError> {
        let shape = Shape::new()
            .number("COLS", self.cols)
            .number("N", self.width())
            .number("BN", t.rows())
            .number("GROUPS", t.groups)
            .number("TILES", t.tiles)
            .number("AHEAD", t.ahead)
            .number("STAGES", t.stages)
            .number("DEEP", t.deep)
            .number("FLIGHT", t.flight)
            .number("SPAN_BYTES", self.span_bytes()?)
            .flag("TURNED", self.turned)
            .flag("MANY", self.tokens > WIDEST)
            .choice("OUT", &Results::Singles)
            .and(self.weights().shape()?);
        let macros = Product::of(target, 32).macros().set("KJ_MIN_BLOCKS", t.blocks_per_unit);
        let kernel = of_shape(NAME, &shape, macros, block.wave, block.threads);
        let options = kernel.options.clone().arch_specific(true);
        Ok(Kernel { shared: block.shared, options, ..kernel })
    }

    fn grid(&self, _: &Target, t: &BatchGemmTuning, _: u32, size: Size) -> Result<Grid, SpecError> {
        let blocks = self.blocks_of(t);
        let grid = Grid::of([blocks, 1, 1])
            .number("tokens", size.tokens.min(self.tokens) as u32)
            .number("blocks", blocks);
        let counters = self.tiles(t);
        Ok(grid.memory("parts", self.parts_of(t)).counters("counters", counters))
    }

    fn work(&self, size: Size) -> Work {
        self.weights().work(1, size.tokens, 2, if self.turned { 2 } else { 4 })
    }

    fn timed_at(&self, _: usize) -> Size {
        Size { tokens: self.tokens, past: 0 }
    }
}
