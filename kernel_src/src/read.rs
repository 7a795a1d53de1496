//! Memory read as fast as it goes: the limit that other kernels are held against. `gpu/read.hip`.

use crate::kernel::{Kernel, SpecError, require, source};
use kjit_engine::{Constants, Options, Target};

/// Reads. Arguments: `x, out` (pointers), `vectors: u64` (of 16 bytes), `blocks: u32` (the grid's size). `out` gets a u32 for each thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadSpec {
    /// Vectors of 16 bytes that a thread has on their way: 1 to 16.
    pub flight: u32,
}

const NAME: &str = "read";
const BLOCK: u32 = 512;

impl ReadSpec {
    /// The specialised kernel.
    ///
    /// # Errors
    /// Too many in flight.
    pub fn kernel(&self, target: &Target) -> Result<Kernel, SpecError> {
        require((1..=16).contains(&self.flight), NAME, || format!("{} vectors in flight, 1 to 16", self.flight))?;
        Ok(Kernel {
            source: source(NAME, "read.hip").entry("read_all"),
            constants: Constants::new().set("KJ_BLOCK", BLOCK).set("FLIGHT", self.flight),
            options: Options::wave(target.default_wave()),
            entry: "read_all",
            block: BLOCK,
            shared: 0,
        })
    }

    /// Blocks for so many vectors on a device of `units` compute units: also the kernel's last argument.
    #[must_use]
    pub fn blocks(&self, vectors: u64, units: u32) -> u32 {
        vectors.div_ceil(u64::from(BLOCK)).clamp(1, 2 * u64::from(units.max(1))) as u32
    }
}
