//! The issue rates of compute units by family. They give a bound on a kernel's time by
//! instructions, in addition to the bound by memory.
//!
//! The sources are AMD's white papers and instruction-set guides ("Vega", "CDNA", "CDNA 3", "RDNA",
//! "RDNA 3"). A GCN or CDNA unit has four SIMDs of 16 lanes, which issue an instruction of a
//! 64-lane wave in four cycles, and 64 bytes per cycle from its L1 cache (128 from CDNA 3 on). An
//! RDNA CU has two SIMDs of 32 lanes and 128 bytes. Reciprocals, roots and powers run at a quarter
//! of the rate. LDS delivers 128 bytes per cycle. Address generation handles a quarter of a wave
//! per cycle on GCN and CDNA, 32 lanes on RDNA. The units work in parallel, so the slowest
//! determines the bound. Dual issue of RDNA 3 and 4 counts if the compiler used it (`v_dual_…` is
//! one instruction). Waits, dependences and branches are not included, so real cards are slower
//! than this bound.

use super::table::{Arch, Card, Vendor};

/// Instructions that the waves of a launch execute, by issuing unit, and the bytes that all lanes
/// access.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Executed {
    /// Vector instructions, including dot products.
    pub vector: f64,
    /// Vector instructions (of `vector`) that run at a quarter of the rate.
    pub slow: f64,
    /// Scalar instructions.
    pub scalar: f64,
    /// Matrix instructions.
    pub matrix: f64,
    /// LDS instructions.
    pub lds: f64,
    /// LDS bytes.
    pub lds_bytes: f64,
    /// Vector loads and stores.
    pub memory: f64,
    /// Bytes of vector loads and stores.
    pub memory_bytes: f64,
}

/// A bound on the time, and the unit that determines it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IssueBound {
    /// Microseconds for a launch that fills the card.
    pub us: f64,
    /// `vector`, `scalar`, `LDS`, `cache`, `addresses`.
    pub by: &'static str,
}

impl Executed {
    /// The minimum time that a card needs to issue these instructions with this wave width. `None`
    /// for cards without rates in the table. `None` for matrix instructions as well, because their
    /// cycles depend on their shapes.
    #[must_use]
    pub fn bound(&self, arch: &Arch, card: &Card, wave: u32) -> Option<IssueBound> {
        if arch.vendor != Vendor::Amd || card.units == 0 || self.matrix > 0.0 {
            return None;
        }
        let rdna = arch.waves.len() > 1;
        // An RDNA SIMD processes a 64-lane wave in two passes.
        let turns = if rdna { f64::from(wave) / 32.0 } else { 1.0 };
        let (simds, addresses, cache) = match (rdna, arch.has("fp8")) {
            (true, _) => (2.0, 32.0, 128.0),
            (false, true) => (1.0, 16.0, 128.0),
            (false, false) => (1.0, 16.0, 64.0),
        };
        let cycles = [
            ("vector", (self.vector + 3.0 * self.slow) * turns / simds),
            ("scalar", self.scalar / simds),
            ("LDS", self.lds_bytes / 128.0),
            ("addresses", self.memory * f64::from(wave) / addresses),
            ("cache", self.memory_bytes / cache),
        ];
        let (by, most) = cycles.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(IssueBound { us: most / (f64::from(card.units) * f64::from(card.mhz)), by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::ARCHS;

    fn of(id: &str) -> (&'static Arch, &'static Card) {
        let arch = ARCHS.iter().find(|a| a.id == id).unwrap();
        (arch, arch.card.as_ref().unwrap())
    }

    #[test]
    fn issue_bound_is_set_by_busiest_unit() {
        let work = Executed { vector: 96.0 * 2500.0 * 2.0, ..Executed::default() };
        let (arch, card) = of("gfx1100");
        assert_eq!(work.bound(arch, card, 32), Some(IssueBound { us: 1.0, by: "vector" }));
        assert_eq!(work.bound(arch, card, 64).unwrap().us, 2.0);
        let slow = Executed { slow: work.vector, ..work };
        assert_eq!(slow.bound(arch, card, 32).unwrap().us, 4.0);
        let (arch, card) = of("gfx90a");
        let loads = Executed {
            memory: 104.0 * 1700.0,
            memory_bytes: 104.0 * 1700.0 * 1024.0,
            ..Executed::default()
        };
        assert_eq!(loads.bound(arch, card, 64), Some(IssueBound { us: 16.0, by: "cache" }));
        assert_eq!(Executed { matrix: 1.0, ..loads }.bound(arch, card, 64), None);
        let (arch, card) = of("sm_90");
        assert_eq!(loads.bound(arch, card, 32), None);
    }

    /// Each card's peak f16 rate follows from its units, its clock, and the width of its matrix or
    /// vector units.
    #[test]
    fn units_and_clocks_give_documented_peak_rates() {
        for (arch, card) in
            ARCHS.iter().filter_map(|a| Some((a, a.card.as_ref()?))).filter(|(_, c)| c.units > 0)
        {
            let a_cycle = match (arch.id, arch.has("packed-f16")) {
                ("gfx950", _) => 4096.0,
                ("gfx942", _) => 2048.0,
                ("gfx908" | "gfx90a", _) => 1024.0,
                (id, _) if id.starts_with("gfx12") => 1024.0,
                (id, _) if id.starts_with("gfx11") => 512.0,
                (_, packed) => {
                    if packed {
                        256.0
                    } else {
                        128.0
                    }
                }
            };
            let peak = f64::from(card.units) * f64::from(card.mhz) * a_cycle * 1e-6;
            let off = (peak / card.tflop_per_s - 1.0).abs();
            assert!(
                off < 0.05,
                "{}: {peak:.1} by its units, {} stated",
                card.name,
                card.tflop_per_s
            );
        }
    }
}
