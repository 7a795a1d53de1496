//! Occupancy: the number of blocks that can be resident on a compute unit, computed from the
//! figures in the code object.

use super::Target;

/// The resource that limits the occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Resident waves or blocks per unit.
    Waves,
    /// Vector registers.
    Registers,
    /// LDS / shared memory.
    Shared,
}

/// Resident blocks and waves of one compute unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Number of blocks that fit on a unit together; 0 if the kernel cannot run.
    pub blocks: u32,
    /// Number of waves of these blocks.
    pub waves: u32,
    /// Maximum number of waves of the unit.
    pub max_waves: u32,
    /// The resource that prevents one more block.
    pub limit: Limit,
}

impl Occupancy {
    /// Resident waves divided by the maximum, 0 to 1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        f64::from(self.waves) / f64::from(self.max_waves.max(1))
    }
}

impl Target {
    /// Occupancy of a kernel with `threads` threads per block, `registers` vector registers per
    /// lane (VGPRs plus AGPRs if they share a file), `shared` bytes of LDS per block, and waves of
    /// `wave` lanes.
    #[must_use]
    pub fn occupancy(&self, threads: u32, registers: u32, shared: u32, wave: u32) -> Occupancy {
        let unit = self.arch.unit;
        let narrow = self.waves().iter().copied().min().unwrap_or(32).max(1);
        // A wave of twice the width takes two rows of the register file per register.
        let widening = (wave / narrow).max(1);
        let granule = (unit.register_granule / widening).max(1);
        let waves_per_block = threads.div_ceil(wave.max(1)).max(1);
        let max_waves = unit.waves_per_simd * unit.simds;
        let by_waves = (max_waves / waves_per_block).min(unit.blocks);
        let each = registers.max(1).next_multiple_of(granule);
        let waves_by_registers =
            (unit.registers_per_simd / widening / each).min(unit.waves_per_simd) * unit.simds;
        let by_registers = waves_by_registers / waves_per_block;
        let share = (shared + unit.shared_reserved).next_multiple_of(unit.shared_granule.max(1));
        let by_shared = if shared > self.arch.shared_per_block {
            0
        } else {
            unit.shared.checked_div(share).unwrap_or(u32::MAX)
        };
        let blocks = by_waves.min(by_registers).min(by_shared);
        let limit = if blocks == by_waves {
            Limit::Waves
        } else if blocks == by_registers {
            Limit::Registers
        } else {
            Limit::Shared
        };
        Occupancy { blocks, waves: blocks * waves_per_block, max_waves, limit }
    }
}
