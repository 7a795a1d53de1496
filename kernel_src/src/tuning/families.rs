//! Where each architecture family starts, for all sizes: the tables that a new family is added to.
//!
//! `from` says where a row comes from. AMD's are from resource counts (registers, LDS, occupancy of the compiled kernels) until a card has
//! run them; `kjit bench --kernels --tune` on one says what to put here.

use kjit_engine::{Target, Vendor};

/// Products with vectors (`matvec`, `experts`).
#[derive(Debug, Clone, Copy)]
pub struct Matvec {
    /// Whose cards.
    pub vendor: Vendor,
    /// Weights whose unit is the 16 bytes of its codes and little more (plain elements, 8-bit codes); else those of fewer bits.
    pub wide: bool,
    /// Threads of a block.
    pub block: u32,
    /// Blocks launched for each compute unit.
    pub blocks_per_unit: u32,
    /// Units that a lane has in flight, over rows, lists and columns.
    pub flight: u32,
    /// Rows that share them where there are plenty.
    pub rows: u32,
    /// Where it comes from.
    pub from: &'static str,
}

/// 512 threads on each SM reached twice the rate of 1024 blocks of 128 on an H200; a second block helps where few instructions stand behind a
/// byte, and costs a fifth of the rate on 4-bit codes. There two rows at a time share the reads of the activations. On AMD two units in
/// flight keep a lane below 96 registers on every family, so that a SIMD has five waves or more.
pub const MATVEC: [Matvec; 4] = [
    Matvec {
        vendor: Vendor::Nvidia,
        wide: true,
        block: 512,
        blocks_per_unit: 2,
        flight: 4,
        rows: 1,
        from: "H200, 2026-11-21",
    },
    Matvec {
        vendor: Vendor::Nvidia,
        wide: false,
        block: 512,
        blocks_per_unit: 1,
        flight: 4,
        rows: 2,
        from: "H200, 2026-11-21",
    },
    Matvec {
        vendor: Vendor::Amd,
        wide: true,
        block: 256,
        blocks_per_unit: 4,
        flight: 2,
        rows: 1,
        from: "resource counts, no card yet",
    },
    Matvec {
        vendor: Vendor::Amd,
        wide: false,
        block: 256,
        blocks_per_unit: 4,
        flight: 2,
        rows: 1,
        from: "resource counts, no card yet",
    },
];

/// The row of a vendor's cards.
pub(crate) fn matvec(vendor: Vendor, wide: bool) -> &'static Matvec {
    let [first, ..] = &MATVEC;
    MATVEC.iter().find(|f| f.vendor == vendor && f.wide == wide).unwrap_or(first)
}

/// Lanes that should be at work on a matrix for the memory system to be busy (132 SMs × 512).
pub const LANES_WANTED: usize = 65536;

/// Blocks worth trying: threads, blocks a unit, alone.
pub const PLACES: [(u32, u32, bool); 6] =
    [(256, 2, false), (256, 4, false), (512, 1, false), (512, 1, true), (512, 2, false), (1024, 1, false)];

/// Rows and units in flight worth trying.
pub const BATCHES: [(u32, u32); 8] = [(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 2)];

/// A block of `gpu/gemm.hip`.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    /// Up to so many tokens.
    pub up_to: usize,
    /// Tokens of a block.
    pub tokens: u32,
    /// Rows of a block.
    pub rows: u32,
    /// Waves side by side over the tokens, and over the rows.
    pub waves: (u32, u32),
    /// Steps of 64 columns between barriers.
    pub depth: u32,
    /// Such steps that weights are fetched before they are expanded.
    pub ahead: u32,
    /// Tiles of activations in shared memory.
    pub stages: u32,
}

/// The blocks of a family's products of matrices, for few tokens first.
#[derive(Debug, Clone, Copy)]
pub struct GemmFamily {
    /// Whose cards.
    pub vendor: Vendor,
    /// With more than 64 KB of shared memory for a block.
    pub roomy: bool,
    /// Lanes in a wave.
    pub wave: u32,
    /// Its blocks; the last one takes any number of tokens.
    pub blocks: &'static [Gemm],
    /// Where they come from.
    pub from: &'static str,
}

const fn gemm(up_to: usize, [tokens, rows]: [u32; 2], waves: (u32, u32), [depth, ahead, stages]: [u32; 3]) -> Gemm {
    Gemm { up_to, tokens, rows, waves, depth, ahead, stages }
}

const ANY: usize = usize::MAX;

/// sm_80 and later: 4096 columns on an H200, 230 to 264 TFLOP/s at 2048 tokens, any format. AMD has 64 KB of LDS, two blocks a unit wanted.
pub const GEMM: [GemmFamily; 4] = [
    GemmFamily {
        vendor: Vendor::Nvidia,
        roomy: true,
        wave: 32,
        blocks: &[
            gemm(16, [16, 128], (1, 4), [2, 1, 3]),
            gemm(32, [32, 128], (1, 4), [2, 1, 2]),
            gemm(64, [64, 128], (2, 4), [2, 1, 2]),
            gemm(ANY, [128, 128], (2, 4), [1, 1, 3]),
        ],
        from: "H200, 2026-11-21",
    },
    GemmFamily {
        vendor: Vendor::Nvidia,
        roomy: false,
        wave: 32,
        blocks: &[
            gemm(16, [16, 64], (1, 2), [2, 1, 3]),
            gemm(32, [32, 64], (1, 2), [2, 1, 2]),
            gemm(64, [64, 64], (2, 2), [1, 1, 2]),
            gemm(ANY, [128, 64], (2, 2), [1, 1, 2]),
        ],
        from: "resource counts, no card yet",
    },
    GemmFamily {
        vendor: Vendor::Amd,
        roomy: false,
        wave: 32,
        blocks: &[
            gemm(16, [16, 64], (1, 2), [1, 1, 2]),
            gemm(32, [32, 64], (1, 2), [1, 1, 2]),
            gemm(ANY, [64, 128], (2, 4), [1, 1, 2]),
        ],
        from: "resource counts, no card yet",
    },
    GemmFamily {
        vendor: Vendor::Amd,
        roomy: false,
        wave: 64,
        blocks: &[
            gemm(16, [16, 64], (1, 2), [1, 1, 2]),
            gemm(32, [32, 64], (1, 2), [1, 1, 2]),
            gemm(ANY, [64, 128], (2, 2), [1, 1, 2]),
        ],
        from: "resource counts, no card yet",
    },
];

/// The block for so many tokens.
pub(crate) fn gemm_block(target: &Target, wave: u32, tokens: usize) -> &'static Gemm {
    let (vendor, roomy) = (target.vendor(), target.arch().shared_per_block > 64 << 10);
    let same = |f: &&GemmFamily| f.vendor == vendor && (vendor == Vendor::Amd || f.roomy == roomy) && f.wave == wave;
    let [first, ..] = &GEMM;
    let family = GEMM.iter().find(same).unwrap_or(first);
    let fits = family.blocks.iter().find(|b| tokens <= b.up_to);
    fits.or(family.blocks.last()).unwrap_or(const { &gemm(ANY, [16, 64], (1, 2), [1, 1, 2]) })
}

/// A block of `gpu/gemm_wgmma.hip` (sm_90a).
#[derive(Debug, Clone, Copy)]
pub struct Groups {
    /// Tokens of a block.
    pub tokens: u32,
    /// Tiles in shared memory.
    pub stages: u32,
    /// Stages that weights are fetched before they are expanded.
    pub ahead: u32,
    /// Groups that fill.
    pub fillers: u32,
}

/// Warp groups, from an H200 on 2026-11-21.
pub const GROUPS: [Groups; 3] = [
    Groups { tokens: 64, stages: 6, ahead: 2, fillers: 2 },
    Groups { tokens: 128, stages: 6, ahead: 2, fillers: 2 },
    Groups { tokens: 256, stages: 4, ahead: 2, fillers: 1 },
];
/// Fewer tokens than this go to [`GEMM`] also on sm_90a: there the time is the weights' (H200, 28672 × 4096 of Q4_K: 54 µs at 16 tokens
/// against 61, 61 against 63 at 32, 88 against 69 at 64).
pub const GROUPS_FROM: usize = 33;
/// What a wave of tiles of N tokens costs is `GROUP_COST + N`: from products of 128 to 2048 tokens with 4096 to 28672 rows on an H200 (64:
/// 31, 128: 45, 256: 58 µs for 4096 columns). At 256 tokens a tile it multiplies at 500 to 590 TFLOP/s, at 128 at 380, where fillers
/// cannot keep up.
pub const GROUP_COST: usize = 160;
/// Multiprocessors of the family's usual cards (H100 SXM, H200), for that estimate only: another number costs a few percent.
pub const GROUP_UNITS: usize = 132;
