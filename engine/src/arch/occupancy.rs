//! How many blocks of a kernel a compute unit holds at once, from the code object's figures alone.

use super::Target;

/// What bounds the occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Resident waves or blocks of a unit.
    Waves,
    /// Vector registers.
    Registers,
    /// LDS / shared memory.
    Shared,
}

/// Resident blocks and waves of one compute unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// Blocks that fit a unit together; 0 when the kernel cannot run at all.
    pub blocks: u32,
    /// Their waves.
    pub waves: u32,
    /// Waves the unit could hold.
    pub max_waves: u32,
    /// What stops one more block.
    pub limit: Limit,
}

impl Occupancy {
    /// Waves resident out of waves possible, 0 to 1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        f64::from(self.waves) / f64::from(self.max_waves.max(1))
    }
}

impl Target {
    /// Occupancy of a kernel of `threads` threads a block, `registers` vector registers a lane
    /// (VGPRs and AGPRs together where they share a file), `shared` bytes of LDS a block, compiled
    /// for waves of `wave` lanes.
    #[must_use]
    pub fn occupancy(&self, threads: u32, registers: u32, shared: u32, wave: u32) -> Occupancy {
        let unit = self.arch.unit;
        let narrow = self.waves().iter().copied().min().unwrap_or(32).max(1);
        // A wave twice as wide takes two rows of the register file for each register.
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
