//! Page-locked host memory. Copies from and to it have full speed and overlap with kernels.
//!
//! The host can access it only while no copy or kernel uses it: every use by a stream records an
//! event, and host access waits for these events. [`PinnedBuffer::peek`] is the exception, for
//! values that the device writes and the host polls.

use super::api::{FaultKind, Try};
use super::counters::add;
use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of, resolve};
use super::page_locked::{Pending, PinnedMemory};
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::any::Any;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `len` values in page-locked host memory. Cloning and slicing create further views of the memory.
pub struct PinnedBuffer<T> {
    memory: Arc<PinnedMemory>,
    offset: usize,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Clone for PinnedBuffer<T> {
    fn clone(&self) -> Self {
        PinnedBuffer {
            memory: Arc::clone(&self.memory),
            offset: self.offset,
            len: self.len,
            kind: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedBuffer<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

impl Device {
    /// Allocates page-locked memory for `len` values, zeroed, for reading and writing.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Driver`].
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        self.make_pinned(len, false)
    }

    /// Allocates write-combined page-locked memory. The device reads it fast (staging of weights);
    /// the host reads it very slowly.
    ///
    /// # Errors
    /// See [`Device::pinned`].
    pub fn pinned_for_writing<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        self.make_pinned(len, true)
    }

    fn make_pinned<T: Pod>(&self, len: usize, write_combined: bool) -> Result<PinnedBuffer<T>> {
        let bytes = bytes_of::<T>(len)?.max(1);
        let (at, address) =
            self.page_locked_result(self.raw().alloc_host(bytes, write_combined), bytes)?;
        // SAFETY: `bytes` bytes were just allocated there, and the address was not passed on.
        unsafe { at.write_bytes(0, bytes as usize) };
        let memory =
            PinnedMemory { device: self.clone(), at, address, bytes, pending: Mutex::default() };
        Ok(PinnedBuffer { memory: Arc::new(memory), offset: 0, len, kind: PhantomData })
    }
}

impl Device {
    /// Converts the driver's result of a page-locked allocation.
    pub(super) fn page_locked_result<T>(&self, answer: Try<T>, asked: u64) -> Result<T> {
        let result = answer.map_err(|fault| match fault.kind {
            FaultKind::Lost => fault.on(self.label()),
            // This is system memory, so the free memory of the device is irrelevant.
            _ => Error::Pinned {
                device: self.label().to_owned(),
                asked,
                call: fault.call,
                says: fault.says,
            },
        })?;
        add(&self.inner.counters.pinned, 1);
        Ok(result)
    }
}

impl<T: Pod> PinnedBuffer<T> {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>() // the size was checked when the buffer was created
    }

    /// A view of a range of the values.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range is outside the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<PinnedBuffer<T>> {
        let (start, end) = resolve(range, self.len)?;
        let offset = self.offset + start * size_of::<T>();
        Ok(PinnedBuffer {
            memory: Arc::clone(&self.memory),
            offset,
            len: end - start,
            kind: PhantomData,
        })
    }

    /// Calls `f` with the values after all copies and kernels that use them are done.
    ///
    /// # Errors
    /// [`Error::Driver`] if this work failed.
    pub fn read<R>(&self, f: impl FnOnce(&[T]) -> R) -> Result<R> {
        let mut pending = self.memory.pending();
        pending.wait()?;
        // SAFETY: aligned (page-locked memory is page-aligned, offsets are whole values), inside
        // the allocation, plain old data; no stream uses it, and the lock excludes other host
        // access while the reference lives.
        Ok(f(unsafe { std::slice::from_raw_parts(self.host().cast::<T>(), self.len) }))
    }

    /// Calls `f` with the mutable values after all copies and kernels that use them are done.
    ///
    /// # Errors
    /// See [`PinnedBuffer::read`].
    pub fn write<R>(&self, f: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        let mut pending = self.memory.pending();
        pending.wait()?;
        // SAFETY: aligned, inside the allocation and plain old data, as `read` states; no stream
        // uses it, and the lock makes this the only reference.
        Ok(f(unsafe { std::slice::from_raw_parts_mut(self.host().cast::<T>(), self.len) }))
    }

    /// The current value at an index, without waiting. For values that kernels write while the host
    /// polls. Reads are atomic for types of 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the index is outside the buffer.
    pub fn peek(&self, index: usize) -> Result<T> {
        if index >= self.len {
            return Err(Error::Buffer(format!(
                "index {index} is outside the buffer of {} values",
                self.len
            )));
        }
        // SAFETY: inside the buffer, aligned, plain old data; volatile, since the device may write
        // it at any time.
        Ok(unsafe { self.host().cast::<T>().add(index).read_volatile() })
    }

    /// Sets the value at an index, without waiting. For words that no launched work reads: the host
    /// prepares the next work while the device runs. A kernel that does read the word sees the old
    /// or the new value.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the index is outside the buffer.
    pub fn poke(&self, index: usize, value: T) -> Result<()> {
        if index >= self.len {
            return Err(Error::Buffer(format!(
                "index {index} is outside the buffer of {} values",
                self.len
            )));
        }
        // The lock excludes references of `read` and `write`.
        let _pending = self.memory.pending();
        // SAFETY: inside the buffer, aligned, plain old data; volatile, since the device may read
        // it at any time.
        unsafe { self.host().cast::<T>().add(index).write_volatile(value) };
        Ok(())
    }

    /// The address of the memory on its device, for kernels that access it directly.
    #[must_use]
    pub fn on_device(&self) -> DeviceBuffer<T> {
        DeviceBuffer::over(Memory::of_pinned(&self.memory), self.offset as u64, self.len)
    }

    pub(crate) fn host(&self) -> *mut u8 {
        // SAFETY: the offset was checked to be inside the allocation.
        unsafe { self.memory.at.add(self.offset) }
    }

    pub(crate) fn shared(&self) -> &Arc<PinnedMemory> {
        &self.memory
    }
}

/// An existing read-only mapping (a model file) whose pages are locked. Copies from it run at full
/// speed without staging. Cheap to clone: clones share the mapping.
#[derive(Clone)]
pub struct HostMap {
    locked: Arc<Locked>,
}

struct Locked {
    device: Device,
    /// Keeps the mapping alive. It is dropped after the pages are unlocked.
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// The address at registration. `as_ref` might return a different slice later.
    at: usize,
    len: usize,
    pending: Mutex<Pending>,
}

impl std::fmt::Debug for HostMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostMap({} bytes)", self.bytes())
    }
}

impl Device {
    /// Page-locks the bytes of `owner` for reading. They must not move while `owner` exists; memory
    /// maps and boxed slices do not move. On an H200, 2 GiB take 0.1 s this way and 0.9 s as a new
    /// page-locked allocation.
    ///
    /// # Errors
    /// [`Error::Driver`] if the system or the device does not support it. Then copy through
    /// [`Device::pinned_for_writing`].
    pub fn register(&self, owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<HostMap> {
        let bytes = (*owner).as_ref();
        // SAFETY: the bytes live until Drop has unregistered them; they are only read.
        self.ok(unsafe { self.raw().register_host(bytes.as_ptr(), bytes.len()) })?;
        add(&self.inner.counters.pinned, 1);
        let (at, len) = (bytes.as_ptr() as usize, bytes.len());
        Ok(HostMap {
            locked: Arc::new(Locked {
                device: self.clone(),
                owner,
                at,
                len,
                pending: Mutex::default(),
            }),
        })
    }
}

impl HostMap {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.locked.len
    }

    /// The address of the byte at `offset`.
    pub(crate) fn host(&self, offset: usize) -> *const u8 {
        (self.locked.at as *const u8).wrapping_add(offset)
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.locked.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the pages locked while a captured graph exists.
    pub(crate) fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        let locked: Arc<Locked> = Arc::clone(&self.locked);
        locked
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A lost context does not copy any more; otherwise this waits for every copy. Graphs with
        // copies from this memory wait for their last replay before they release it.
        let _ = self.pending.get_mut().unwrap_or_else(PoisonError::into_inner).wait();
        let (device, owner, at) = (self.device.clone(), Arc::clone(&self.owner), self.at);
        self.device.outside_capture(move || {
            // SAFETY: registered in `register` with this pointer; `owner` keeps the mapping until
            // afterwards.
            let _ = unsafe { device.raw().unregister_host(at as *const u8) };
            drop(owner);
        });
    }
}
