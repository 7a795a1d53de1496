//! A pool of device memory that belongs to a stream, and an arena with a fixed size.

use super::counters::add;
use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of};
use super::stream::{Stream, StreamInner};
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of all buffers: that of driver allocations, and more than any vector load needs.
const ALIGN: u64 = 256;

/// Statistics of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Requests served from free blocks.
    pub hits: u64,
    /// Requests that needed a driver allocation.
    pub misses: u64,
    /// Number of live buffers.
    pub live: u64,
    /// Their bytes.
    pub in_use: u64,
    /// Maximum of `in_use` so far.
    pub peak: u64,
    /// Bytes allocated from the driver, in use or free.
    pub held: u64,
}

/// Device memory in the order of a stream: a dropped buffer is reused immediately, since later work
/// of the stream starts after earlier work has ended. A buffer that another stream also used is
/// reused after that stream's work, by an event; the host never waits.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    device: Device,
    stream: Arc<StreamInner>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Free blocks by size.
    free: BTreeMap<u64, Vec<u64>>,
    stats: PoolStats,
}

/// The pool to which a block returns.
pub(crate) struct Home {
    pool: Arc<Inner>,
    /// Other streams that used it.
    foreign: Mutex<Vec<Arc<StreamInner>>>,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home(stream {})", self.pool.stream.id())
    }
}

impl Home {
    /// Records that a stream is about to use the memory. A stream other than the pool's first waits
    /// for the pool's stream, in which the block's previous owner may still have work.
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

    /// Returns the block of the last owner.
    pub fn give_back(&mut self, address: u64, bytes: u64) {
        let foreign =
            std::mem::take(self.foreign.get_mut().unwrap_or_else(PoisonError::into_inner));
        let pool = Arc::clone(&self.pool);
        let back = move || {
            // The pool's stream waits for the other streams' use of the block. If an event fails,
            // the context is lost and the order does not matter.
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees blocks to the driver. Returns their bytes.
    fn release(&self, free: BTreeMap<u64, Vec<u64>>) -> u64 {
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

impl Stream {
    /// A pool whose memory follows this stream's order.
    #[must_use]
    pub fn pool(&self) -> Pool {
        Pool {
            inner: Arc::new(Inner {
                device: self.device().clone(),
                stream: Arc::clone(self.inner()),
                state: Mutex::default(),
            }),
        }
    }
}

/// The block size for a request: four steps per octave up to 1 MiB, then multiples of 2 MiB.
fn class(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(ALIGN);
    if bytes > 1 << 20 {
        return bytes.checked_next_multiple_of(2 << 20);
    }
    let step = (bytes.next_power_of_two() / 8).max(ALIGN);
    bytes.checked_next_multiple_of(step)
}

impl Pool {
    /// Memory for `len` values with undefined contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], after the pool's free blocks were freed to the driver without
    /// success.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let asked = bytes_of::<T>(len)?;
        let size = class(asked)
            .ok_or_else(|| Error::Buffer(format!("{asked} bytes cannot be addressed")))?;
        let (address, size) = self.block(size)?;
        let home = Home { pool: Arc::clone(&self.inner), foreign: Mutex::default() };
        Ok(DeviceBuffer::over(Memory::pooled(&self.inner.device, address, size, home), 0, len))
    }

    fn block(&self, size: u64) -> Result<(u64, u64)> {
        let mut state = self.inner.lock();
        // A block up to a quarter too large is preferred to a driver allocation.
        let fit = state
            .free
            .range(size..=size + size / 4)
            .find(|(_, list)| !list.is_empty())
            .map(|(size, _)| *size);
        let found = fit.and_then(|size| Some((state.free.get_mut(&size)?.pop()?, size)));
        let (address, size) = match found {
            Some(block) => {
                state.stats.hits += 1;
                block
            }
            None => {
                let address = self.ask(&mut state, size)?;
                state.stats.misses += 1;
                state.stats.held += size;
                (address, size)
            }
        };
        state.stats.live += 1;
        state.stats.in_use += size;
        state.stats.peak = state.stats.peak.max(state.stats.in_use);
        Ok((address, size))
    }

    fn ask(&self, state: &mut State, size: u64) -> Result<u64> {
        let device = &self.inner.device;
        let ask = || device.allocated(device.raw().alloc(size), size, "the pool");
        let address = match ask() {
            Err(Error::OutOfMemory { .. }) if !state.free.is_empty() => {
                state.stats.held -=
                    self.inner.release(std::mem::take(&mut state.free)).min(state.stats.held);
                ask()?
            }
            other => other?,
        };
        add(&device.inner.counters.allocations, 1);
        Ok(address)
    }

    /// Frees all free blocks to the driver. Returns their bytes.
    pub fn trim(&self) -> u64 {
        let mut state = self.inner.lock();
        let bytes = self.inner.release(std::mem::take(&mut state.free));
        state.stats.held = state.stats.held.saturating_sub(bytes);
        bytes
    }

    /// The statistics of the pool.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.inner.lock().stats
    }
}

/// One allocation with a fixed size, divided into buffers that keep it alive.
pub struct Arena {
    memory: Arc<Memory>,
    used: Mutex<u64>,
}

impl Device {
    /// An arena of `bytes` bytes. [`Arena::room`] gives the size that a buffer needs.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the requested and the free bytes.
    pub fn arena(&self, bytes: u64) -> Result<Arena> {
        Ok(Arena { memory: Memory::allocate(self, bytes, "the arena")?, used: Mutex::new(0) })
    }
}

impl Arena {
    /// Bytes of a buffer of `len` values in an arena, including alignment.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the size overflows.
    pub fn room<T>(len: usize) -> Result<u64> {
        bytes_of::<T>(len)?
            .checked_next_multiple_of(ALIGN)
            .ok_or_else(|| Error::Buffer(format!("{len} values cannot be addressed")))
    }

    /// The next `len` values, aligned to 256 bytes.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the arena is too small.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let room = Arena::room::<T>(len)?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let end = used
            .checked_add(room)
            .filter(|end| *end <= self.memory.bytes().next_multiple_of(ALIGN));
        let (Some(end), true) = (end, *used + bytes_of::<T>(len)? <= self.memory.bytes()) else {
            let left = self.memory.bytes().saturating_sub(*used);
            return Err(Error::Buffer(format!(
                "the arena has {left} of {} bytes left, asked {room}",
                self.memory.bytes()
            )));
        };
        let offset = std::mem::replace(&mut *used, end);
        Ok(DeviceBuffer::over(Arc::clone(&self.memory), offset, len))
    }

    /// Used and total bytes.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        (*self.used.lock().unwrap_or_else(PoisonError::into_inner), self.memory.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn classes_waste_at_most_a_quarter_and_stay_aligned() {
        for bytes in
            [0, 1, 255, 256, 257, 1000, 4097, 65537, 999_999, (1 << 20) + 1, 5_000_000, 1 << 33]
        {
            let size = class(bytes).unwrap();
            assert!(size >= bytes && size.is_multiple_of(256), "{bytes}: {size}");
            assert!(
                size <= bytes + (bytes / 4).max(256) || size - bytes < 2 << 20,
                "{bytes}: {size}"
            );
        }
        assert_eq!(class(u64::MAX), None);
    }
}
