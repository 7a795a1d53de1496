//! Matrix × matrix: all tokens of a prompt or of a batch at once, weights of any format read once. `gpu/gemm.hip` on every matrix unit,
//! `gpu/gemm_wgmma.hip` on sm_90a.

use crate::format::{Encoding, Format};
use crate::kernel::{Kernel, SpecError, require, shared_bytes, source};
use crate::product::{Product, TILE};
use crate::segments::{Finish, Segment, Segments};
use crate::tuning::families::{self, GROUP_COST, GROUP_UNITS, GROUPS, GROUPS_FROM, Gemm, Groups};
use crate::tuning::shipped;
use kjit_engine::{Geometry, MatrixUnit, Options, Target};

/// A product of matrices. Arguments of the kernel, in order: `x, residual, w0, b0, y0, w1, b1, y1, w2, b2, y2, parts, counters,
/// tile_expert` (pointers, null where there is none), `tokens, splits, token_tiles, tiles, blocks` (u32, from [`GemmLaunch`]).
///
/// `x` is `tokens × cols` halves in tiles ([`tiled_bytes`](crate::product::tiled_bytes), made by
/// [`TilesSpec`](crate::tiles::TilesSpec), by attention, or by a product with `tiled` results); weights are row records of [`Layout`](crate::layout::Layout),
/// with experts one matrix after the other; `b` is f32 per row; `y` and `residual` are `tokens × rows` f32, `y` in tiles where `tiled`
/// (its columns up to a multiple of 64 are zeroed). `parts` and `counters` are needed with more than one split: counters are u32,
/// zero before the first launch and after every one. `tile_expert` is [`MoeSpec`](crate::moe::MoeSpec)'s.
///
/// Numerics: weights are rounded to halves (twice: the group's scale, the product with it), activations are halves, sums f32.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GemmSpec {
    /// Length of a row; a multiple of 32.
    pub cols: usize,
    /// The weights: one to three.
    pub segments: Vec<Segment>,
    /// The end.
    pub finish: Finish,
    /// Results are halves in tiles, the input of another product.
    pub tiled: bool,
    /// Matrices in each weight; with more than one, every tile of tokens has its own.
    pub experts: usize,
    /// About how many tokens launches will have (with experts: each expert), which decides the tile. Any number can be launched.
    pub tokens: usize,
    /// How the work is cut; `None`: the default of the target's family.
    pub tuning: Option<GemmTuning>,
}

/// How the work is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmTuning {
    /// `gpu/gemm.hip`: a block is a grid of waves.
    Waves {
        /// Lanes in a wave.
        wave: u32,
        /// Tokens of a block.
        tokens: u32,
        /// Rows of a block.
        rows: u32,
        /// Waves side by side over the tokens, and over the rows.
        waves: (u32, u32),
        /// Steps of 64 columns between barriers.
        depth: u32,
        /// Such steps that weights are fetched before they are expanded.
        ahead: u32,
        /// Tiles of activations in shared memory.
        stages: u32,
    },
    /// `gpu/gemm_wgmma.hip`: groups of four warps fill and multiply.
    Groups {
        /// Tokens of a block: 16, 32, 64, 128 or 256.
        tokens: u32,
        /// Tiles in shared memory.
        stages: u32,
        /// Stages that weights are fetched before they are expanded.
        ahead: u32,
        /// Groups that fill; one with 256 tokens, whose products need the registers.
        fillers: u32,
    },
}

impl GemmTuning {
    /// Tokens of a block.
    #[must_use]
    pub const fn tokens(&self) -> u32 {
        match *self {
            GemmTuning::Waves { tokens, .. } | GemmTuning::Groups { tokens, .. } => tokens,
        }
    }

    const fn rows(&self) -> u32 {
        match *self {
            GemmTuning::Waves { rows, .. } => rows,
            GemmTuning::Groups { .. } => GROUP_ROWS,
        }
    }

    /// Bytes of dynamic shared memory.
    const fn shared(&self) -> usize {
        let bytes = match *self {
            GemmTuning::Waves { tokens, rows, depth, stages, .. } => depth * (stages * tokens + 2 * rows) * 128,
            // Stages at a multiple of 1024; then results of 32 tokens for each group that multiplies.
            GemmTuning::Groups { tokens, stages, .. } => {
                let at_once = if tokens < 32 { tokens } else { 32 };
                1024 + stages * (tokens + GROUP_ROWS) * 128 + 2 * at_once * 68 * 4
            }
        };
        bytes as usize
    }
}

const GROUP_ROWS: u32 = 128;

/// A launch: its shape and the arguments that follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmLaunch {
    /// Grid, block, shared memory.
    pub geometry: Geometry,
    /// Argument: blocks that share a result, each a part of the columns.
    pub splits: u32,
    /// Argument: tiles of tokens.
    pub token_tiles: u32,
    /// Argument: tiles in all.
    pub tiles: u32,
    /// Argument: blocks in the grid.
    pub blocks: u32,
    /// Bytes of `parts`.
    pub parts_bytes: usize,
    /// Counters.
    pub counters: usize,
}

const NAME: &str = "gemm";
const NAME_GROUPS: &str = "gemm_wgmma";

impl GemmSpec {
    /// A plain product with one matrix, for about so many tokens.
    #[must_use]
    pub fn new(format: &'static Format, rows: usize, cols: usize, tokens: usize) -> GemmSpec {
        let segments = vec![Segment { format, rows, bias: false }];
        GemmSpec { cols, segments, finish: Finish::Store, tiled: false, experts: 1, tokens, tuning: None }
    }

    fn weights(&self) -> Segments<'_> {
        Segments { cols: self.cols, all: &self.segments, finish: self.finish }
    }

    fn check(&self) -> Result<(), SpecError> {
        require(self.cols > 0 && self.cols.is_multiple_of(32), NAME, || {
            format!("rows of {}: it takes multiples of 32", self.cols)
        })?;
        require(self.finish != Finish::Add || !self.tiled, NAME, || "a residual goes with results in f32".to_owned())?;
        require((1..=1 << 16).contains(&self.experts), NAME, || format!("{} experts", self.experts))?;
        self.weights().check(NAME, self.experts)
    }

    fn has(&self, encoding: Encoding) -> bool {
        self.segments.iter().any(|s| s.format.encoding == encoding)
    }

    /// The family's, whatever is shipped for this very size.
    pub(crate) fn default_tuning(&self, target: &Target) -> GemmTuning {
        // F32 pieces take all of a filler's registers.
        let plain = self.has(Encoding::F32);
        if target.arch().matrix == MatrixUnit::Wgmma && self.tokens >= GROUPS_FROM && !plain {
            let row_tiles = self.weights().tiles(GROUP_ROWS as usize, 1);
            let cost = |n: u32| {
                let tiles = row_tiles * self.tokens.div_ceil(n as usize);
                tiles.div_ceil(GROUP_UNITS) * (GROUP_COST + n as usize)
            };
            // Experts' tiles are mostly not full: 64 tokens (128 experts of 2048 × 768, 2048 tokens: 0.95 ms against 1.04 with 128).
            let usable = GROUPS.iter().filter(|g| self.experts == 1 || g.tokens == 64);
            let &Groups { tokens, stages, mut ahead, fillers } =
                usable.min_by_key(|g| cost(g.tokens)).unwrap_or(&GROUPS[0]);
            if self.has(Encoding::BF16) {
                ahead = 1; // two stages of them in registers spill
            }
            return GemmTuning::Groups { tokens, stages, ahead, fillers };
        }
        let wave = target.default_wave();
        GemmSpec::waves(self.tokens, target, wave)
    }

    /// The default of `gpu/gemm.hip` at a wave width.
    #[must_use]
    pub fn waves(tokens: usize, target: &Target, wave: u32) -> GemmTuning {
        let &Gemm { tokens, rows, waves, depth, ahead, stages, .. } = families::gemm_block(target, wave, tokens);
        GemmTuning::Waves { wave, tokens, rows, waves, depth, ahead, stages }
    }

    /// What is worth trying on a device.
    #[must_use]
    pub fn space(target: &Target) -> Vec<GemmTuning> {
        let mut all = vec![];
        for &wave in target.waves() {
            for tokens in [16, 32, 64, 128] {
                for (rows, waves) in [(64, (1, 2)), (64, (2, 2)), (128, (1, 4)), (128, (2, 4)), (256, (2, 4))] {
                    for (depth, ahead, stages) in [(1, 1, 3), (1, 2, 3), (1, 1, 2), (2, 1, 2), (2, 1, 3), (4, 1, 2)] {
                        all.push(GemmTuning::Waves { wave, tokens, rows, waves, depth, ahead, stages });
                    }
                }
            }
        }
        if target.arch().matrix == MatrixUnit::Wgmma {
            for (tokens, fillers) in [(16, 2), (32, 2), (64, 2), (128, 2), (256, 1)] {
                for (stages, ahead) in [(4, 1), (4, 2), (6, 1), (6, 2)] {
                    all.push(GemmTuning::Groups { tokens, stages, ahead, fillers });
                }
            }
        }
        all
    }

    /// The tuning in force.
    ///
    /// # Errors
    /// Sizes that are not covered, a tuning that the target cannot run.
    pub fn tuning(&self, target: &Target) -> Result<GemmTuning, SpecError> {
        self.check()?;
        let t = self.tuning.or_else(|| shipped::choice(self, target)).unwrap_or_else(|| self.default_tuning(target));
        let fine = match t {
            GemmTuning::Waves { wave, tokens, rows, waves: (over_tokens, over_rows), depth, ahead, stages } => {
                let n = Product::of(target, wave).columns;
                let threads = over_tokens * over_rows * wave;
                target.waves().contains(&wave)
                    && [16, 32, 64, 128].contains(&tokens)
                    && [32, 64, 128, 256].contains(&rows)
                    && over_tokens > 0
                    && over_rows > 0
                    && tokens.is_multiple_of(16 * over_tokens)
                    && rows.is_multiple_of(n * over_rows)
                    && (!self.finish.gated() || rows.is_multiple_of(32 * over_rows))
                    && (1..=4).contains(&depth)
                    && (1..=4).contains(&ahead)
                    && (2..=4).contains(&stages)
                    && threads <= target.arch().max_threads
                    && (rows * 2 * depth).is_multiple_of(threads)
                    // The results' stage takes the tiles' place.
                    && over_tokens * over_rows * 16 * (rows / over_rows + 4) * 4 <= t.shared() as u32
            }
            GemmTuning::Groups { tokens, stages, ahead, fillers } => {
                target.arch().matrix == MatrixUnit::Wgmma
                    && [16, 32, 64, 128, 256].contains(&tokens)
                    && (1..=4).contains(&ahead)
                    && (1..=2).contains(&fillers)
                    && (2..=8).contains(&stages)
                    && ahead * fillers + 1 < stages
                    && (tokens < 256 || fillers == 1)
            }
        };
        require(fine, NAME, || format!("{t:?} on {target}"))?;
        Ok(t)
    }

    /// The specialised kernel.
    ///
    /// # Errors
    /// A combination that is not covered.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        let t = self.tuning(target)?;
        let (name, file, wave) = match t {
            GemmTuning::Waves { wave, .. } => (NAME, "gemm.hip", wave),
            GemmTuning::Groups { .. } => (NAME_GROUPS, "gemm_wgmma.hip", 32),
        };
        let constants = Product::of(target, wave)
            .constants(kjit_engine::Constants::new())
            .set("COLS", self.cols as i64)
            .set("OUT_F16", i64::from(self.tiled))
            .set("EXPERTS", self.experts as i64);
        let (header, constants) = self.weights().render(constants)?;
        let (block, constants) = match t {
            GemmTuning::Waves { wave, tokens, rows, waves, depth, ahead, stages } => {
                let c = constants.set("BM", tokens).set("BN", rows).set("WM", waves.0).set("WN", waves.1);
                (waves.0 * waves.1 * wave, c.set("KB", depth).set("AHEAD", ahead).set("X_STAGES", stages))
            }
            GemmTuning::Groups { tokens, stages, ahead, fillers } => {
                // What 65536 registers leave for each role; multiples of 8.
                let (fill, multiply) = if fillers == 1 { (88, 208) } else { (88, 160) };
                let c = constants.set("WG_N", tokens).set("BN", GROUP_ROWS).set("STAGES", stages).set("AHEAD", ahead);
                let c = c.set("FILLERS", fillers).set("FILL_REGS", fill).set("MULTIPLY_REGS", multiply);
                (128 * (fillers + 2), c.set("KJ_MIN_BLOCKS", 1))
            }
        };
        let shared = shared_bytes(NAME, target, t.shared(), 128, "a tuning with fewer stages")?;
        Ok(Kernel {
            source: source(name, file).file("weights_gen.h", header).entry(name),
            constants: constants.set("KJ_BLOCK", block),
            options: Options::wave(wave).arch_specific(name == NAME_GROUPS),
            entry: name,
            block,
            shared,
        })
    }

    /// The launch for `tokens` tokens (with experts: rows, a multiple of the tile) on a device of `units` compute units.
    ///
    /// # Errors
    /// As [`GemmSpec::kernel`]; more tiles than a grid has.
    pub fn launch(&self, target: &Target, tokens: usize, units: u32) -> Result<GemmLaunch, SpecError> {
        let t = self.tuning(target)?;
        let row_tiles = self.weights().tiles(t.rows() as usize, if self.tiled { TILE } else { 1 });
        let token_tiles = tokens.div_ceil(t.tokens() as usize).max(1);
        let tiles = row_tiles.saturating_mul(token_tiles);
        require(tiles <= 1 << 30 && row_tiles < 1 << 16, NAME, || format!("{tiles} tiles, {row_tiles} of rows"))?;
        let (token_tiles, row_tiles, tiles) = (token_tiles as u32, row_tiles as u32, tiles as u32);
        let kernel = self.kernel(target)?;
        let (splits, grid) = match t {
            GemmTuning::Waves { depth, .. } => {
                // Few tiles: blocks share one, each with some of the columns, four steps or more, until there are two a unit.
                let steps = (self.cols.div_ceil(64) as u32).div_ceil(depth);
                let wanted = (2 * units.max(1)).div_ceil(tiles);
                let splits = wanted.clamp(1, 8).min((steps / 4).max(1));
                (splits, [token_tiles, row_tiles, splits])
            }
            GemmTuning::Groups { .. } => (1, [tiles.min(units.max(1)), 1, 1]),
        };
        let mut geometry = kernel.launch(1);
        geometry.grid = grid;
        let shares = if splits > 1 { tiles as usize } else { 0 };
        Ok(GemmLaunch {
            geometry,
            splits,
            token_tiles,
            tiles,
            blocks: grid[0],
            parts_bytes: shares * splits as usize * (t.tokens() * t.rows()) as usize * 4,
            counters: shares,
        })
    }

    /// Floating-point operations of a launch.
    #[must_use]
    pub fn operations(&self, tokens: usize) -> f64 {
        2.0 * tokens as f64 * self.cols as f64 * self.segments.iter().map(|s| s.rows as f64).sum::<f64>()
    }
}
