//! RDNA: hazards of gfx10.1, gfx11 and gfx12. gfx10.3 has no hazards.

use super::gfx9::scalars;
use super::{Hazards, scalar_name, vector_name};
use crate::facts::{Facts, Unit};
use crate::operand::{EXEC, M0, NULL, SCALARS};
use crate::span::Span;

fn is_exec(r: u16) -> bool {
    r == EXEC || r == EXEC + 1
}

fn reads(facts: &Facts) -> impl Iterator<Item = u16> {
    facts.reads.iter().flat_map(|&(s, _)| scalars(s))
}

fn writes(facts: &Facts) -> impl Iterator<Item = u16> {
    facts.writes.iter().flat_map(|&s| scalars(s))
}

impl Hazards {
    pub(super) fn rdna(&mut self, facts: &Facts) -> Result<(), String> {
        let arch = self.target.arch.clone();
        if arch.starts_with("gfx101") {
            self.gfx10(facts)?;
        }
        if arch.starts_with("gfx101") || arch.starts_with("gfx11") {
            self.compared(facts)?;
        }
        if arch.starts_with("gfx11") {
            self.gfx11(facts, arch.starts_with("gfx110"))?;
        }
        if !arch.starts_with("gfx10") && arch != "gfx1250" {
            self.matrices(facts)?;
        }
        if arch == "gfx1250" {
            self.deep(facts)?;
        }
        if arch.starts_with("gfx120") && !self.target.excused {
            self.gfx12(facts)?;
        }
        Ok(())
    }

    /// Rules of gfx10.1.
    fn gfx10(&mut self, facts: &Facts) -> Result<(), String> {
        let s = &mut self.rdna;
        let (vector, access) = (facts.unit.is_vector(), facts.unit.is_access());
        let saves = facts.name.contains("saveexec");
        if facts.unit == Unit::Branch && facts.words == 0x3f {
            return Err("hazard: a branch by 63 words".into());
        }
        if matches!(facts.unit, Unit::Scalar | Unit::ScalarMemory)
            // LLVM ignores the write of EXEC by `s_and_saveexec`, because EXEC is not in its
            // operand list.
            && let Some(r) = writes(facts).find(|&r| s.accessed[usize::from(r)] && !(is_exec(r) && saves))
        {
            return Err(format!(
                "hazard: {} is written while an access may still read it",
                scalar_name(r)
            ));
        }
        if vector {
            if let Some(r) = writes(facts).find(|&r| s.loading[usize::from(r)]) {
                return Err(format!(
                    "hazard: {} is written while a scalar load may still read it",
                    scalar_name(r)
                ));
            }
            if s.exec_read && writes(facts).any(is_exec) {
                return Err(
                    "hazard: EXEC is written by vector arithmetic while others may still read it"
                        .into(),
                );
            }
        }
        if access
            && let Some((unit, true)) = s.access
            && unit != facts.unit
        {
            return Err(
                "hazard: LDS and memory with a branch and no wait for stores between".into()
            );
        }
        if vector || facts.waits.all || facts.waits.sources {
            s.accessed = [false; SCALARS];
        }
        if facts.unit == Unit::Scalar || facts.waits.local {
            s.loading = [false; SCALARS];
        }
        if vector && writes(facts).next().is_some() || facts.waits.scalar {
            s.exec_read = false;
        }
        for r in reads(facts) {
            s.accessed[usize::from(r)] |= access;
            s.loading[usize::from(r)] |= facts.unit == Unit::ScalarMemory;
            s.exec_read |= is_exec(r) && !vector;
        }
        // A cache invalidation is issued as a memory access.
        let unit = if facts.name.starts_with("buffer_gl") { Unit::Memory } else { facts.unit };
        match (&mut s.access, unit) {
            (Some((_, branched)), Unit::Branch) => *branched = true,
            (latest, unit) if unit.is_access() => *latest = Some((unit, false)),
            (latest, _) if facts.waits.stores => *latest = None,
            _ => {}
        }
        Ok(())
    }

    /// gfx10.1 and gfx11: a comparison that writes EXECand is immediately followed by an exchange
    /// of lanes.
    fn compared(&mut self, facts: &Facts) -> Result<(), String> {
        let s = &mut self.rdna;
        if s.exec_compared && facts.name.starts_with("v_permlane") {
            return Err("hazard: an exchange of lanes right behind a comparison into EXEC".into());
        }
        if facts.unit.is_vector() && facts.name != "v_nop" {
            s.exec_compared = facts.name.starts_with("v_cmpx");
        }
        Ok(())
    }

    /// Rules of gfx11. `early` is true for gfx1100 to gfx1103.
    fn gfx11(&mut self, facts: &Facts, early: bool) -> Result<(), String> {
        let wave64 = self.target.wave == 64;
        // A cache invalidation is issued as a memory access, after all results of vector
        // arithmetic. LLVM (`isVMEM` for the MUBUF encoding) and Mesa (`parse_vdst_wait`) have the
        // same rule.
        if facts.unit.is_access() || facts.waits.vector || facts.name.starts_with("buffer_gl") {
            self.rdna.done = self.rdna.vector;
        }
        if facts.unit.is_vector() {
            self.forwarded(facts, early, wave64)?;
        }
        let s = &mut self.rdna;
        if wave64 {
            if facts.unit == Unit::Scalar
                && let Some(r) = reads(facts).find(|&r| s.late[usize::from(r)])
            {
                return Err(format!(
                    "hazard: scalar arithmetic reads {}, which was a mask before",
                    scalar_name(r)
                ));
            }
            if facts.waits.scalar {
                s.masks = [false; SCALARS];
                s.late = [false; SCALARS];
            }
            if facts.unit == Unit::Scalar {
                for r in writes(facts).filter(|&r| !is_exec(r) && r != M0) {
                    s.late[usize::from(r)] |= s.masks[usize::from(r)];
                }
            }
            if facts.unit.is_vector() {
                let takes =
                    ["v_cndmask", "v_add_co_ci", "v_sub_co_ci", "v_subrev_co_ci", "v_div_fmas"];
                let mask = takes.iter().any(|t| facts.name.starts_with(t));
                let is_mask = |k: usize| mask && (k == 2 || k == usize::MAX);
                // Reading another scalar register or a constant replaces the cached value.
                if facts.literal || reads(facts).any(|r| !is_exec(r)) {
                    s.masks = [false; SCALARS];
                }
                for r in facts.reads.iter().filter(|r| is_mask(r.1)).flat_map(|r| scalars(r.0)) {
                    s.masks[usize::from(r)] = true;
                }
            }
        }
        if facts.unit == Unit::Scalar && writes(facts).any(is_exec) {
            s.exec.push(s.vector);
            if s.exec.len() > 16 {
                s.exec.remove(0);
            }
        }
        if facts.unit.is_vector() {
            s.vector += 1;
            s.slow += u64::from(facts.unit == Unit::Transcendental);
            for w in facts.writes.iter().filter(|w| w.vector) {
                for r in w.first..w.first + w.count {
                    let Some(p) = self.vector.get_mut(usize::from(r)) else { continue };
                    p.number = s.vector;
                    p.slow = if facts.unit == Unit::Transcendental {
                        (s.vector, s.slow)
                    } else {
                        (0, 0)
                    };
                }
            }
        }
        Ok(())
    }

    /// Results that are forwarded wrongly if they are read before they are written.
    fn forwarded(&self, facts: &Facts, early: bool, wave64: bool) -> Result<(), String> {
        let s = &self.rdna;
        // An operand of several registers counts as one register, with its latest write, as in
        // LLVM.
        let mut sources: Vec<(Span, u64)> = Vec::new();
        for &(span, _) in facts.reads.iter().filter(|r| r.0.vector) {
            let mut latest = 0;
            for (r, p) in self.pasts(span) {
                let (number, slow) = p.slow;
                if early && number > s.done && s.vector - number <= 5 && s.slow - slow <= 1 {
                    return Err(format!(
                        "hazard: {} is a transcendental's result, \
                         {} vector instructions ago, and no wait for it",
                        vector_name(r),
                        s.vector - number
                    ));
                }
                latest = latest.max(p.number);
            }
            if latest > s.done && !sources.iter().any(|o| o.0 == span) {
                sources.push((span, s.vector - latest));
            }
        }
        let Some(&(after, behind)) = sources.iter().min_by_key(|o| o.1) else { return Ok(()) };
        // The number of vector instructions since the last change of EXEC before that write.
        let change = s.exec.iter().rev().map(|&at| s.vector - at).find(|&ago| ago > behind);
        let Some(change) = change.filter(|_| wave64 && behind <= 4) else { return Ok(()) };
        let before = sources.iter().filter(|o| o.1 >= change).min_by_key(|o| o.1);
        match before {
            Some(&(before, ago)) if (change - behind - 1) + (ago - change) <= 2 => Err(format!(
                "hazard: {} and {} were written on both sides of a change of EXEC, \
                 and no wait for them",
                vector_name(before.first),
                vector_name(after.first)
            )),
            _ => Ok(()),
        }
    }

    /// gfx11 and gfx12: a matrix result is operand A or B of the next matrix instruction.
    fn matrices(&mut self, facts: &Facts) -> Result<(), String> {
        if !facts.unit.is_vector() {
            return Ok(());
        }
        if facts.unit == Unit::Matrix
            && let Some((from, to)) = self.rdna.matrix
            && facts
                .reads
                .iter()
                .any(|(s, k)| s.vector && *k < 2 && s.first < to && from < s.first + s.count)
        {
            return Err("hazard: a matrix's result is a factor of the very next one".into());
        }
        self.rdna.matrix = match (facts.unit, facts.writes.first()) {
            (Unit::Matrix, Some(d)) => Some((d.first, d.first + d.count)),
            _ => None,
        };
        Ok(())
    }

    /// gfx1250: an f16 matrix instruction runs concurrently with vector arithmetic. Transcendental
    /// instructions wait for it.
    fn deep(&mut self, facts: &Facts) -> Result<(), String> {
        if !facts.unit.is_vector() {
            return Ok(());
        }
        let s = &mut self.rdna;
        let meet = |a: Span, b: Span| {
            a.vector && b.vector && a.first < b.first + b.count && b.first < a.first + a.count
        };
        for (matrix, behind) in &s.deep {
            let result = |o: Span| matrix.writes.iter().any(|&d| meet(d, o));
            let factor = |o: Span| matrix.reads.iter().any(|&(f, k)| k < 2 && meet(f, o));
            let (needed, what) = match facts.unit {
                Unit::Matrix if facts.reads.iter().any(|&(o, k)| k < 2 && result(o)) => {
                    (5, "a factor of another")
                }
                Unit::Vector if facts.reads.iter().any(|&(o, _)| result(o)) => (4, "read"),
                Unit::Vector if facts.writes.iter().any(|&o| result(o)) => (4, "overwritten"),
                // LLVM 22 omits the wait before dual instructions.
                Unit::Vector if !facts.dual && facts.writes.iter().any(|&o| factor(o)) => {
                    (4, "overwritten as its factor")
                }
                _ => continue,
            };
            if *behind < needed {
                return Err(format!(
                    "hazard: a matrix is {what} {behind} vector instructions behind it, \
                     not {needed}"
                ));
            }
        }
        s.deep.iter_mut().for_each(|(_, behind)| *behind += 1);
        s.deep.retain(|(_, behind)| *behind < 5);
        if facts.unit == Unit::Matrix {
            s.deep.push((facts.clone(), 0));
        }
        Ok(())
    }

    /// gfx12: vector arithmetic caches scalar registers that it has read, and may use an old value
    /// after a write.
    fn gfx12(&mut self, facts: &Facts) -> Result<(), String> {
        let s = &mut self.rdna;
        let (scalar, vector) = (facts.unit == Unit::Scalar, facts.unit.is_vector());
        if facts.waits.scalar {
            s.kept.iter_mut().for_each(|kept| kept.changed = None);
        }
        let plain = |r: &u16| *r < NULL;
        if vector {
            for r in reads(facts).filter(plain) {
                let (kept, name) = (s.kept[usize::from(r)], scalar_name(r));
                if let Some(n @ ..11) = kept.changed {
                    return Err(format!(
                        "hazard: {name} was changed {n} scalar instructions ago, and kept before"
                    ));
                }
            }
            for r in reads(facts).filter(plain) {
                s.kept[usize::from(r) & !1].read = true;
                s.kept[usize::from(r) | 1].read = true;
            }
            for r in writes(facts).filter(plain) {
                s.kept[usize::from(r)].changed = None;
            }
        } else if scalar {
            for kept in s.kept.iter_mut() {
                kept.changed = kept.changed.map(|n| n.saturating_add(1));
            }
            for r in writes(facts).filter(plain) {
                let kept = &mut s.kept[usize::from(r)];
                kept.changed = kept.read.then_some(0);
            }
        }
        Ok(())
    }
}
