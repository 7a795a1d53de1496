//! Page-locked host memory that kernels of several devices access while they run, for devices that
//! cannot access each other's memory.

use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of};
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::sync::Arc;

/// The pages. The host does not access them.
pub struct SharedPages {
    /// The devices that may use them. The first one's driver allocated them.
    devices: Vec<Device>,
    at: usize,
}

impl std::fmt::Debug for SharedPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedPages of {} devices", self.devices.len())
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        let (devices, at) = (std::mem::take(&mut self.devices), self.at);
        let Some(first) = devices.first().cloned() else { return };
        give_back(devices, first, at);
    }
}

/// Waits for each device, since a driver waits for its own device only, then frees the pages with
/// the first one's driver. Each wait runs when its device is not capturing.
fn give_back(mut devices: Vec<Device>, first: Device, at: usize) {
    match devices.pop() {
        Some(device) => device.clone().outside_capture(move || {
            // If waiting fails, the device is lost and does not access the pages.
            let _ = device.raw().wait_all();
            give_back(devices, first, at);
        }),
        None => first.clone().outside_capture(move || {
            // SAFETY: allocated by this device's driver; the last owner is being dropped, and no
            // device uses it.
            let _ = unsafe { first.raw().free_host(at as *mut u8) };
        }),
    }
}

impl Device {
    /// Zeroed page-locked host memory for `len` values that kernels of all these devices (of one
    /// vendor) may use at once. Returns a view of the memory for each device, in their order.
    /// Writes of one device are visible to another during kernels if both use system-scope
    /// accesses.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Driver`]; [`Error::Buffer`] for no devices, or devices of two
    /// vendors.
    pub fn shared_in_host<T: Pod>(devices: &[Device], len: usize) -> Result<Vec<DeviceBuffer<T>>> {
        let Some(first) = devices.first() else {
            return Err(Error::Buffer(
                "memory for several devices, of which there is none".to_owned(),
            ));
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
        let at = first.pinned_answer(first.raw().alloc_host_shared(bytes), bytes)?;
        let pages = Arc::new(SharedPages { devices: devices.to_vec(), at: at as usize });
        // SAFETY: that many bytes were just allocated there, and no one else has the address.
        unsafe { at.write_bytes(0, bytes as usize) };
        let view = |device: &Device| {
            // SAFETY: page-locked above for all devices of the vendor, and kept alive by `pages`.
            let address = device.ok(unsafe { device.raw().host_address(at) })?;
            Ok(DeviceBuffer::over(Memory::of_pages(device, address, bytes, &pages), 0, len))
        };
        devices.iter().map(view).collect()
    }
}
