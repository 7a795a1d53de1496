//! Page-locked host memory that kernels of several devices write and read while they run: what
//! devices that do not reach each other's memory meet in.

use super::device::Device;
use super::memory::{DeviceBuffer, Memory, bytes_of};
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::sync::Arc;

/// The pages. No host access: what they hold is the kernels' own.
pub struct SharedPages {
    /// That may use them; the first one's driver made them.
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

/// Waits for each of these devices, since a driver waits at most for its own, then has the first
/// one's free the pages; each when nothing is recorded there.
fn give_back(mut devices: Vec<Device>, first: Device, at: usize) {
    match devices.pop() {
        Some(device) => device.clone().outside_capture(move || {
            // One that is lost computes no more.
            let _ = device.raw().wait_all();
            give_back(devices, first, at);
        }),
        None => first.clone().outside_capture(move || {
            // SAFETY: made by this device's driver; the last owner is going, and no device uses it.
            let _ = unsafe { first.raw().free_host(at as *mut u8) };
        }),
    }
}

impl Device {
    /// Zeroed page-locked host memory for `len` values that kernels of all these devices, of one
    /// vendor, may use at once: a view of the same memory for each of them, in their order. What
    /// one writes there while another reads it is seen, if both do so by accesses of the system's
    /// scope.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Driver`]; [`Error::Buffer`] for no device, or devices of two
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
        // SAFETY: so many bytes were just made there, and nobody else knows of them.
        unsafe { at.write_bytes(0, bytes as usize) };
        let view = |device: &Device| {
            // SAFETY: page-locked above, for all devices of the vendor, and kept by `pages`.
            let address = device.ok(unsafe { device.raw().host_address(at) })?;
            Ok(DeviceBuffer::over(Memory::of_pages(device, address, bytes, &pages), 0, len))
        };
        devices.iter().map(view).collect()
    }
}
