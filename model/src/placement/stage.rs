//! The place of a stage.

use kjit_engine::Device;

/// The place of a stage.
#[derive(Debug, Clone)]
pub enum Place {
    /// The CPU.
    Cpu,
    /// This device.
    Gpu(Device),
}
