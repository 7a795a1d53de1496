//! The free blocks of a pool, and how a block returns to them.

use super::counters::add;
use super::device::Device;
use super::stream_inner::StreamInner;
use crate::error::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Statistics of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Requests served from free blocks.
    pub hits: u64,
    /// Requests that needed a driver allocation.
    pub misses: u64,
    /// Number of live buffers.
    pub live: u64,
    /// Size of the live buffers in bytes.
    pub in_use: u64,
    /// Maximum of `in_use` so far.
    pub peak: u64,
    /// Bytes allocated from the driver, in use or free.
    pub held: u64,
}

pub(crate) struct Inner {
    pub(super) device: Device,
    pub(super) stream: Arc<StreamInner>,
    pub(super) state: Mutex<FreeBlocks>,
}

#[derive(Default)]
pub(super) struct FreeBlocks {
    /// Free blocks by size.
    pub(super) free: BTreeMap<u64, Vec<u64>>,
    pub(super) stats: PoolStats,
}

/// The pool to which a block returns.
pub(crate) struct OwnerPool {
    pub(super) pool: Arc<Inner>,
    /// Other streams that used the block.
    pub(super) foreign: Mutex<Vec<Arc<StreamInner>>>,
}

impl std::fmt::Debug for OwnerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home(stream {})", self.pool.stream.id())
    }
}

impl OwnerPool {
    /// Records that a stream is about to use the memory. A stream other than the pool's stream
    /// first waits for the pool's stream, in which the previous owner of the block may still have
    /// work.
    pub fn used_by(&self, stream: &Arc<StreamInner>) -> Result<()> {
        if stream.id() == self.pool.stream.id() {
            return Ok(());
        }
        let mut foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        if foreign.iter().all(|s| s.id() != stream.id()) {
            stream.wait_for(&self.pool.stream)?;
            foreign.push(Arc::clone(stream));
        }
        Ok(())
    }

    /// Returns the block after its last owner was dropped.
    pub fn give_back(&mut self, address: u64, bytes: u64) {
        let foreign =
            std::mem::take(self.foreign.get_mut().unwrap_or_else(PoisonError::into_inner));
        let pool = Arc::clone(&self.pool);
        let back = move || {
            // The stream of the pool waits until the other streams have used the block. If an event
            // fails, the context is lost and the order is irrelevant.
            for stream in &foreign {
                let _ = pool.stream.wait_for(stream);
            }
            let mut state = pool.lock();
            state.free.entry(bytes).or_default().push(address);
            state.stats.live = state.stats.live.saturating_sub(1);
            state.stats.in_use = state.stats.in_use.saturating_sub(bytes);
        };
        self.pool.device.outside_capture(back);
    }
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, FreeBlocks> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees blocks to the driver. Returns their bytes.
    pub(super) fn release(&self, free: BTreeMap<u64, Vec<u64>>) -> u64 {
        let mut bytes = 0;
        for (size, addresses) in free {
            for address in addresses {
                bytes += size;
                add(&self.device.inner.counters.frees, 1);
                // SAFETY: the blocks have no owner; the driver waits for work that still uses them.
                let _ = unsafe { self.device.raw().free(address) };
            }
        }
        bytes
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let free =
            std::mem::take(&mut self.state.get_mut().unwrap_or_else(PoisonError::into_inner).free);
        self.release(free);
    }
}
