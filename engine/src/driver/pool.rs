//! A pool of device memory that belongs to one stream, and an arena that is laid out once.

use super::counters::add;
use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of};
use super::stream::{Stream, StreamInner};
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of everything handed out: what drivers give, and more than any vector load needs.
const ALIGN: u64 = 256;

/// What a pool did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Requests served from memory that came back.
    pub hits: u64,
    /// Requests that asked the driver.
    pub misses: u64,
    /// Buffers alive.
    pub live: u64,
    /// Their bytes.
    pub in_use: u64,
    /// Highest `in_use` so far.
    pub peak: u64,
    /// Bytes held from the driver, in use or waiting.
    pub held: u64,
}

/// Device memory in the order of one stream: what is dropped is handed out again at once, since
/// later work of the stream cannot start before earlier work has ended. A buffer that another
/// stream used too comes back after that stream's work, by an event; the host never waits.
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
    /// Waiting blocks by size.
    free: BTreeMap<u64, Vec<u64>>,
    stats: PoolStats,
}

/// The pool that a piece of memory goes back to.
pub(crate) struct Home {
    pool: Arc<Inner>,
    /// Streams other than the pool's that used it.
    foreign: Mutex<Vec<Arc<StreamInner>>>,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home(stream {})", self.pool.stream.id())
    }
}

impl Home {
    /// Notes that a stream is about to use the memory. Another than the pool's goes on only after
    /// what the pool's stream has now: the block's last owner may still be at work there.
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

    /// The memory's last owner is gone.
    pub fn give_back(&mut self, address: u64, bytes: u64) {
        let foreign =
            std::mem::take(self.foreign.get_mut().unwrap_or_else(PoisonError::into_inner));
        let pool = Arc::clone(&self.pool);
        let back = move || {
            // The pool's stream goes on only after what the others did with the block. Should an
            // event fail, the context is lost and no order matters any more.
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

    /// Gives blocks back to the driver; their bytes.
    fn release(&self, free: BTreeMap<u64, Vec<u64>>) -> u64 {
        let mut bytes = 0;
        for (size, addresses) in free {
            for address in addresses {
                bytes += size;
                add(&self.device.inner.counters.frees, 1);
                // SAFETY: nobody owns the block; the driver waits for work that still uses it.
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
    /// A pool whose memory is in this stream's order.
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

/// The size handed out for a request: four steps an octave up to 1 MiB, then whole 2 MiB.
fn class(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(ALIGN);
    if bytes > 1 << 20 {
        return bytes.checked_next_multiple_of(2 << 20);
    }
    let step = (bytes.next_power_of_two() / 8).max(ALIGN);
    bytes.checked_next_multiple_of(step)
}

impl Pool {
    /// Memory for `len` values, with whatever is in it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], after what waits in the pool was given back and did not help.
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
        // A quarter too large is taken rather than asking the driver.
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

    /// Gives what waits back to the driver; the bytes.
    pub fn trim(&self) -> u64 {
        let mut state = self.inner.lock();
        let bytes = self.inner.release(std::mem::take(&mut state.free));
        state.stats.held = state.stats.held.saturating_sub(bytes);
        bytes
    }

    /// What it did and holds.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.inner.lock().stats
    }
}

/// One allocation, sized before the first token, cut into buffers that live as long as anybody
/// holds them.
pub struct Arena {
    memory: Arc<Memory>,
    used: Mutex<u64>,
}

impl Device {
    /// An arena of `bytes` bytes. Use [`Arena::room`] to add up what buffers will take.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with what was asked and what is free.
    pub fn arena(&self, bytes: u64) -> Result<Arena> {
        Ok(Arena { memory: Memory::allocate(self, bytes, "the arena")?, used: Mutex::new(0) })
    }
}

impl Arena {
    /// Bytes that a buffer of `len` values takes in an arena, alignment included.
    ///
    /// # Errors
    /// [`Error::Buffer`] when they cannot be addressed.
    pub fn room<T>(len: usize) -> Result<u64> {
        bytes_of::<T>(len)?
            .checked_next_multiple_of(ALIGN)
            .ok_or_else(|| Error::Buffer(format!("{len} values cannot be addressed")))
    }

    /// The next `len` values, aligned to 256 bytes.
    ///
    /// # Errors
    /// [`Error::Buffer`] when the arena has not that much left: it was sized too small.
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

    /// Bytes handed out and bytes in all.
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
