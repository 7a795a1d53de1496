//! HIP: opens AMD's runtime at run time, describes and opens its devices.

mod blas;
mod device;
pub(super) mod runtime;

use super::api::{Driver, RawDevice};
use super::info::DeviceInfo;
use crate::arch::Vendor;
use crate::error::Result;
use runtime::{HipRuntime, fault, no_device};
use std::sync::Arc;

impl Driver for Arc<HipRuntime> {
    fn vendor(&self) -> Vendor {
        Vendor::Amd
    }

    fn version(&self) -> (u32, u32) {
        self.version
    }

    fn library(&self) -> &str {
        &self.library
    }

    fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: writes one int.
        match unsafe { self.hip.hipGetDeviceCount(&mut count) } {
            Ok(()) => Ok(u32::try_from(count).unwrap_or(0)),
            Err(error) if no_device(&error) => Ok(0),
            Err(error) => Err(fault(error).on("rocm")),
        }
    }

    fn describe(&self, ordinal: u32) -> Result<DeviceInfo> {
        self.facts(ordinal).map_err(|f| f.on(&format!("rocm:{ordinal}")))
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn RawDevice>> {
        let device = device::HipDevice::open(Arc::clone(self), ordinal)
            .map_err(|f| f.on(&format!("rocm:{ordinal}")))?;
        Ok(Arc::new(device))
    }
}
