//! Properties of the GPU families that the emulator depends on, besides their instructions.

/// The hardware counters of outstanding operations, in this crate's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// vmcnt, loadcnt.
    Load,
    /// vscnt, storecnt; before gfx10 vmcnt also counts stores.
    Store,
    /// lgkmcnt, dscnt.
    Lds,
    /// kmcnt; lgkmcnt before gfx12.
    Scalar,
}

/// Number of counters.
pub const COUNTERS: usize = 4;

/// An outstanding operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A load from global memory to registers. They complete in order.
    Load,
    /// A store from registers to global memory, or an atomic without a result.
    Store,
    /// An LDS operation. They complete in order.
    Lds,
    /// A load from memory to scalar registers. They complete in any order.
    Scalar,
    /// A cache write-back.
    WriteBack,
}

/// An architecture.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the architecture: "gfx1100".
    pub arch: String,
    /// Generation: 8 to 12.
    pub generation: u32,
    /// Number of lanes in a wave.
    pub wave: u32,
    /// Whether the hazard of gfx12's cached scalar registers is ignored, for code of compilers that
    /// do not handle it (LLVM before 20).
    pub excused: bool,
    /// Whether the kernel flushes subnormal f32, as sources and as results.
    pub flushes: bool,
}

impl Target {
    /// The target `arch` with `wave` lanes. An error if the emulator does not know the family.
    pub fn new(arch: &str, wave: u32) -> Result<Target, String> {
        let generation = match arch {
            "gfx803" => 8,
            "gfx900" | "gfx902" | "gfx906" | "gfx908" | "gfx90a" | "gfx90c" | "gfx942"
            | "gfx950" => 9,
            a if a.starts_with("gfx10") && a.len() == 7 => 10,
            a if a.starts_with("gfx11") && a.len() == 7 => 11,
            "gfx1200" | "gfx1201" | "gfx1250" => 12,
            _ => return Err(format!("{arch} is not supported by this emulator")),
        };
        match (wave, generation) {
            (64, _) if arch == "gfx1250" => Err(format!("{arch} has no waves of {wave} lanes")),
            (64, _) | (32, 10..) => Ok(Target {
                arch: arch.to_string(),
                generation,
                wave,
                excused: false,
                flushes: false,
            }),
            _ => Err(format!("{arch} has no waves of {wave} lanes")),
        }
    }
    /// Whether waves of one block may use two caches, by the descriptor's first resource word: on
    /// RDNA a block can use both compute units of a work-group processor, unless the compiler
    /// restricts it to one, as hiprtc does.
    pub fn split_caches(&self, resources: u32) -> bool {
        self.generation >= 10 && resources >> 29 & 1 == 1
    }
    /// Whether it is CDNA 3 or CDNA 4.
    pub fn mi300(&self) -> bool {
        matches!(self.arch.as_str(), "gfx942" | "gfx950")
    }
    /// Whether stores must be written back before other blocks see them. This is necessary if a
    /// device has several second-level caches. gfx12.0 has one, and stores reach it before they
    /// count as complete. (LLVM's `SIGfx12CacheControl` writes back for other devices, and on
    /// gfx1250 also for other blocks.)
    pub fn needs_write_back(&self) -> bool {
        self.mi300() || self.arch == "gfx1250"
    }
    /// Whether global loads fill registers in the order of issue, so that a later load into a
    /// register needs no wait.
    pub fn loads_in_order(&self) -> bool {
        self.generation < 12
    }
    /// Whether matrix instructions flush subnormal f16 numbers to 0 (MI200).
    pub fn flushes_in_matrix(&self) -> bool {
        self.arch == "gfx90a"
    }
    /// Whether LDS instructions compare their addresses with the limit in M0.
    pub fn lds_limit(&self) -> bool {
        self.generation == 8
    }
    /// Whether there are accumulation registers.
    pub fn has_acc(&self) -> bool {
        matches!(self.arch.as_str(), "gfx908" | "gfx90a" | "gfx942" | "gfx950")
    }
    /// The counter that counts `event`.
    pub fn counter(&self, event: Event) -> Counter {
        match (event, self.generation) {
            (Event::Load, _) => Counter::Load,
            (Event::Store | Event::WriteBack, ..=9) => Counter::Load,
            (Event::Store | Event::WriteBack, _) => Counter::Store,
            (Event::Lds, _) => Counter::Lds,
            (Event::Scalar, 12..) => Counter::Scalar,
            (Event::Scalar, _) => Counter::Lds,
        }
    }
    /// The number of vector registers of a wave, from the first resource word of the descriptor.
    pub fn vector_registers(&self, resources: u32) -> usize {
        let granules = (resources & 63) as usize + 1;
        let each = match self.arch.as_str() {
            // `s_set_vgpr_msb` selects registers beyond 256.
            "gfx1250" => return granules * 16,
            "gfx90a" | "gfx942" | "gfx950" => 8,
            _ if self.wave == 64 => 4,
            _ => 8,
        };
        (granules * each).min(256)
    }
}
