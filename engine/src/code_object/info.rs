//! The properties of a kernel that a code object states.

/// The kind of an argument in the code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A device address.
    Buffer,
    /// Bytes by value.
    Value,
}

/// An argument of a kernel, in declaration order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgInfo {
    /// Offset in the argument block.
    pub offset: u32,
    /// Size of the argument in bytes.
    pub size: u32,
    /// Pointer or value, if the format states it (AMD's format does, a cubin does not).
    pub kind: Option<ArgKind>,
}

/// A kernel in a code object: its arguments and resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelInfo {
    /// Symbol of the kernel.
    pub name: String,
    /// Arguments, without hidden ones that the runtime provides.
    pub args: Vec<ArgInfo>,
    /// Bytes of the whole argument block including hidden arguments, if the code object states it
    /// (only AMD's do).
    pub arg_bytes: Option<u32>,
    /// Vector registers per lane (AMD: VGPRs without AGPRs).
    pub registers: u32,
    /// Accumulation registers per lane (AMD CDNA).
    pub agprs: u32,
    /// Whether vector and accumulation registers are in one register file (AMD CDNA from gfx90a
    /// on).
    pub one_file: bool,
    /// Scalar registers per wave (AMD).
    pub sgprs: u32,
    /// Static LDS / shared memory per block in bytes.
    pub shared: u32,
    /// Local (scratch) memory per lane in bytes: arrays outside registers, and spills.
    pub local: u32,
    /// Spilled registers, if known (AMD: vector and scalar registers; NVIDIA: bytes of spill stores
    /// / 4, from the compiler's log).
    pub spills: Option<u32>,
    /// Lanes per wave, if the code object states it.
    pub wave: Option<u32>,
    /// Maximum threads per block, if the code object states it.
    pub max_threads: Option<u32>,
}

impl KernelInfo {
    pub(crate) const fn empty() -> KernelInfo {
        KernelInfo {
            name: String::new(),
            args: Vec::new(),
            arg_bytes: None,
            registers: 0,
            agprs: 0,
            one_file: false,
            sgprs: 0,
            shared: 0,
            local: 0,
            spills: None,
            wave: None,
            max_threads: None,
        }
    }

    /// Vector registers that count for occupancy: VGPRs plus AGPRs if they are in one register
    /// file, otherwise the larger number.
    #[must_use]
    pub fn all_registers(&self) -> u32 {
        if self.one_file {
            self.registers.saturating_add(self.agprs)
        } else {
            self.registers.max(self.agprs)
        }
    }
}
