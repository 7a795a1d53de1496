//! Tunings of decode attention, and candidates.

use crate::attention::kv::{KvLayout, KvStorage};
use crate::vocabulary::variant::Variant;
use kjit_engine::{MatrixUnit, Target};

/// The division of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttendTuning {
    /// `gpu/attend.h`, on all targets: a lane has eight elements of a position.
    Lanes {
        /// Lanes in a wave.
        wave: u32,
        /// Threads of a block.
        block: u32,
        /// Positions that a lane processes in one step; a power of two.
        tile: u32,
        /// Blocks launched for each compute unit, over all heads and sequences.
        blocks_per_unit: u32,
    },
    /// `gpu/attend_mma.h` (sm_80 and later, keys in f16 or bytes): sixteen positions per product of
    /// the matrix units.
    Rings {
        /// Waves of a block.
        waves: u32,
        /// Tiles of sixteen positions in flight for each wave.
        stages: u32,
        /// Tiles that justify a block: shorter contexts have fewer blocks, and one block below
        /// three times this number.
        least: u32,
        /// Blocks launched for each compute unit, over all heads and sequences.
        blocks_per_unit: u32,
    },
    /// `gpu/attend_wide.h`, on all targets, for heads wider than 256: a lane has some elements of a
    /// position, then eight columns of the result.
    Wide {
        /// Lanes in a wave.
        wave: u32,
        /// Blocks launched for each compute unit, over all heads and sequences.
        blocks_per_unit: u32,
    },
}

/// `(largest head, waves, stages, least, blocks per compute unit)`.
pub(super) type Row = (usize, u32, u32, u32, u32);

/// For f16: measured on an H200 (docs/performance.md).
pub(super) const RINGS: &[Row] = &[(64, 12, 2, 16, 1), (128, 8, 2, 8, 1), (256, 8, 1, 4, 1)];

/// For 8-bit keys and values: half of the memory, and more work per byte.
pub(super) const RINGS_BYTES: &[Row] = &[(64, 12, 2, 16, 1), (128, 8, 2, 8, 1), (256, 8, 1, 4, 1)];

/// Candidates: waves, stages, blocks per compute unit.
const BLOCKS: [(u32, u32, u32); 10] = [
    (8, 2, 1),
    (8, 1, 1),
    (8, 3, 1),
    (12, 1, 1),
    (12, 2, 1),
    (4, 2, 2),
    (4, 3, 2),
    (8, 1, 2),
    (8, 2, 2),
    (16, 1, 1),
];

/// The matrix units' products have sixteen positions.
const POSITIONS: usize = 16;

/// Threads of a block of `gpu/attend_wide.h`.
const WIDE_BLOCK: u32 = 256;

impl Variant for AttendTuning {}

impl AttendTuning {
    /// Blocks launched for each compute unit, over all heads and sequences.
    #[must_use]
    pub const fn blocks_per_unit(&self) -> u32 {
        match *self {
            AttendTuning::Lanes { blocks_per_unit, .. }
            | AttendTuning::Rings { blocks_per_unit, .. }
            | AttendTuning::Wide { blocks_per_unit, .. } => blocks_per_unit,
        }
    }

    /// Candidates for a device. Some of them have no kernel for a shape.
    pub(super) fn all(target: &Target) -> Vec<AttendTuning> {
        let mut all = vec![];
        for (waves, stages, blocks_per_unit) in BLOCKS {
            for least in [4, 8, 16] {
                all.push(AttendTuning::Rings { waves, stages, least, blocks_per_unit });
            }
        }
        for &wave in target.waves() {
            all.extend(
                [1, 2, 3].map(|blocks_per_unit| AttendTuning::Wide { wave, blocks_per_unit }),
            );
            for waves in [2, 4, 8] {
                for tile in [1, 2, 4] {
                    for blocks_per_unit in [1, 2, 3, 4] {
                        // With matrix units the other kernel is twice as fast: one of these is
                        // enough to show it.
                        if target.arch().matrix != MatrixUnit::Wgmma
                            || (waves, tile, blocks_per_unit) == (4, 4, 2)
                        {
                            all.push(AttendTuning::Lanes {
                                wave,
                                block: waves * wave,
                                tile,
                                blocks_per_unit,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    /// Threads of a block.
    pub(super) const fn block(&self) -> u32 {
        match *self {
            AttendTuning::Lanes { block, .. } => block,
            AttendTuning::Rings { waves, .. } => 32 * waves,
            AttendTuning::Wide { .. } => WIDE_BLOCK,
        }
    }

    /// Bytes of a wave's ring: tiles of keys and of values.
    pub(super) fn ring(&self, kv: &KvLayout) -> usize {
        let AttendTuning::Rings { stages, .. } = *self else { return 0 };
        let scales = if kv.storage == KvStorage::Q8_0 { kv.head_dim / kv.group() } else { 0 };
        let side = POSITIONS * kv.row_bytes() + (POSITIONS * scales + scales % 2).div_ceil(2) * 4;
        let side = side.next_multiple_of(128);
        2 * stages as usize * side
    }

    /// Bytes of dynamic shared memory: rings and a tile of queries, from the next multiple of 128
    /// on.
    pub(super) fn shared(&self, kv: &KvLayout) -> usize {
        let AttendTuning::Rings { waves, .. } = *self else { return 0 };
        128 + waves as usize * self.ring(kv) + kv.head_dim.div_ceil(64) * POSITIONS * 128
    }

    /// Whether the results of `group` heads fit in the memory of a wave's ring: results of the
    /// wave, and four elements of a slice for each lane.
    pub(super) fn results_fit(&self, kv: &KvLayout, group: usize) -> bool {
        group * 4 * kv.head_dim.max(128) <= self.ring(kv)
    }
}
