//! CDNA: wait states around matrix instructions and, on MI200 and MI300, dot products.

use super::{Hazards, vector_name};
use crate::facts::{Facts, Unit};

/// Wait states that must follow a matrix instruction of these kernels (16 × 16 × 16, f16).
struct Needed {
    /// Before its result is read as operand A or B of another matrix instruction, and as operand C
    /// if that starts at another register.
    factor: u64,
    summand: u64,
    /// Before any other read of its result, and before its result is overwritten.
    read: u64,
    write: u64,
    /// Before its operand C is overwritten.
    free: u64,
}

/// The values depend on the architecture: 8 passes on MI100 and MI200, 4 on MI300 and MI350;
/// results of MI350 come one wait state later.
fn needed(arch: &str) -> Needed {
    match arch {
        "gfx908" => Needed { factor: 4, summand: 2, read: 10, write: 7, free: 5 },
        "gfx90a" => Needed { factor: 11, summand: 8, read: 11, write: 11, free: 7 },
        "gfx950" => Needed { factor: 8, summand: 6, read: 8, write: 8, free: 3 },
        _ => Needed { factor: 7, summand: 5, read: 7, write: 7, free: 3 },
    }
}

impl Hazards {
    /// Checks the rules for matrix instructions.
    pub(super) fn matrix(&self, facts: &Facts) -> Result<(), String> {
        let first = self.target.arch == "gfx908";
        let n = needed(&self.target.arch);
        let matrix = facts.unit == Unit::Matrix;
        let writes_acc = facts.name.starts_with("v_accvgpr_write");
        if !matrix && !facts.unit.is_vector() && !facts.unit.is_access() {
            return Ok(());
        }
        let dot =
            if facts.name.starts_with("v_dot") { super::gfx9::number(&facts.name) } else { 0 };
        for &(s, k) in &facts.reads {
            for (r, p) in self.pasts(s) {
                let read = |what: &str| format!("{what} of {}, ", vector_name(r));
                if matrix {
                    // An operand C that is exactly the last result is forwarded without wait
                    // states.
                    let whole = k == 2 && p.matrix.1 == s.first;
                    let states = if k == 2 { n.summand } else { n.factor };
                    if !whole {
                        self.enough(p.matrix.0, states, || {
                            read("a matrix's read") + "a matrix's result,"
                        })?;
                    }
                    if p.dot.0 == 0 && (!first || p.to_acc == 0) {
                        self.enough(p.written, 2, || read("a matrix's read") + "just written,")?;
                    }
                    if first {
                        let states = if k == 2 { 1 } else { 3 };
                        self.enough(p.to_acc, states, || read("a matrix's read") + "just copied,")?;
                    }
                    continue;
                }
                if first {
                    if writes_acc {
                        self.enough(p.written, 2, || read("a copy") + "just written,")?;
                    }
                    if facts.name.starts_with("v_accvgpr_read") {
                        self.enough(p.matrix.0, n.read, || read("a copy") + "a matrix's result,")?;
                        self.enough(p.to_acc, 3, || read("a copy") + "just copied,")?;
                    }
                    if facts.unit.is_access() {
                        self.enough(p.from_acc, 2, || read("an access's read") + "just copied,")?;
                    }
                    continue;
                }
                self.enough(p.matrix.0, n.read, || read("the read") + "a matrix's result,")?;
                if p.dot.1 != dot || k != 2 {
                    self.enough(p.dot.0, 3, || read("the read") + "a dot product,")?;
                }
            }
        }
        if matrix {
            return Ok(());
        }
        for &s in &facts.writes {
            for (r, p) in self.pasts(s) {
                let write = |what: &str| format!("writing {}, {what},", vector_name(r));
                if !first || writes_acc {
                    self.enough(p.matrix.0, n.write, || write("a matrix's result"))?;
                    self.enough(p.summand, n.free, || write("which a matrix reads"))?;
                }
                if !first && p.dot.1 != dot {
                    self.enough(p.dot.0, 3, || write("a dot product"))?;
                }
            }
        }
        Ok(())
    }
}
