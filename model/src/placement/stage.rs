//! The device of a stage.

use kjit_engine::Device;

/// The device of a stage.
#[derive(Debug, Clone)]
pub enum StageDevice {
    /// The stage runs on the CPU.
    Cpu,
    /// The stage runs on this GPU.
    Gpu(Device),
}
