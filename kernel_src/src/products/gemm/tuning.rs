//! Tunings of products of matrices, and the defaults of each family of cards.

use super::GemmSpec;
use crate::vocabulary::mma::Product;
use crate::vocabulary::variant::Variant;
use kjit_engine::{MatrixUnit, Target, Vendor};
use kjit_formats::format::Encoding;

/// The division of the work among blocks and waves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GemmTuning {
    /// `gpu/gemm.h`: a block is a grid of waves.
    Waves {
        /// Lanes in a wave.
        wave: u32,
        /// Tokens of a block.
        tokens: u32,
        /// Rows of a block.
        rows: u32,
        /// Waves in the direction of the tokens, and of the rows.
        waves: (u32, u32),
        /// Steps of 64 columns between barriers.
        depth: u32,
        /// Steps between fetching and expanding weights.
        ahead: u32,
        /// Number of activation tiles in shared memory.
        stages: u32,
    },
    /// `gpu/gemm_wgmma.h`: groups of four warps; some fill tiles, others multiply.
    Groups {
        /// Tokens of a block: 16, 32, 64, 128 or 256.
        tokens: u32,
        /// Number of tiles in shared memory.
        stages: u32,
        /// Stages between fetching and expanding weights.
        ahead: u32,
        /// Number of groups that fill; one with 256 tokens, whose products need the registers.
        fillers: u32,
    },
}

impl Variant for GemmTuning {}

impl GemmTuning {
    /// Tokens of a block.
    #[must_use]
    pub const fn tokens(&self) -> u32 {
        match *self {
            GemmTuning::Waves { tokens, .. } | GemmTuning::Groups { tokens, .. } => tokens,
        }
    }

    /// Rows of a block.
    pub(super) const fn rows(&self) -> u32 {
        match *self {
            GemmTuning::Waves { rows, .. } => rows,
            GemmTuning::Groups { .. } => GROUP_ROWS,
        }
    }

    /// Bytes of dynamic shared memory.
    pub(super) const fn shared(&self) -> usize {
        let bytes = match *self {
            GemmTuning::Waves { tokens, rows, depth, stages, .. } => {
                depth * (stages * tokens + 2 * rows) * 128
            }
            // Stages start at a multiple of 1024. After them there are results of 32 tokens for
            // each group that multiplies.
            GemmTuning::Groups { tokens, stages, .. } => {
                let at_once = if tokens < 32 { tokens } else { 32 };
                1024 + stages * (tokens + GROUP_ROWS) * 128 + 2 * at_once * 68 * 4
            }
        };
        bytes as usize
    }
}

/// Rows of a block of `gpu/gemm_wgmma.h`.
pub(super) const GROUP_ROWS: u32 = 128;

/// A block of `gpu/gemm.h`.
#[derive(Debug, Clone, Copy)]
pub struct Waves {
    /// The most tokens of a launch with this block.
    pub up_to: usize,
    /// Tokens of a block.
    pub tokens: u32,
    /// Rows of a block.
    pub rows: u32,
    /// Waves in the direction of the tokens, and of the rows.
    pub waves: (u32, u32),
    /// Steps of 64 columns between barriers.
    pub depth: u32,
    /// Steps between fetching and expanding weights.
    pub ahead: u32,
    /// Number of activation tiles in shared memory.
    pub stages: u32,
}

/// The default blocks of a vendor's cards, for few tokens first.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Vendor of the cards.
    pub vendor: Vendor,
    /// Whether a block has more than 64 KB of shared memory.
    pub roomy: bool,
    /// Lanes in a wave.
    pub wave: u32,
    /// The blocks; the last one is for any number of tokens.
    pub blocks: &'static [Waves],
    /// Source of the measurement.
    pub from: &'static str,
}

const fn waves(
    up_to: usize,
    [tokens, rows]: [u32; 2],
    waves: (u32, u32),
    [depth, ahead, stages]: [u32; 3],
) -> Waves {
    Waves { up_to, tokens, rows, waves, depth, ahead, stages }
}

const ANY: usize = usize::MAX;

/// sm_80 and later: 4096 columns on an H200, 230 to 264 TFLOP/s at 2048 tokens, any format. AMD has
/// 64 KB of LDS, for two blocks per compute unit.
pub const STARTS: [Start; 4] = [
    Start {
        vendor: Vendor::Nvidia,
        roomy: true,
        wave: 32,
        blocks: &[
            waves(16, [16, 128], (1, 4), [2, 1, 3]),
            waves(32, [32, 128], (1, 4), [2, 1, 2]),
            waves(64, [64, 128], (2, 4), [2, 1, 2]),
            waves(ANY, [128, 128], (2, 4), [1, 1, 3]),
        ],
        from: "H200, 2026-11-21",
    },
    Start {
        vendor: Vendor::Nvidia,
        roomy: false,
        wave: 32,
        blocks: &[
            waves(16, [16, 64], (1, 2), [2, 1, 3]),
            waves(32, [32, 64], (1, 2), [2, 1, 2]),
            waves(64, [64, 64], (2, 2), [1, 1, 2]),
            waves(ANY, [128, 64], (2, 2), [1, 1, 2]),
        ],
        from: "resource counts; not measured on a card",
    },
    Start {
        vendor: Vendor::Amd,
        roomy: false,
        wave: 32,
        blocks: &[
            waves(16, [16, 64], (1, 2), [1, 1, 2]),
            waves(32, [32, 64], (1, 2), [1, 1, 2]),
            waves(ANY, [64, 128], (2, 4), [1, 1, 2]),
        ],
        from: "resource counts; not measured on a card",
    },
    Start {
        vendor: Vendor::Amd,
        roomy: false,
        wave: 64,
        blocks: &[
            waves(16, [16, 64], (1, 2), [1, 1, 2]),
            waves(32, [32, 64], (1, 2), [1, 1, 2]),
            waves(ANY, [64, 128], (2, 2), [1, 1, 2]),
        ],
        from: "resource counts; not measured on a card",
    },
];

/// The block for `tokens` tokens.
fn start(target: &Target, wave: u32, tokens: usize) -> &'static Waves {
    let (vendor, roomy) = (target.vendor(), target.arch().shared_per_block > 64 << 10);
    let same = |f: &&Start| {
        f.vendor == vendor && (vendor == Vendor::Amd || f.roomy == roomy) && f.wave == wave
    };
    let [first, ..] = &STARTS;
    let family = STARTS.iter().find(same).unwrap_or(first);
    let fits = family.blocks.iter().find(|b| tokens <= b.up_to);
    fits.or(family.blocks.last()).unwrap_or(const { &waves(ANY, [16, 64], (1, 2), [1, 1, 2]) })
}

/// A block of `gpu/gemm_wgmma.h` (sm_90a).
#[derive(Debug, Clone, Copy)]
struct Groups {
    /// Tokens of a block.
    tokens: u32,
    /// Number of tiles in shared memory.
    stages: u32,
    /// Stages between fetching and expanding weights.
    ahead: u32,
    /// Number of groups that fill.
    fillers: u32,
}

/// Warp groups, measured on an H200 on 2026-11-21.
const GROUPS: [Groups; 3] = [
    Groups { tokens: 64, stages: 6, ahead: 2, fillers: 2 },
    Groups { tokens: 128, stages: 6, ahead: 2, fillers: 2 },
    Groups { tokens: 256, stages: 4, ahead: 2, fillers: 1 },
];
/// Fewer tokens than this use [`STARTS`] also on sm_90a: there reading the weights is the limit.
/// (H200, 28672 × 4096 of Q4_K, `gemm.h` against warp groups: 54 and 61 µs at 16 tokens, 61 and 63
/// at 32, 88 and 69 at 64.)
const GROUPS_FROM: usize = 33;
/// A round of tiles of N tokens takes the time `GROUP_COST + N`. From products of 128 to 2048
/// tokens with 4096 to 28672 rows on an H200 (4096 columns: 31 µs with N = 64, 45 with 128, 58 with
/// 256). With 256 tokens per tile it multiplies at 500 to 590 TFLOP/s. With 128 it reaches 380: the
/// fillers are the limit.
const GROUP_COST: usize = 160;
/// Multiprocessors of an H100 SXM or H200, only for that estimate. A different number is a few
/// percent slower.
const GROUP_UNITS: usize = 132;

impl GemmSpec {
    fn has(&self, encoding: Encoding) -> bool {
        self.segments.iter().any(|s| s.format.encoding == encoding)
    }

    /// The default.
    pub(super) fn start(&self, target: &Target) -> GemmTuning {
        // F32 spans need all registers of a filler.
        let plain = self.has(Encoding::F32);
        if target.arch().matrix == MatrixUnit::Wgmma && self.tokens >= GROUPS_FROM && !plain {
            let row_tiles = self.weights().tiles(GROUP_ROWS as usize, 1);
            let cost = |n: u32| {
                let tiles = row_tiles * self.tokens.div_ceil(n as usize);
                tiles.div_ceil(GROUP_UNITS) * (GROUP_COST + n as usize)
            };
            // Tiles of experts are mostly not full, so 64 tokens are better (128 experts of 2048 ×
            // 768, 2048 tokens: 0.95 ms; with 128 tokens 1.04).
            let usable = GROUPS.iter().filter(|g| self.experts == 1 || g.tokens == 64);
            let &Groups { tokens, stages, mut ahead, fillers } =
                usable.min_by_key(|g| cost(g.tokens)).unwrap_or(&GROUPS[0]);
            if self.has(Encoding::BF16) {
                ahead = 1; // two stages in registers spill
            }
            return GemmTuning::Groups { tokens, stages, ahead, fillers };
        }
        let wave = target.default_wave();
        GemmSpec::waves(self.tokens, target, wave)
    }

    /// The default of `gpu/gemm.h` at a wave width.
    #[must_use]
    pub fn waves(tokens: usize, target: &Target, wave: u32) -> GemmTuning {
        let &Waves { tokens, rows, waves, depth, ahead, stages, .. } = start(target, wave, tokens);
        GemmTuning::Waves { wave, tokens, rows, waves, depth, ahead, stages }
    }

    /// All tunings.
    fn all(target: &Target) -> Vec<GemmTuning> {
        let mut all = vec![];
        for &wave in target.waves() {
            for tokens in [16, 32, 64, 128] {
                for (rows, waves) in
                    [(64, (1, 2)), (64, (2, 2)), (128, (1, 4)), (128, (2, 4)), (256, (2, 4))]
                {
                    for (depth, ahead, stages) in
                        [(1, 1, 3), (1, 2, 3), (1, 1, 2), (2, 1, 2), (2, 1, 3), (4, 1, 2)]
                    {
                        all.push(GemmTuning::Waves {
                            wave,
                            tokens,
                            rows,
                            waves,
                            depth,
                            ahead,
                            stages,
                        });
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

    /// Candidates for the spec's tokens.
    pub(super) fn worth_trying(&self, target: &Target) -> Vec<GemmTuning> {
        let tokens = self.tokens.next_power_of_two().max(16) as u32;
        let start = self.start(target);
        let fits = |t: &GemmTuning| {
            let groups = matches!(t, GemmTuning::Groups { .. });
            // From 33 tokens on the other kernel was much slower than warp groups.
            let kind = target.arch().matrix != MatrixUnit::Wgmma || groups || tokens <= 32;
            // The grouping fixes the tiles of experts, so all products of a layer have equal tiles.
            let tile = if self.experts > 1 {
                start.tokens() == t.tokens()
            } else {
                t.tokens() <= tokens && t.tokens() >= (tokens / 2).min(64)
            };
            kind && tile
        };
        GemmSpec::all(target).into_iter().filter(fits).collect()
    }

    /// Whether the target can run this tuning.
    pub(super) fn fits(&self, target: &Target, t: &GemmTuning) -> bool {
        match *t {
            GemmTuning::Waves {
                wave,
                tokens,
                rows,
                waves: (over_tokens, over_rows),
                depth,
                ahead,
                stages,
            } => {
                let n = Product::of(target, wave).columns;
                let threads = over_tokens * over_rows * wave;
                let results = over_tokens * over_rows * 16 * (rows / over_rows.max(1) + 4) * 4;
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
                    // Results use the memory of the tiles.
                    && results <= t.shared() as u32
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
        }
    }
}
