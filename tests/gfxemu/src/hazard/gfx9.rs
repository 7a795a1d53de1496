//! gfx9: wait states between vector arithmetic and readers of its scalar or exchanged results; on
//! MI300 also between two vector instructions.

use super::{Hazards, scalar_name, vector_name};
use crate::facts::{Facts, Unit};
use crate::operand::{ACC, EXEC, SCALARS, VCC};
use crate::span::Span;

/// The scalar registers of a span.
pub fn scalars(s: Span) -> std::ops::Range<u16> {
    if s.vector { 0..0 } else { s.first..(s.first + s.count).min(SCALARS as u16) }
}

impl Hazards {
    fn scalar_written(&self, r: u16, needed: u64, reader: &str) -> Result<(), String> {
        self.enough(self.scalar[usize::from(r)], needed, || {
            format!("{reader} of {} that vector arithmetic wrote", scalar_name(r))
        })
    }

    /// Checks the rules of all gfx9, and of MI300.
    pub(super) fn gfx9(&self, facts: &Facts, registers: usize) -> Result<(), String> {
        let mi300 = self.target.mi300();
        for &(s, k) in &facts.reads {
            for r in scalars(s).filter(|&r| r != EXEC && r != EXEC + 1) {
                if facts.unit == Unit::Memory {
                    self.scalar_written(r, 5, "an access's read")?;
                }
                if k == 1 && matches!(facts.name.as_str(), "v_readlane_b32" | "v_writelane_b32") {
                    self.scalar_written(r, 4, "the choice of a lane by a read")?;
                }
                if facts.name.starts_with("v_div_fmas") && r / 2 == VCC / 2 {
                    self.scalar_written(r, 4, "v_div_fmas's read")?;
                }
                if mi300 && facts.unit.is_vector() {
                    self.scalar_written(r, 2, "vector arithmetic's read")?;
                }
            }
            if facts.dpp && k == 0 {
                for (r, p) in self.pasts(s) {
                    self.enough(p.written, 2, || {
                        format!("an exchange's read of {} just written", vector_name(r))
                    })?;
                }
            }
            if mi300 && facts.unit.is_vector() {
                let lane = matches!(facts.name.as_str(), "v_readlane_b32" | "v_readfirstlane_b32");
                for (r, p) in self.pasts(s) {
                    let name = || vector_name(r);
                    if facts.unit != Unit::Transcendental {
                        self.enough(p.transcendental, 1, || {
                            format!("the read of {}, a transcendental's result,", name())
                        })?;
                    }
                    self.enough(p.selected, 1, || {
                        format!("the read of {}, written in a part,", name())
                    })?;
                    if lane {
                        self.enough(p.written, 1, || {
                            format!("a lane's read of {} just written", name())
                        })?;
                    }
                }
            }
        }
        if facts.unit.is_vector() {
            for &s in &facts.writes {
                for (r, p) in self.pasts(s) {
                    let needed = if mi300 { 2 } else { 1 };
                    self.enough(p.stored, needed, || {
                        format!("writing {}, which a wide store reads,", vector_name(r))
                    })?;
                }
            }
        }
        self.last_register(facts, registers)
    }

    /// MI200 reads a wrong register in a 64-bit shift whose amount is in the last register of the
    /// wave's allocation.
    fn last_register(&self, facts: &Facts, registers: usize) -> Result<(), String> {
        let shift =
            matches!(facts.name.as_str(), "v_lshlrev_b64" | "v_lshrrev_b64" | "v_ashrrev_i64");
        if !shift || self.target.arch != "gfx90a" {
            return Ok(());
        }
        match facts.reads.iter().find(|(s, k)| s.vector && *k == 0 && s.first < ACC) {
            Some((s, _)) if s.first % 8 == 7 && usize::from(s.first) + 1 >= registers => {
                Err(format!(
                    "hazard: v{} is the last register, and no amount of a shift of 64 bits",
                    s.first
                ))
            }
            _ => Ok(()),
        }
    }

    /// Records an instruction, at its end.
    pub(super) fn remember(&mut self, facts: &Facts) {
        let now = self.now;
        let dot = facts.name.starts_with("v_dot");
        if facts.unit.is_vector() {
            for &s in &facts.writes {
                for r in scalars(s) {
                    self.scalar[usize::from(r)] = now;
                }
                let range = if s.vector { s.first..s.first + s.count } else { 0..0 };
                for r in range {
                    let Some(p) = self.vector.get_mut(usize::from(r)) else { continue };
                    let old = *p;
                    *p = super::RegisterHistory {
                        stored: old.stored,
                        summand: old.summand,
                        ..super::RegisterHistory::default()
                    };
                    match facts.unit {
                        Unit::Matrix => p.matrix = (now, s.first),
                        _ => p.written = now,
                    }
                    p.transcendental = if facts.unit == Unit::Transcendental { now } else { 0 };
                    p.selected = if facts.selects { now } else { 0 };
                    p.dot = if dot { (now, number(&facts.name)) } else { (0, 0) };
                    p.to_acc = if facts.name.starts_with("v_accvgpr_write") { now } else { 0 };
                    p.from_acc = if facts.name.starts_with("v_accvgpr_read") { now } else { 0 };
                }
            }
        } else {
            // Loads: a wait covers their results, and these rules do not apply.
            for s in facts.writes.iter().filter(|s| s.vector) {
                for r in s.first..s.first + s.count {
                    if let Some(p) = self.vector.get_mut(usize::from(r)) {
                        *p = super::RegisterHistory::default();
                    }
                }
            }
            for r in facts.writes.iter().flat_map(|&s| scalars(s)) {
                self.scalar[usize::from(r)] = 0;
            }
        }
        for &(s, k) in &facts.reads {
            let summand = facts.unit == Unit::Matrix && k == 2;
            let stored = facts.wide_store && k == 1;
            if !s.vector || !summand && !stored {
                continue;
            }
            for r in s.first..s.first + s.count {
                let Some(p) = self.vector.get_mut(usize::from(r)) else { continue };
                if summand {
                    p.summand = now;
                } else {
                    p.stored = now;
                }
            }
        }
    }
}

/// A number for the name of a dot product.
pub fn number(name: &str) -> u32 {
    name.bytes().fold(7, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)))
}
