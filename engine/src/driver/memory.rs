//! Device memory: owned, typed, and freed when it is no longer used.

use super::api::FaultKind;
use super::counters::add;
use super::device::Device;
use super::page_locked::PinnedMemory;
use super::pool_inner::OwnerPool;
use super::shared_pages::SharedPages;
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A block of memory that a device can address. Launches, copies and captured graphs hold it, so
/// that it is not freed before they end.
#[derive(Debug)]
pub struct Memory {
    device: Device,
    address: u64,
    bytes: u64,
    origin: Origin,
    /// Whether kernels of other devices may use the block.
    shared: bool,
}

/// The origin of a block, which determines how it is freed.
#[derive(Debug)]
enum Origin {
    /// From the driver: freed after the work that uses it.
    Driver,
    /// From a pool: returned to the free list of its stream.
    Pool(OwnerPool),
    /// Page-locked host memory, which is freed by its own type.
    Pinned(Arc<PinnedMemory>),
    /// Page-locked host memory of several devices; this is the view of one device.
    Pages { _pages: Arc<SharedPages> },
    /// From another library, which frees the memory when the value is dropped.
    Foreign { _keep: Box<dyn Any + Send + Sync> },
    /// System memory of an integrated GPU whose reserved memory is full, with its host address.
    /// Only the device uses it, so no wait for host access is needed.
    System(usize),
}

impl Memory {
    pub(crate) fn allocate(device: &Device, bytes: u64, what: &str) -> Result<Arc<Memory>> {
        let bytes = bytes.max(1);
        let (address, origin) = match device.raw().alloc(bytes) {
            Err(fault) if fault.kind == FaultKind::OutOfMemory && device.info().integrated => {
                let (at, address) =
                    device.allocated(device.raw().alloc_host(bytes, false), bytes, what)?;
                (address, Origin::System(at as usize))
            }
            answer => (device.allocated(answer, bytes, what)?, Origin::Driver),
        };
        add(&device.inner.counters.allocations, 1);
        Ok(Arc::new(Memory { device: device.clone(), address, bytes, origin, shared: false }))
    }

    fn allocate_shared(device: &Device, bytes: u64) -> Result<Arc<Memory>> {
        let bytes = bytes.max(1);
        let address = device.allocated(
            device.raw().alloc_shared(bytes),
            bytes,
            "a buffer for several devices",
        )?;
        add(&device.inner.counters.allocations, 1);
        Ok(Arc::new(Memory {
            device: device.clone(),
            address,
            bytes,
            origin: Origin::Driver,
            shared: true,
        }))
    }

    pub(crate) fn pooled(
        device: &Device,
        address: u64,
        bytes: u64,
        home: OwnerPool,
    ) -> Arc<Memory> {
        Arc::new(Memory {
            device: device.clone(),
            address,
            bytes,
            origin: Origin::Pool(home),
            shared: false,
        })
    }

    pub(crate) fn of_pinned(pinned: &Arc<PinnedMemory>) -> Arc<Memory> {
        let (device, address, bytes) = (pinned.device().clone(), pinned.address(), pinned.bytes());
        Arc::new(Memory {
            device,
            address,
            bytes,
            origin: Origin::Pinned(Arc::clone(pinned)),
            shared: false,
        })
    }

    pub(crate) fn of_pages(
        device: &Device,
        address: u64,
        bytes: u64,
        pages: &Arc<SharedPages>,
    ) -> Arc<Memory> {
        let origin = Origin::Pages { _pages: Arc::clone(pages) };
        Arc::new(Memory { device: device.clone(), address, bytes, origin, shared: false })
    }

    /// The device of this memory.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of bytes from this address to the end.
    pub(crate) fn behind(&self, address: u64) -> u64 {
        (self.address + self.bytes).saturating_sub(address)
    }

    /// Size of the memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether kernels of another device may use the memory.
    pub(crate) fn is_for(&self, other: &Device) -> bool {
        self.shared && self.device.target().vendor() == other.target().vendor()
    }

    pub(crate) fn home(&self) -> Option<&OwnerPool> {
        match &self.origin {
            Origin::Pool(home) => Some(home),
            _ => None,
        }
    }

    pub(crate) fn pinned(&self) -> Option<&Arc<PinnedMemory>> {
        match &self.origin {
            Origin::Pinned(pinned) => Some(pinned),
            _ => None,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let (device, address) = (self.device.clone(), self.address);
        match &mut self.origin {
            Origin::Driver => {
                add(&device.inner.counters.frees, 1);
                self.device.outside_capture(move || {
                    // SAFETY: the only owner is being dropped; the driver waits for work that still
                    // uses the memory. An error means a lost context, which the next call reports.
                    let _ = unsafe { device.raw().free(address) };
                });
            }
            Origin::System(at) => {
                add(&device.inner.counters.frees, 1);
                let at = *at;
                self.device.outside_capture(move || {
                    // SAFETY: the only owner is being dropped; the driver waits for work that still
                    // uses the memory.
                    let _ = unsafe { device.raw().free_host(at as *mut u8) };
                });
            }
            Origin::Pool(home) => home.give_back(address, self.bytes),
            Origin::Pinned(_) | Origin::Pages { .. } | Origin::Foreign { .. } => {}
        }
    }
}

/// `len` values of type `T` on a device: a view of shared [`Memory`]. Cloning and slicing create
/// further views; the data are not copied.
///
/// The contents are undefined at first, because the memory is not cleared.
pub struct DeviceBuffer<T> {
    memory: Arc<Memory>,
    /// Byte offset in the memory.
    offset: u64,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Clone for DeviceBuffer<T> {
    fn clone(&self) -> Self {
        DeviceBuffer {
            memory: Arc::clone(&self.memory),
            offset: self.offset,
            len: self.len,
            kind: PhantomData,
        }
    }
}

impl<T> std::fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DeviceBuffer<{}>[{}] at {:#x}",
            std::any::type_name::<T>(),
            self.len,
            self.address()
        )
    }
}

impl Device {
    /// Allocates memory for `len` values from the driver. For many or short-lived buffers use an
    /// arena or a pool.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the requested and the free bytes.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = bytes_of::<T>(len)?;
        Ok(DeviceBuffer::over(Memory::allocate(self, bytes, "a buffer")?, 0, len))
    }

    /// Like [`Device::buffer`], for use by kernels of other devices of the vendor that can access
    /// this one ([`Device::reach`]). Writes of one device are visible to another during kernels if
    /// both use system-scope accesses. The memory is freed when the last owner drops it; kernels of
    /// other devices must have ended by then.
    ///
    /// # Errors
    /// See [`Device::buffer`].
    pub fn shared_buffer<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        Ok(DeviceBuffer::over(Memory::allocate_shared(self, bytes_of::<T>(len)?)?, 0, len))
    }

    /// A buffer in memory of another library on this device, without a copy. `keep` is dropped with
    /// the last view; work that still uses the memory must have ended by then.
    ///
    /// # Safety
    /// `address` has `bytes` bytes on this device, in the context that this process shares with
    /// other libraries, until `keep` is dropped.
    pub unsafe fn foreign_buffer(
        &self,
        address: u64,
        bytes: usize,
        keep: Box<dyn Any + Send + Sync>,
    ) -> DeviceBuffer<u8> {
        let memory = Arc::new(Memory {
            device: self.clone(),
            address,
            bytes: bytes as u64,
            origin: Origin::Foreign { _keep: keep },
            shared: false,
        });
        DeviceBuffer::over(memory, 0, bytes)
    }
}

/// Bytes of `len` values.
pub(crate) fn bytes_of<T>(len: usize) -> Result<u64> {
    len.checked_mul(size_of::<T>()).map(|n| n as u64).ok_or_else(|| {
        Error::Buffer(format!("{len} values of {} bytes exceed the address space", size_of::<T>()))
    })
}

impl<T> DeviceBuffer<T> {
    /// The caller has checked that `offset` and `len` are inside the memory and that `offset` is
    /// aligned for `T`.
    pub(crate) fn over(memory: Arc<Memory>, offset: u64, len: usize) -> DeviceBuffer<T> {
        DeviceBuffer { memory, offset, len, kind: PhantomData }
    }

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
        self.len * size_of::<T>() // `over` checked that this fits in the memory
    }

    /// Address on the device, for tables of pointers that kernels read. A view must exist as long
    /// as the table is used.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.memory.address + self.offset
    }

    /// The memory that contains it.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn shared(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// A view of a range of the values.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the range is outside the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceBuffer<T>> {
        let (start, end) = resolve(range, self.len)?;
        let offset = self.offset + (start * size_of::<T>()) as u64;
        Ok(DeviceBuffer::over(Arc::clone(&self.memory), offset, end - start))
    }

    /// The bytes as values of type `U`.
    ///
    /// # Errors
    /// [`Error::Buffer`] if the size is not a multiple of the type's size, or the address is not
    /// aligned for it.
    pub fn cast<U: Pod>(&self) -> Result<DeviceBuffer<U>> {
        let size = size_of::<U>().max(1);
        if !self.bytes().is_multiple_of(size)
            || !self.address().is_multiple_of(align_of::<U>() as u64)
        {
            return Err(Error::Buffer(format!(
                "{} bytes at {:#x} are not a whole number of aligned values of {size} bytes",
                self.bytes(),
                self.address()
            )));
        }
        Ok(DeviceBuffer::over(Arc::clone(&self.memory), self.offset, self.bytes() / size))
    }
}

/// Start and end of a range within `len` values.
pub(crate) fn resolve(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&n) => Some(n),
        Bound::Excluded(&n) => n.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&n) => n.checked_add(1),
        Bound::Excluded(&n) => Some(n),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end)),
        _ => Err(Error::Buffer(format!(
            "the slice {start:?}..{end:?} is outside the buffer of {len} values"
        ))),
    }
}
