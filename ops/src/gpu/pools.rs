//! Memory of a GPU: a pool in the order of its stream, and page-locked blocks through which copies
//! to and from the host go.

use super::Gpu;
use crate::device::MemoryStats;
use crate::error::{Error, Result};
use crate::memory::Store;
use kjit_engine::{DeviceBuffer, PinnedBuffer};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the largest block; longer copies go through several.
const LARGEST: usize = 4 << 20;
/// Bytes of the smallest block.
const SMALLEST: usize = 4 << 10;
/// Copies of a read that are in flight at once.
const IN_FLIGHT: usize = 3;

/// Page-locked blocks by their size, a power of two. The longest unused one is taken first, so a
/// copy that still reads it is rarely waited for.
#[derive(Default)]
pub(super) struct PinnedPool {
    free: Mutex<BTreeMap<usize, VecDeque<PinnedBuffer<u8>>>>,
}

impl PinnedPool {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, VecDeque<PinnedBuffer<u8>>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, block: PinnedBuffer<u8>) {
        self.lock().entry(block.len()).or_default().push_back(block);
    }

    fn held(&self) -> u64 {
        self.lock().iter().map(|(size, blocks)| (size * blocks.len()) as u64).sum()
    }
}

/// The size of the block for a copy of this many bytes.
fn block_size(bytes: usize) -> usize {
    bytes.clamp(SMALLEST, LARGEST).next_power_of_two()
}

impl Gpu {
    /// Memory with undefined contents, from the pool.
    pub(super) fn memory(&self, bytes: usize) -> Result<DeviceBuffer<u8>> {
        self.pool.buffer::<u8>(bytes.max(1)).map_err(|error| match error {
            kjit_engine::Error::OutOfMemory { device, asked, free, total, .. } => {
                let in_use = self.pool.stats().in_use;
                Error::DeviceMemory { device, bytes: asked, free, total, in_use }
            }
            other => other.into(),
        })
    }

    /// A free page-locked block, or a new one.
    fn pinned(&self, bytes: usize) -> Result<PinnedBuffer<u8>> {
        let size = block_size(bytes);
        let free = {
            let mut blocks = self.pinned.lock();
            // With one block a copy would wait for the one before it.
            blocks.get_mut(&size).filter(|b| b.len() > 1).and_then(VecDeque::pop_front)
        };
        match free {
            Some(block) => Ok(block),
            None => Ok(self.device.pinned::<u8>(size)?),
        }
    }

    /// Copies host bytes to the GPU. Does not wait for the copy.
    pub(crate) fn write(self: &Arc<Self>, bytes: &[u8]) -> Result<Store> {
        let memory = self.memory(bytes.len())?;
        for (i, part) in bytes.chunks(LARGEST).enumerate() {
            let block = self.pinned(part.len())?;
            let own = block.slice(..part.len())?;
            own.write(|to| to.copy_from_slice(part))?;
            let from = i * LARGEST;
            self.stream.copy_in(&own, &memory.slice(from..from + part.len())?)?;
            self.pinned.give_back(block);
        }
        Ok(Store::Gpu(Arc::clone(self), memory))
    }

    /// Reads bytes from GPU memory after all work in the stream. Waits, and reports an index out of
    /// range that a kernel has found.
    pub(crate) fn read(
        &self,
        memory: &DeviceBuffer<u8>,
        from: usize,
        len: usize,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        let mut copies = VecDeque::new();
        let mut next = 0;
        while bytes.len() < len {
            while next < len && copies.len() < IN_FLIGHT {
                let size = LARGEST.min(len - next);
                let block = self.pinned(size)?;
                let own = block.slice(..size)?;
                self.stream.copy_out(&memory.slice(from + next..from + next + size)?, &own)?;
                copies.push_back((block, own));
                next += size;
            }
            let (block, own) =
                copies.pop_front().ok_or(Error::Inside("a copy to the host was lost"))?;
            own.read(|part| bytes.extend_from_slice(part))?;
            self.pinned.give_back(block);
        }
        self.check_indices()?;
        Ok(bytes)
    }

    pub(crate) fn memory_stats(&self) -> Result<MemoryStats> {
        let (pool, (free, total)) = (self.pool.stats(), self.device.memory()?);
        Ok(MemoryStats {
            in_use: pool.in_use,
            peak: pool.peak,
            held: pool.held,
            live: pool.live,
            hits: pool.hits,
            misses: pool.misses,
            pinned_held: self.pinned.held(),
            free,
            total,
        })
    }

    pub(crate) fn warm_up(&self, sizes: &[usize]) -> Result<()> {
        let blocks = sizes.iter().map(|size| self.memory(*size)).collect::<Result<Vec<_>>>()?;
        drop(blocks);
        Ok(())
    }

    pub(crate) fn warm_up_pinned(&self, sizes: &[usize]) -> Result<()> {
        for size in sizes {
            self.pinned.give_back(self.device.pinned::<u8>(block_size(*size))?);
        }
        Ok(())
    }

    pub(crate) fn clear(&self) -> u64 {
        let blocks = std::mem::take(&mut *self.pinned.lock());
        let pinned: usize = blocks.iter().map(|(size, blocks)| size * blocks.len()).sum();
        drop(blocks);
        self.pool.trim() + pinned as u64
    }
}
