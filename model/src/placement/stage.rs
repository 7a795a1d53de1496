//! Where a stage is.

use kjit_engine::Device;

/// Where a stage is.
#[derive(Debug, Clone)]
pub enum Place {
    /// On the CPU.
    Cpu,
    /// On this device.
    Gpu(Device),
}
