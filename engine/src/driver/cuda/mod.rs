//! CUDA: opens the driver library at run time, describes and opens its devices.

mod device;
pub(super) mod runtime;
mod symbols;

use super::api::{Driver, RawDevice};
use super::info::DeviceInfo;
use crate::arch::Vendor;
use crate::error::Result;
use runtime::{Cuda, NO_DEVICE};
use std::sync::Arc;

impl Driver for Arc<Cuda> {
    fn vendor(&self) -> Vendor {
        Vendor::Nvidia
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
        let code = unsafe { (self.symbols.cuDeviceGetCount)(&mut count) };
        if code == NO_DEVICE {
            return Ok(0);
        }
        self.check("cuDeviceGetCount", code).map_err(|f| f.on("cuda"))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn describe(&self, ordinal: u32) -> Result<DeviceInfo> {
        self.facts(ordinal).map_err(|f| f.on(&format!("cuda:{ordinal}")))
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn RawDevice>> {
        let device = device::CudaDevice::open(Arc::clone(self), ordinal)
            .map_err(|f| f.on(&format!("cuda:{ordinal}")))?;
        Ok(Arc::new(device))
    }
}
