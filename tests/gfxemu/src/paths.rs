//! Wait states on every path that follows a matrix instruction. A run executes only one path, so
//! the rules of CDNA are also checked on the code. LLVM's hazard recogniser follows only one path
//! into a basic block.

use crate::facts::Unit;
use crate::hazard::Hazards;
use crate::inst::Inst;
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};

/// More wait states than any rule for a matrix instruction needs.
const LONG_AGO: u64 = 20;

/// Hazards on any path, one line for each location. The history is empty before the matrix
/// instruction, so hazards that began earlier are not seen.
///
/// A path that cannot be followed also gives a line: an unknown instruction, or a jump out of the
/// code.
///
/// This is only useful for gfx9: RDNA has no rules for wait states.
pub fn too_early(
    target: &Target,
    registers: usize,
    listing: Vec<(u64, Result<Inst, String>)>,
) -> Vec<String> {
    if target.generation != 9 {
        return vec![];
    }
    let (mut found, mut code) = (BTreeSet::new(), BTreeMap::new());
    for (at, inst) in listing {
        match inst {
            Ok(inst) => drop(code.insert(at, inst)),
            Err(why) => {
                let _ = found.insert(format!("at {at:#x}, no way is followed through it: {why}"));
            }
        }
    }
    if !found.is_empty() {
        return found.into_iter().collect();
    }
    for (&from, _) in code.iter().filter(|(_, inst)| inst.facts().unit == Unit::Matrix) {
        let fresh = Hazards::new(target);
        let end = fresh.now() + LONG_AGO;
        let mut open = vec![(from, fresh)];
        // An address with the number of wait states at arrival. Another path with the same number
        // finds nothing new.
        let mut seen = BTreeSet::new();
        while let Some((at, mut hazards)) = open.pop() {
            let Some(inst) = code.get(&at) else {
                found.insert(format!(
                    "a way from the one at {from:#x} leads to {at:#x}, where no instruction begins"
                ));
                continue;
            };
            if hazards.now() >= end || !seen.insert((at, hazards.now())) {
                continue;
            }
            if let Err(why) = hazards.step(inst.facts(), registers) {
                found.insert(format!(
                    "{} at {at:#x}, behind the one at {from:#x}: {why}",
                    inst.text.replace('\t', " ")
                ));
                continue;
            }
            let (on, jump) = inst.ways();
            if let Some(to) = jump {
                open.push((to, hazards.clone()));
            }
            if on {
                open.push((at + inst.size, hazards));
            }
        }
    }
    found.into_iter().collect()
}
