//! What the emulator must know of a family beside its instructions.

/// A counter that a wait names, as this crate numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// vmcnt, loadcnt.
    Load,
    /// vscnt, storecnt; on gfx9 vmcnt counts stores as well.
    Store,
    /// lgkmcnt, dscnt.
    Lds,
    /// kmcnt; lgkmcnt before gfx12.
    Scalar,
}

/// How many counters there are.
pub const COUNTERS: usize = 4;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Global memory into registers: in order.
    Load,
    /// Registers into global memory, atomics without an answer.
    Store,
    /// LDS, either way: in order.
    Lds,
    /// Memory into scalar registers: in any order.
    Scalar,
    /// A cache's writing back.
    WriteBack,
}

/// An architecture.
#[derive(Clone, Debug)]
pub struct Target {
    /// "gfx1100".
    pub arch: String,
    /// 9, 10, 11 or 12.
    pub generation: u32,
    /// Lanes of a wave.
    pub wave: u32,
    /// gfx12's scalar registers that vector arithmetic keeps are no hazard: for code of compilers
    /// that do not know of it, LLVM before 20.
    pub excused: bool,
}

impl Target {
    /// `arch` at `wave` lanes, if the emulator knows the family.
    pub fn new(arch: &str, wave: u32) -> Result<Target, String> {
        let generation = match arch {
            "gfx900" | "gfx902" | "gfx906" | "gfx908" | "gfx90a" | "gfx90c" | "gfx942"
            | "gfx950" => 9,
            a if a.starts_with("gfx10") && a.len() == 7 => 10,
            a if a.starts_with("gfx11") && a.len() == 7 => 11,
            "gfx1200" | "gfx1201" | "gfx1250" => 12,
            _ => return Err(format!("{arch} is none of the architectures that this emulates")),
        };
        match (wave, generation) {
            (64, _) if arch == "gfx1250" => Err(format!("{arch} has no waves of {wave} lanes")),
            (64, _) | (32, 10..) => {
                Ok(Target { arch: arch.to_string(), generation, wave, excused: false })
            }
            _ => Err(format!("{arch} has no waves of {wave} lanes")),
        }
    }
    /// Whether waves of one block may lie on two caches, by its descriptor's first resource word:
    /// RDNA's work-group processors, unless the compiler keeps a block on one of their two units,
    /// as hiprtc does.
    pub fn split_caches(&self, resources: u32) -> bool {
        self.generation >= 10 && resources >> 29 & 1 == 1
    }
    /// Whether it is CDNA 3 or 4.
    pub fn mi300(&self) -> bool {
        matches!(self.arch.as_str(), "gfx942" | "gfx950")
    }
    /// Whether stores must be written back before other blocks see them: where a device has several
    /// second caches. gfx12.0 has one, which all stores reach before they count as done (LLVM's
    /// `SIGfx12CacheControl` writes back for other devices alone there, and on gfx1250 for other
    /// blocks).
    pub fn needs_write_back(&self) -> bool {
        self.mi300() || self.arch == "gfx1250"
    }
    /// Whether loads of global memory fill registers in the order in which they were issued, so
    /// that a later one into the same register needs no wait.
    pub fn loads_in_order(&self) -> bool {
        self.generation < 12
    }
    /// Whether matrix instructions flush subnormal halves (MI200).
    pub fn flushes_in_matrix(&self) -> bool {
        self.arch == "gfx90a"
    }
    /// Whether there are accumulation registers.
    pub fn has_acc(&self) -> bool {
        matches!(self.arch.as_str(), "gfx908" | "gfx90a" | "gfx942" | "gfx950")
    }
    /// Which counter counts `event`.
    pub fn counter(&self, event: Event) -> Counter {
        match (event, self.generation) {
            (Event::Load, _) => Counter::Load,
            (Event::Store | Event::WriteBack, 9) => Counter::Load,
            (Event::Store | Event::WriteBack, _) => Counter::Store,
            (Event::Lds, _) => Counter::Lds,
            (Event::Scalar, 12..) => Counter::Scalar,
            (Event::Scalar, _) => Counter::Lds,
        }
    }
    /// Vector registers that a wave gets, by its descriptor's first resource word.
    pub fn vector_registers(&self, resources: u32) -> usize {
        let granules = (resources & 63) as usize + 1;
        let each = match self.arch.as_str() {
            // Those beyond 256 are reached by `s_set_vgpr_msb`.
            "gfx1250" => return granules * 16,
            "gfx90a" | "gfx942" | "gfx950" => 8,
            _ if self.generation == 9 || self.wave == 64 => 4,
            _ => 8,
        };
        (granules * each).min(256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_lies_on_two_caches_where_rdna_may_spread_it() {
        let rdna = Target::new("gfx1030", 32).unwrap();
        assert!(rdna.split_caches(1 << 29) && !rdna.split_caches(!(1 << 29)));
        assert!(!Target::new("gfx942", 64).unwrap().split_caches(u32::MAX));
    }
}
