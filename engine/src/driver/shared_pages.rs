//! Page-locked host pages of several devices.

use super::device::Device;

/// The pages. The host does not access them.
pub struct SharedPages {
    /// The devices that may use the pages. The driver of the first device allocated them.
    pub(super) devices: Vec<Device>,
    pub(super) at: usize,
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

/// Waits for each device, because a driver waits for its own device only. Then the driver of the
/// first device frees the pages. Each wait runs when its device is not capturing.
pub(super) fn give_back(mut devices: Vec<Device>, first: Device, at: usize) {
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
