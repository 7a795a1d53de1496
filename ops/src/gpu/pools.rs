//! Memory of a GPU: pools in the order of its streams, and page-locked blocks through which copies
//! to and from the host go.

use super::Gpu;
use crate::error::{Error, Result};
use crate::memory::Store;
use crate::pool::PinnedStatistics;
use kjit_engine::{DeviceBuffer, PinnedBuffer};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the largest block; longer copies go through several.
const LARGEST: usize = 4 << 20;
/// Bytes of the smallest block.
const SMALLEST: usize = 4 << 10;
/// Concurrent copies of one read.
const IN_FLIGHT: usize = 3;
/// Maximum of page-locked bytes that are allocated in advance: the system cannot use them
/// otherwise.
const MOST_PINNED: usize = 4 << 30;

/// Page-locked blocks by their size, a power of two. The least recently used block is taken first,
/// so that it is rarely still in use by a copy.
#[derive(Default)]
pub(super) struct PinnedPool {
    free: Mutex<BTreeMap<usize, VecDeque<PinnedBuffer<u8>>>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl PinnedPool {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, VecDeque<PinnedBuffer<u8>>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, block: PinnedBuffer<u8>) {
        self.lock().entry(block.len()).or_default().push_back(block);
    }

    fn held(&self) -> usize {
        self.lock().iter().map(|(size, blocks)| size * blocks.len()).sum()
    }

    /// Counts a copy, and whether it allocated blocks.
    fn count(&self, allocated: bool) {
        let counter = if allocated { &self.misses } else { &self.hits };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The size of the block for a copy of this many bytes.
fn block_size(bytes: usize) -> usize {
    bytes.clamp(SMALLEST, LARGEST).next_power_of_two()
}

impl Gpu {
    /// Memory with undefined contents, from the pool.
    pub(super) fn memory(&self, bytes: usize) -> Result<DeviceBuffer<u8>> {
        self.lane().pool.buffer::<u8>(bytes.max(1)).map_err(|error| match error {
            kjit_engine::Error::OutOfMemory { device, asked, free, total, .. } => {
                let in_use = self.pool_statistics().in_use;
                Error::DeviceMemory { device, bytes: asked, free, total, in_use }
            }
            other => other.into(),
        })
    }

    /// A free page-locked block, or a new one: then `allocated` becomes true.
    fn pinned(&self, bytes: usize, allocated: &mut bool) -> Result<PinnedBuffer<u8>> {
        let size = block_size(bytes);
        let free = {
            let mut blocks = self.pinned.lock();
            // With one block a copy would wait for the one before it.
            blocks.get_mut(&size).filter(|b| b.len() > 1).and_then(VecDeque::pop_front)
        };
        match free {
            Some(block) => Ok(block),
            None => {
                *allocated = true;
                Ok(self.device.pinned::<u8>(size)?)
            }
        }
    }

    /// Copies host bytes to the GPU. Does not wait for the copy.
    pub(crate) fn write(self: &Arc<Self>, bytes: &[u8]) -> Result<Store> {
        let memory = self.memory(bytes.len())?;
        let lane = self.lane();
        let mut allocated = false;
        for (i, part) in bytes.chunks(LARGEST).enumerate() {
            let from = i * LARGEST;
            let to = memory.slice(from..from + part.len())?;
            let Ok(block) = self.pinned(part.len(), &mut allocated) else {
                // A system that locks no pages: the driver copies through memory of its own.
                lane.stream.write(&to, part)?;
                continue;
            };
            let own = block.slice(..part.len())?;
            own.write(|to| to.copy_from_slice(part))?;
            lane.stream.copy_in(&own, &to)?;
            self.pinned.give_back(block);
        }
        if !bytes.is_empty() {
            self.pinned.count(allocated);
        }
        Ok(Store::Gpu(Arc::clone(self), memory))
    }

    /// Reads bytes from GPU memory after all work that writes them. Waits, and reports an index
    /// out of range that a kernel has found.
    pub(crate) fn read(
        &self,
        memory: &DeviceBuffer<u8>,
        from: usize,
        len: usize,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        let lane = self.lane();
        let mut copies = VecDeque::new();
        let (mut next, mut allocated) = (0, false);
        while bytes.len() < len {
            while next < len && copies.len() < IN_FLIGHT {
                let size = LARGEST.min(len - next);
                let part = memory.slice(from + next..from + next + size)?;
                let Ok(block) = self.pinned(size, &mut allocated) else {
                    if copies.is_empty() {
                        bytes.extend_from_slice(&lane.stream.read(&part)?);
                        next += size;
                    }
                    break;
                };
                let own = block.slice(..size)?;
                lane.stream.copy_out(&part, &own)?;
                copies.push_back((block, own));
                next += size;
            }
            if copies.is_empty() {
                continue;
            }
            let (block, own) =
                copies.pop_front().ok_or(Error::Inside("a copy to the host was lost"))?;
            own.read(|part| bytes.extend_from_slice(part))?;
            self.pinned.give_back(block);
        }
        if len > 0 {
            self.pinned.count(allocated);
        }
        self.check_indices()?;
        Ok(bytes)
    }

    /// Allocates one block of each size, all together, and then frees them into the pool.
    pub(crate) fn warm_up(&self, sizes: &[usize]) -> Result<()> {
        let mut sizes = sizes.to_vec();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        drop(sizes.iter().map(|size| self.memory(*size)).collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    /// Allocates the blocks for copies of these sizes: one more than such copies use concurrently.
    pub(crate) fn warm_up_pinned(&self, sizes: &[usize]) -> Result<()> {
        let blocks = |bytes: usize| if bytes > LARGEST { IN_FLIGHT + 1 } else { 2 };
        let wanted = sizes.iter().map(|n| blocks(*n) * block_size(*n));
        let (bytes, held) = (wanted.fold(0, usize::saturating_add), self.pinned.held());
        if held.saturating_add(bytes) > MOST_PINNED {
            let why = format!(
                "{bytes} more bytes exceed the limit of {MOST_PINNED} ({held} are allocated)"
            );
            return Err(Error::value("warm_up_pinned", why));
        }
        for size in sizes {
            for _ in 0..blocks(*size) {
                self.pinned.give_back(self.device.pinned::<u8>(block_size(*size))?);
            }
        }
        Ok(())
    }

    pub(crate) fn pinned_statistics(&self) -> PinnedStatistics {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let PinnedPool { hits, misses, .. } = &self.pinned;
        PinnedStatistics { hits: read(hits), misses: read(misses), held: self.pinned.held() }
    }

    /// Frees the page-locked blocks that no copy uses. Returns their bytes.
    pub(crate) fn clear_pinned(&self) -> usize {
        let blocks = std::mem::take(&mut *self.pinned.lock());
        blocks.iter().map(|(size, blocks)| size * blocks.len()).sum()
    }
}
