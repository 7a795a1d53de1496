//! Memory that a GPU keeps for later tensors: blocks of the device, and page-locked host memory
//! through which copies pass.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use kjit_engine::{DeviceBuffer, PinnedBuffer, PoolStats};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes of page-locked memory that one device keeps: such memory is lost to everything else.
const MOST_PINNED: usize = 4 << 30;

/// Page-locked buffers that no copy uses.
#[derive(Default)]
pub(crate) struct Pinned {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<PinnedBuffer<u8>>,
    stats: PinnedStatistics,
}

/// Statistics of the page-locked memory of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// Copies that passed through page-locked memory.
    pub hits: u64,
    /// Copies for which no buffer was large enough; the driver staged them itself.
    pub misses: u64,
    /// Bytes of all buffers.
    pub held: usize,
}

impl Pinned {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the smallest buffer with room for `bytes`.
    fn take(&self, bytes: usize) -> Option<PinnedBuffer<u8>> {
        let mut state = self.lock();
        if state.stats.held == 0 {
            return None;
        }
        let found = state.free.iter().enumerate().filter(|(_, b)| b.len() >= bytes);
        let found = found.min_by_key(|(_, b)| b.len()).map(|(i, _)| i);
        match found {
            Some(_) => state.stats.hits += 1,
            None => state.stats.misses += 1,
        }
        found.map(|i| state.free.swap_remove(i))
    }

    fn put(&self, buffer: PinnedBuffer<u8>) {
        self.lock().free.push(buffer);
    }
}

impl Gpu {
    /// Copies host bytes to the GPU, through page-locked memory if [`Device::warm_up_pinned`] made
    /// a buffer that is large enough: then the host does not wait for the device.
    pub(crate) fn send(&self, to: &DeviceBuffer<u8>, bytes: &[u8]) -> Result<()> {
        let Some(buffer) = self.pinned().take(bytes.len()) else {
            return Ok(self.stream().write(to, bytes)?);
        };
        let done = (|| {
            let part = buffer.slice(..bytes.len())?;
            part.write(|room| room.copy_from_slice(bytes))?;
            self.stream().copy_in(&part, &to.slice(..bytes.len())?)
        })();
        self.pinned().put(buffer);
        Ok(done?)
    }

    /// Reads bytes of the GPU, after all work of the stream.
    pub(crate) fn receive(&self, from: &DeviceBuffer<u8>) -> Result<Vec<u8>> {
        let Some(buffer) = self.pinned().take(from.len()) else {
            return Ok(self.stream().read(from)?);
        };
        let done = (|| {
            let part = buffer.slice(..from.len())?;
            self.stream().copy_out(from, &part)?;
            part.read(<[u8]>::to_vec)
        })();
        self.pinned().put(buffer);
        Ok(done?)
    }
}

impl Device {
    fn pooled(&self, op: &'static str) -> Result<&Gpu> {
        match self {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Cpu => {
                Err(Error::value(op, "the CPU has no pool: memory comes from the system"))
            }
        }
    }

    /// Statistics of the memory pool.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU, which has no pool.
    pub fn pool_statistics(&self) -> Result<PoolStats> {
        Ok(self.pooled("pool_statistics")?.pool().stats())
    }

    /// Allocates a block for each of these sizes in bytes, so that later tensors of up to these
    /// sizes allocate nothing from the driver. Blocks that are free count.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU; [`Error::Engine`]: out of memory, with the wanted and the free
    /// bytes. Blocks that were allocated before stay.
    pub fn warm_up(&self, sizes: &[usize]) -> Result<()> {
        let pool = self.pooled("warm_up")?.pool();
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        // All blocks are held at once; dropping them returns them to the pool.
        let blocks = sizes.iter().map(|n| pool.buffer::<u8>((*n).max(1)));
        drop(blocks.collect::<kjit_engine::Result<Vec<_>>>()?);
        Ok(())
    }

    /// Frees the pool's unused blocks. Returns their bytes.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU.
    pub fn clear_pool(&self) -> Result<u64> {
        Ok(self.pooled("clear_pool")?.pool().trim())
    }

    /// Allocates page-locked host memory of these sizes in bytes. Copies between host and device
    /// up to such a size pass through it.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU, and above 4 GiB in all; [`Error::Engine`].
    pub fn warm_up_pinned(&self, sizes: &[usize]) -> Result<()> {
        let gpu = self.pooled("warm_up_pinned")?;
        for size in sizes {
            let size = (*size).max(1);
            let held = gpu.pinned().lock().stats.held;
            if held.saturating_add(size) > MOST_PINNED {
                return Err(Error::value(
                    "warm_up_pinned",
                    format!("{size} bytes more than the {held} held pass the limit {MOST_PINNED}"),
                ));
            }
            let buffer = gpu.stream().device().pinned::<u8>(size)?;
            let mut state = gpu.pinned().lock();
            state.stats.held += size;
            state.free.push(buffer);
        }
        Ok(())
    }

    /// Statistics of the page-locked memory.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU.
    pub fn pinned_statistics(&self) -> Result<PinnedStatistics> {
        Ok(self.pooled("pinned_statistics")?.pinned().lock().stats)
    }

    /// Frees the page-locked memory that no copy uses. Returns its bytes.
    ///
    /// # Errors
    /// [`Error::Value`] for the CPU.
    pub fn clear_pinned(&self) -> Result<usize> {
        let mut state = self.pooled("clear_pinned")?.pinned().lock();
        let bytes = state.free.iter().map(PinnedBuffer::len).sum();
        state.free.clear();
        state.stats.held -= bytes;
        Ok(bytes)
    }
}

/// Frees the unused memory of every open GPU. Returns its bytes.
pub fn empty_cache() -> u64 {
    let open = crate::device::open_ones();
    open.iter().filter_map(|d| d.clear_pool().ok()).sum()
}
