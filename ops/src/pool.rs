//! Memory pools of a GPU: device blocks for later tensors, and page-locked host memory for copies.
//! The CPU has no pools.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use kjit_engine::PoolStats;

/// Statistics of the page-locked memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// Copies that used existing blocks only.
    pub hits: u64,
    /// Copies that allocated a block.
    pub misses: u64,
    /// Bytes of the blocks that no copy uses.
    pub held: usize,
}

impl Device {
    fn pooled(&self, op: &'static str) -> Result<&Gpu> {
        match self {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Cpu => Err(Error::value(op, "the CPU has no memory pool")),
        }
    }

    /// Statistics of the memory pools, added over its streams.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU, which has no pool.
    pub fn pool_statistics(&self) -> Result<PoolStats> {
        Ok(self.pooled("pool_statistics")?.pool_statistics())
    }

    /// Allocates a block for each of these sizes in bytes, so that later tensors of up to these
    /// sizes allocate nothing from the driver. Blocks that are free count.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU; [`Error::DeviceMemory`]. Blocks that were allocated before
    /// stay.
    pub fn warm_up(&self, sizes: &[usize]) -> Result<()> {
        self.pooled("warm_up")?.warm_up(sizes)
    }

    /// Frees the unused blocks of its streams' pools. Returns their bytes.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU.
    pub fn clear_pool(&self) -> Result<u64> {
        Ok(self.pooled("clear_pool")?.clear_pools())
    }

    /// Allocates the page-locked blocks that copies of these sizes in bytes pass through. A block
    /// has 4 MiB at most; longer copies pass through several. Without blocks a copy allocates them
    /// itself.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU, and above 4 GiB in all; [`Error::Engine`] if the system
    /// refuses page-locked memory.
    pub fn warm_up_pinned(&self, sizes: &[usize]) -> Result<()> {
        self.pooled("warm_up_pinned")?.warm_up_pinned(sizes)
    }

    /// Statistics of the page-locked memory.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU.
    pub fn pinned_statistics(&self) -> Result<PinnedStatistics> {
        Ok(self.pooled("pinned_statistics")?.pinned_statistics())
    }

    /// Frees the page-locked memory that no copy uses. Returns its bytes.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU.
    pub fn clear_pinned(&self) -> Result<usize> {
        Ok(self.pooled("clear_pinned")?.clear_pinned())
    }
}

/// Frees the unused memory of every open GPU. Returns its bytes.
pub fn empty_cache() -> u64 {
    let open = crate::device::open_ones();
    open.iter().filter_map(|d| d.clear_pool().ok()).sum()
}
