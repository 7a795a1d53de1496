//! LDS instructions.

use crate::atomic::{AtomicUpdate, atomic};
use crate::global::{LaneAccess, size_of};
use crate::lds::{Lds, WaveAccess};
use crate::operand::{Operand, register};
use crate::span::Span;
use crate::target::Event;
use crate::text::Text;
use crate::unsupported::Unsupported;
use crate::wave::Wave;

#[derive(Clone, Copy, Debug)]
enum LdsOp {
    Load,
    Store,
    /// The operation, and the destination register if the old value is returned.
    Atomic(AtomicUpdate, Option<u16>),
}

/// An LDS instruction with one or two addresses.
#[derive(Clone, Debug)]
pub struct Local {
    verb: LdsOp,
    size: usize,
    signed: bool,
    half: Option<u32>,
    address: u16,
    /// Offset and data register of each address.
    places: Vec<(u32, u16)>,
}

impl Local {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(text: &Text) -> Result<Option<Local>, String> {
        let Some(name) = text.name.strip_prefix("ds_") else { return Ok(None) };
        let known = ["offset", "offset0", "offset1"];
        if let Some(m) = text
            .modifiers
            .iter()
            .find(|m| !known.contains(&m.split(':').next().unwrap_or_default()))
        {
            return Err(format!("modifier {m} is unknown"));
        }
        let vector = |k: usize| match register(text.operand(k)?) {
            Some((Operand::Vector(n), _)) => Ok(n),
            _ => Err(format!("operand {k} is not a vector register")),
        };
        let offset = text.number("offset")? as u32;
        let (load, rest) = match (
            name.strip_prefix("load_").or(name.strip_prefix("read")),
            name.strip_prefix("store_").or(name.strip_prefix("write")),
        ) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => {
                let words: Vec<&str> = name.split('_').collect();
                let (Some(&verb), Some(&kind)) = (words.first(), words.last()) else {
                    return Ok(None);
                };
                let Some(change) =
                    atomic(verb).filter(|_| matches!(kind, "u32" | "u64" | "b32" | "b64"))
                else {
                    return Ok(None);
                };
                let k = usize::from(words.contains(&"rtn"));
                let answer = if k == 1 { Some(vector(0)?) } else { None };
                return Ok(Some(Local {
                    verb: LdsOp::Atomic(change, answer),
                    size: if kind.ends_with("64") { 8 } else { 4 },
                    signed: false,
                    half: None,
                    address: vector(k)?,
                    places: vec![(offset, vector(k + 1)?)],
                }));
            }
        };
        let rest = rest.trim_start_matches('_');
        let (pair, stride, kind) = if let Some(kind) =
            rest.strip_prefix("2addr_stride64_").or(rest.strip_prefix("2st64_"))
        {
            (true, 64, kind)
        } else if let Some(kind) = rest.strip_prefix("2addr_").or(rest.strip_prefix("2_")) {
            (true, 1, kind)
        } else {
            (false, 1, rest)
        };
        let half =
            if kind.contains("d16_hi") { Some(16) } else { kind.contains("d16").then_some(0) };
        let plain = kind.replace("_d16_hi", "").replace("_d16", "");
        let Some((size, signed)) = size_of(&plain) else { return Ok(None) };
        let (address, data) =
            if load { (vector(1)?, vector(0)?) } else { (vector(0)?, vector(1)?) };
        let places = if pair {
            let by = size as u32 * stride;
            let second = if load { data + (size / 4) as u16 } else { vector(2)? };
            vec![
                (text.number("offset0")? as u32 * by, data),
                (text.number("offset1")? as u32 * by, second),
            ]
        } else {
            vec![(offset, data)]
        };
        let verb = if load { LdsOp::Load } else { LdsOp::Store };
        Ok(Some(Local { verb, size, signed, half, address, places }))
    }

    /// The access of a `flat_` instruction whose addresses are in LDS. They need the alignment of a
    /// word only: LLVM relies on the mode in which the driver starts waves.
    pub fn of(access: LaneAccess) -> Local {
        let LaneAccess { load, size, signed, half, address, data, offset } = access;
        let verb = if load { LdsOp::Load } else { LdsOp::Store };
        let word = |k: u16| ((offset as u32).wrapping_add(4 * u32::from(k)), data + k);
        let places = (0..size.div_ceil(4) as u16).map(word).collect();
        Local { verb, size: size.min(4), signed, half, address, places }
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave, lds: &mut Lds) -> Result<(), Unsupported> {
        if wave.signalled {
            return Err("LDS between the signal of a barrier and the wait for it".into());
        }
        let exec = wave.exec();
        let words = self.size.div_ceil(4);
        wave.lds_issued += 1;
        let who = WaveAccess { wave: wave.in_block, phase: wave.phase, operation: wave.lds_issued };
        let undefined =
            |what: &str, l: usize| Unsupported { what: what.into(), lane: Some(l as u32) };
        // Both addresses are read before either destination is written.
        let addresses = wave.register(self.address).clone();
        for &(offset, data) in &self.places {
            for l in (0..64usize).filter(|l| exec >> l & 1 == 1) {
                if addresses.bad[l] != 0 {
                    return Err(undefined("an undefined LDS address", l));
                }
                let at = addresses.value[l].wrapping_add(offset);
                match self.verb {
                    LdsOp::Load => {
                        let (mut bytes, mut bad) = ([0; 16], [0; 16]);
                        lds.read(&who, at, &mut bytes[..self.size], &mut bad[..self.size])
                            .map_err(Unsupported::at(l))?;
                        for k in 0..words {
                            let word = |b: &[u8; 16]| {
                                u32::from_le_bytes(std::array::from_fn(|i| b[4 * k + i]))
                            };
                            let (mut x, b) = (word(&bytes), word(&bad));
                            if self.signed {
                                let up = 32 - 8 * self.size as u32;
                                x = ((x << up) as i32 >> up) as u32;
                            }
                            let register = wave.register_mut(data + k as u16);
                            match self.half {
                                None => register.set(l, x, b),
                                Some(shift) => {
                                    let keep = !(0xffff << shift);
                                    let old = (register.value[l] & keep, register.bad[l] & keep);
                                    register.set(
                                        l,
                                        old.0 | (x & 0xffff) << shift,
                                        old.1 | (b & 0xffff) << shift,
                                    );
                                }
                            }
                        }
                    }
                    LdsOp::Store => {
                        let (mut bytes, mut bad) = ([0; 16], [0; 16]);
                        for k in 0..words {
                            let register = wave.register(data + k as u16);
                            let shift = self.half.unwrap_or(0);
                            bytes[4 * k..4 * k + 4]
                                .copy_from_slice(&(register.value[l] >> shift).to_le_bytes());
                            bad[4 * k..4 * k + 4]
                                .copy_from_slice(&(register.bad[l] >> shift).to_le_bytes());
                        }
                        lds.write(&who, at, &bytes[..self.size], &bad[..self.size])
                            .map_err(Unsupported::at(l))?;
                    }
                    LdsOp::Atomic(change, answer) => {
                        let mut by = 0;
                        for k in 0..words {
                            let register = wave.register(data + k as u16);
                            if register.bad[l] != 0 {
                                return Err(undefined("an undefined value in an atomic", l));
                            }
                            by |= u64::from(register.value[l]) << (32 * k);
                        }
                        let old = lds
                            .atomic(&who, at, self.size, |x| change(x, u128::from(by)))
                            .map_err(Unsupported::at(l))?;
                        for (k, into) in answer
                            .into_iter()
                            .flat_map(|r| (0..words).map(move |k| (k, r + k as u16)))
                        {
                            wave.register_mut(into).set(l, (old >> (32 * k)) as u32, 0);
                        }
                    }
                }
            }
        }
        let span =
            |first: u16, count: usize| Some(Span { vector: true, first, count: count as u16 });
        let into = match (self.verb, self.places.first()) {
            (LdsOp::Load, Some(&(_, data))) => span(data, words * self.places.len()),
            (LdsOp::Atomic(_, Some(answer)), _) => span(answer, words),
            _ => None,
        };
        let number = wave.lds_issued;
        wave.ask(Event::Lds, into, number, Vec::new());
        Ok(())
    }
}
