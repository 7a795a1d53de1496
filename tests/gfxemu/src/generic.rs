//! `flat_` instructions: the upper half of a lane's address says whether it is in LDS, in scratch
//! memory or in global memory. Lanes of one instruction may differ.
//!
//! The counters: an access to LDS counts as one of LDS, all others as accesses to memory. A
//! compiler that does not know which it is waits for both counters to be zero.

use crate::global::Global;
use crate::lds::Lds;
use crate::local::Local;
use crate::memory::Memory;
use crate::operand::{EXEC, SCRATCH_APERTURE, SHARED_APERTURE};
use crate::scratch::Scratch;
use crate::target::Target;
use crate::text::Text;
use crate::unsupported::Unsupported;
use crate::wave::Wave;

/// A `flat_` instruction.
#[derive(Clone, Debug)]
pub struct Generic {
    global: Global,
    /// `None` for atomics.
    others: Option<(Local, Scratch)>,
    /// The first register of the address.
    address: u16,
}

impl Generic {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(target: &Target, text: &Text) -> Result<Option<Generic>, String> {
        let Some(name) = text.name.strip_prefix("flat_") else { return Ok(None) };
        let mut as_global = Text { name: format!("global_{name}"), ..text.clone() };
        as_global.operands.push("off".to_owned());
        let Some(global) = Global::decode(target, &as_global)? else { return Ok(None) };
        let place = global.place();
        let others = (!global.is_atomic()).then(|| (Local::of(place), Scratch::of(place)));
        Ok(Some(Generic { address: place.address, global, others }))
    }

    /// Executes the instruction: for each kind of memory, the lanes whose addresses are in it.
    pub fn run(
        &self,
        wave: &mut Wave,
        lds: &mut Lds,
        memory: &mut Memory,
    ) -> Result<(), Unsupported> {
        let (exec, high) = (wave.exec(), wave.register(self.address + 1));
        let (mut shared, mut own) = (0u64, 0u64);
        for l in (0..64usize).filter(|l| exec >> l & 1 == 1) {
            if high.bad[l] != 0 {
                return Err(Unsupported::at(l)("an undefined address".into()));
            }
            shared |= u64::from(high.value[l] == SHARED_APERTURE) << l;
            own |= u64::from(high.value[l] == SCRATCH_APERTURE) << l;
        }
        let whole = wave.pair(EXEC).0;
        let only = |wave: &mut Wave, lanes: u64| wave.set_pair(EXEC, whole & !exec | lanes, 0);
        if shared | own != 0 {
            let Some((local, scratch)) = &self.others else {
                return Err("a generic atomic on LDS or scratch memory".into());
            };
            if shared != 0 {
                only(wave, shared);
                local.run(wave, lds)?;
            }
            if own != 0 {
                only(wave, own);
                scratch.run(wave, memory)?;
            }
        }
        let rest = exec & !shared & !own;
        if rest != 0 {
            only(wave, rest);
            self.global.run(wave, memory)?;
        }
        wave.set_pair(EXEC, whole, 0);
        Ok(())
    }
}
