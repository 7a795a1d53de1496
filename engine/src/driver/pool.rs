//! A pool of device memory that belongs to a stream, and an arena with a fixed size.

use super::counters::add;
use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of};
use super::pool_inner::{FreeBlocks, Inner, OwnerPool, PoolStats};
use super::stream::Stream;
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of all buffers in bytes: the alignment of driver allocations, which is more than any
/// vector load needs.
const ALIGN: u64 = 256;

/// Device memory in the order of a stream. A dropped buffer is reused immediately, because later
/// work of the stream starts after earlier work has ended. If another stream also used the buffer,
/// it is reused after the work of that stream, by an event. The host never waits.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

impl Stream {
    /// A pool whose memory follows the order of this stream.
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
        let requested = bytes_of::<T>(len)?;
        let size = class(requested)
            .ok_or_else(|| Error::Buffer(format!("{requested} bytes exceed the address space")))?;
        let (address, size) = self.block(size)?;
        let home = OwnerPool { pool: Arc::clone(&self.inner), foreign: Mutex::default() };
        Ok(DeviceBuffer::over(Memory::pooled(&self.inner.device, address, size, home), 0, len))
    }

    fn block(&self, size: u64) -> Result<(u64, u64)> {
        let mut state = self.inner.lock();
        // A block that is up to a quarter too large is preferred to a driver allocation.
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

    fn ask(&self, state: &mut FreeBlocks, size: u64) -> Result<u64> {
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

    /// Frees all free blocks to the driver. Returns the freed bytes.
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
    /// Creates an arena of `bytes` bytes. [`Arena::room`] gives the size that a buffer needs.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the requested and the free bytes.
    pub fn arena(&self, bytes: u64) -> Result<Arena> {
        Ok(Arena { memory: Memory::allocate(self, bytes, "the arena")?, used: Mutex::new(0) })
    }
}

impl Arena {
    /// Bytes that a buffer of `len` values takes in an arena, including alignment.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the size overflows.
    pub fn room<T>(len: usize) -> Result<u64> {
        bytes_of::<T>(len)?
            .checked_next_multiple_of(ALIGN)
            .ok_or_else(|| Error::Buffer(format!("{len} values exceed the address space")))
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
                "the arena is too small: {left} of {} bytes are free, {room} are needed",
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
    fn pool_classes_are_aligned_with_little_waste() {
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
