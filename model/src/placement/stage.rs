//! A stage and its interface to the next one: hidden states of pieces of sequences.

use kjit_engine::Device;

/// The place of a stage.
#[derive(Debug, Clone)]
pub enum Place {
    /// The CPU.
    Cpu,
    /// This device.
    Gpu(Device),
}
