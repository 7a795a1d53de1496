//! Every way from a matrix instruction on: a run takes one of them, and whether another has the
//! wait states that CDNA asks for, only the code says. LLVM's hazard recogniser adds them up along
//! one way into a block alone.

use crate::facts::Unit;
use crate::hazard::Hazards;
use crate::inst::Inst;
use crate::target::Target;
use std::collections::{BTreeMap, BTreeSet};

/// More wait states than a matrix instruction asks for.
const FAR: u64 = 20;

/// What comes too early on some way, a line for each place: registers hold nothing else before the
/// matrix instruction, so of hazards that began before it none is seen.
///
/// What cannot be followed is such a line, too: an instruction that is unknown, a way that leaves
/// the code.
///
/// Of gfx9 alone: nothing of RDNA is counted in wait states.
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
        let end = fresh.now() + FAR;
        let mut open = vec![(from, fresh)];
        // In so many wait states to a place: a later arrival by a way as long sees no more.
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
