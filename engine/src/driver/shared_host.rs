//! Page-locked host memory that kernels of several devices access while they run. Used for devices
//! that cannot access each other's memory.

use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of};
use super::shared_pages::SharedPages;
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::sync::Arc;

impl Device {
    /// Allocates zeroed page-locked host memory for `len` values. Kernels of all these devices (of
    /// one vendor) may use it simultaneously. Returns a view of the memory for each device, in
    /// their order. Writes of one device are visible to another during kernels if both use
    /// system-scope accesses.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Driver`]; [`Error::Buffer`] for no devices, or devices of two
    /// vendors.
    pub fn shared_in_host<T: Pod>(devices: &[Device], len: usize) -> Result<Vec<DeviceBuffer<T>>> {
        let Some(first) = devices.first() else {
            return Err(Error::Buffer("shared memory needs at least one device".to_owned()));
        };
        if let Some(other) = devices.iter().find(|d| d.target().vendor() != first.target().vendor())
        {
            return Err(Error::Buffer(format!(
                "{} and {} share no memory",
                first.label(),
                other.label()
            )));
        }
        let bytes = bytes_of::<T>(len)?.max(1);
        let at = first.page_locked_result(first.raw().alloc_host_shared(bytes), bytes)?;
        let pages = Arc::new(SharedPages { devices: devices.to_vec(), at: at as usize });
        // SAFETY: that many bytes were just allocated there, and the address was not passed on.
        unsafe { at.write_bytes(0, bytes as usize) };
        let view = |device: &Device| {
            // SAFETY: page-locked above for all devices of the vendor, and kept alive by `pages`.
            let address = device.ok(unsafe { device.raw().host_address(at) })?;
            Ok(DeviceBuffer::over(Memory::of_pages(device, address, bytes, &pages), 0, len))
        };
        devices.iter().map(view).collect()
    }
}
