//! Machine code as a compiler made it, and what the file itself says of its kernels.

mod cubin;

use crate::arch::Vendor;
use crate::error::{Error, Result};

/// What the code object says an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A device address.
    Buffer,
    /// Bytes by value.
    Value,
}

/// One argument of a kernel, in the order of its declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// Bytes from the start of the argument block.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
    /// Pointer or value, where the format tells (AMD's does; a cubin does not).
    pub kind: Option<ArgKind>,
}

/// A kernel in a code object: its arguments and what it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its symbol.
    pub name: String,
    /// Its arguments; hidden ones that the runtime fills in are not among them.
    pub args: Vec<ArgInfo>,
    /// Vector registers a lane uses (AMD: VGPRs without AGPRs).
    pub registers: u32,
    /// Accumulation registers a lane uses (AMD CDNA).
    pub agprs: u32,
    /// Scalar registers a wave uses (AMD).
    pub sgprs: u32,
    /// Static LDS / shared memory of a block, in bytes.
    pub shared: u32,
    /// Local (scratch) memory of a lane, in bytes: arrays that could not be registers, and spills.
    pub local: u32,
    /// Registers spilled, where it is known (AMD: VGPRs; NVIDIA: bytes of spill stores / 4 as the compiler told it).
    pub spills: Option<u32>,
    /// Lanes of a wave, where the code object tells.
    pub wave: Option<u32>,
    /// Threads a block may have at most, where the code object tells.
    pub max_threads: Option<u32>,
}

impl KernelInfo {
    /// Vector registers that count against occupancy: VGPRs and AGPRs together.
    #[must_use]
    pub fn all_registers(&self) -> u32 {
        self.registers.saturating_add(self.agprs)
    }
}

/// Reads what a code object says of its kernels.
///
/// # Errors
/// [`Error::Corrupt`] for anything that is not a whole, well-formed file of that vendor.
pub fn inspect(vendor: Vendor, name: &str, bytes: &[u8]) -> Result<Vec<KernelInfo>> {
    let corrupt = |why: String| Error::Corrupt { kernel: name.to_owned(), why };
    match vendor {
        Vendor::Nvidia => cubin::read(bytes).map_err(corrupt),
        Vendor::Amd => Err(corrupt("no reader for AMD code objects in this build".to_owned())),
    }
}
