//! Global memory and scalar loads.

use crate::atomic::{AtomicUpdate, atomic, compare_and_swap};
use crate::memory::{Access, Memory};
use crate::operand::{Operand, Type, register, source};
use crate::span::Span;
use crate::target::{Event, Target};
use crate::text::{Text, integer};
use crate::unsupported::Unsupported;
use crate::wave::Wave;

#[derive(Clone, Copy, Debug)]
enum GlobalOp {
    Load,
    Store,
    /// The operation, and the destination register if the old value is returned.
    Atomic(AtomicUpdate, Option<u16>),
}

/// A global memory instruction.
#[derive(Clone, Debug)]
pub struct Global {
    verb: GlobalOp,
    /// Number of bytes per lane.
    size: usize,
    /// Whether the loaded value is sign-extended.
    signed: bool,
    /// Whether it is a compare and swap, whose data are twice as wide.
    compares: bool,
    /// `d16`: the half of the register that is read or written (0 low, 1 high).
    half: Option<u32>,
    address: u16,
    base: Option<u16>,
    data: u16,
    offset: i64,
    bypass: bool,
    /// gfx1250: whether the offset register counts elements.
    scaled: bool,
}

/// A load or store of each lane at an address in a vector register.
#[derive(Clone, Copy, Debug)]
pub struct LaneAccess {
    /// Whether it is a load.
    pub load: bool,
    /// Number of bytes.
    pub size: usize,
    /// Whether the loaded value is sign-extended.
    pub signed: bool,
    /// The half of the register.
    pub half: Option<u32>,
    /// The first register of the address.
    pub address: u16,
    /// The first register of the data.
    pub data: u16,
    /// Bytes added to the address.
    pub offset: i64,
}

/// The number of bytes, and whether the type is signed, from the name of a type.
pub fn size_of(kind: &str) -> Option<(usize, bool)> {
    Some(match kind {
        "u8" | "ubyte" | "b8" | "byte" => (1, false),
        "i8" | "sbyte" => (1, true),
        "u16" | "ushort" | "b16" | "short" => (2, false),
        "i16" | "sshort" => (2, true),
        "b32" | "dword" => (4, false),
        "b64" | "dwordx2" => (8, false),
        "b96" | "dwordx3" => (12, false),
        "b128" | "dwordx4" => (16, false),
        _ => return None,
    })
}

impl Global {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(target: &Target, text: &Text) -> Result<Option<Global>, String> {
        let Some(name) = text.name.strip_prefix("global_") else { return Ok(None) };
        let scope = text.value("scope");
        let device = matches!(scope, Some("SCOPE_DEV" | "SCOPE_SYS"));
        let bypass = text.has("glc") || text.has("sc1") || device;
        let known =
            ["offset", "glc", "slc", "dlc", "sc0", "sc1", "nt", "th", "scope", "scale_offset"];
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
        let base = |k: usize| match register(text.operand(k)?) {
            Some((Operand::Scalar(n), _)) => Ok(Some(n)),
            None if text.operands[k] == "off" => Ok(None),
            _ => Err(format!("operand {k} cannot be a base address")),
        };
        let (offset, scaled) = (text.number("offset")?, text.has("scale_offset"));
        if let Some(rest) = name.strip_prefix("atomic_") {
            let (verb, size) = match rest.rsplit_once('_') {
                Some((verb, "x2" | "u64" | "b64")) => (verb, 8),
                Some((_, "f64")) => (rest, 8),
                Some((verb, "u32" | "b32")) => (verb, 4),
                _ => (rest, 4),
            };
            let compares = verb == "cmpswap";
            let Some(change) = (if compares { Some(compare_and_swap(size)) } else { atomic(verb) })
            else {
                return Ok(None);
            };
            let signed = matches!(verb, "smax" | "smin") && size == 8;
            if signed || matches!(verb, "max" | "min") && !rest.contains("_u") {
                return Ok(None);
            }
            let returns = match target.generation {
                12 => text.value("th").is_some_and(|t| t.contains("RETURN")),
                _ => text.has("glc") || text.has("sc0"),
            };
            let k = usize::from(returns);
            let data = vector(k + 1)?;
            return Ok(Some(Global {
                verb: GlobalOp::Atomic(change, returns.then(|| vector(0)).transpose()?),
                size,
                signed: false,
                compares,
                half: None,
                address: vector(k)?,
                base: base(k + 2)?,
                data,
                offset,
                bypass: true,
                scaled,
            }));
        }
        let (load, kind) = match (name.strip_prefix("load_"), name.strip_prefix("store_")) {
            (Some(kind), _) => (true, kind),
            (_, Some(kind)) => (false, kind),
            _ => return Ok(None),
        };
        let half =
            if kind.contains("d16_hi") { Some(16) } else { kind.contains("d16").then_some(0) };
        let plain = kind.replace("d16_hi", "").replace("d16", "");
        let Some((size, signed)) = size_of(plain.trim_matches('_')) else { return Ok(None) };
        let (address, data) =
            if load { (vector(1)?, vector(0)?) } else { (vector(0)?, vector(1)?) };
        let verb = if load { GlobalOp::Load } else { GlobalOp::Store };
        Ok(Some(Global {
            verb,
            size,
            signed,
            compares: false,
            half,
            address,
            base: base(2)?,
            data,
            offset,
            bypass,
            scaled,
        }))
    }

    /// The access of each lane.
    pub fn place(&self) -> LaneAccess {
        LaneAccess {
            load: matches!(self.verb, GlobalOp::Load),
            size: self.size,
            signed: self.signed,
            half: self.half,
            address: self.address,
            data: self.data,
            offset: self.offset,
        }
    }

    /// Whether it is an atomic.
    pub fn is_atomic(&self) -> bool {
        matches!(self.verb, GlobalOp::Atomic(..))
    }

    /// Whether it is a load that fully overwrites its registers.
    pub fn fills(&self) -> bool {
        matches!(self.verb, GlobalOp::Load) && self.half.is_none()
    }

    fn address(&self, wave: &Wave, lane: usize) -> Result<u64, Unsupported> {
        let low = wave.register(self.address);
        let at = |what: &str| Unsupported { what: what.into(), lane: Some(lane as u32) };
        let (mut value, mut bad) = (u64::from(low.value[lane]), low.bad[lane]);
        match self.base {
            Some(n) => {
                let (base, base_bad) = wave.pair(n);
                if self.scaled {
                    value *= self.size as u64;
                }
                value = value.wrapping_add(base);
                bad |= u32::from(base_bad != 0);
            }
            None => {
                let high = wave.register(self.address + 1);
                value |= u64::from(high.value[lane]) << 32;
                bad |= high.bad[lane];
            }
        }
        if bad != 0 {
            return Err(at("an undefined address"));
        }
        Ok(value.wrapping_add_signed(self.offset))
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave, memory: &mut Memory) -> Result<(), Unsupported> {
        let exec = wave.exec();
        let lanes = (0..64usize).filter(|l| exec >> l & 1 == 1);
        let mut who = wave.access(self.bypass);
        let words = self.size.div_ceil(4);
        match self.verb {
            GlobalOp::Load => {
                who.load = memory.next_load(wave.number);
                for l in lanes {
                    let mut bytes = [0; 16];
                    memory
                        .read(&who, self.address(wave, l)?, &mut bytes[..self.size])
                        .map_err(Unsupported::at(l))?;
                    for k in 0..words {
                        let raw: [u8; 4] = std::array::from_fn(|i| bytes[4 * k + i]);
                        let mut x = u32::from_le_bytes(raw);
                        if self.signed {
                            let up = 32 - 8 * self.size as u32;
                            x = ((x << up) as i32 >> up) as u32;
                        }
                        let register = wave.register_mut(self.data + k as u16);
                        match self.half {
                            None => register.set(l, x, 0),
                            Some(shift) => {
                                let keep = !(0xffff << shift);
                                let old = (register.value[l], register.bad[l]);
                                register.set(l, old.0 & keep | (x & 0xffff) << shift, old.1 & keep);
                            }
                        }
                    }
                }
                wave.ask(
                    Event::Load,
                    Some(Span { vector: true, first: self.data, count: words as u16 }),
                    who.load,
                    Vec::new(),
                );
            }
            GlobalOp::Store => {
                let number = memory.next_store(wave.number);
                for l in lanes {
                    let mut bytes = [0; 16];
                    let mut undefined = 0;
                    for k in 0..words {
                        let register = wave.register(self.data + k as u16);
                        let shift = self.half.unwrap_or(0);
                        let used =
                            if self.size >= 4 { u32::MAX } else { (1 << (8 * self.size)) - 1 };
                        undefined |= register.bad[l] >> shift & used;
                        bytes[4 * k..4 * k + 4]
                            .copy_from_slice(&(register.value[l] >> shift).to_le_bytes());
                    }
                    if undefined != 0 {
                        return Err(Unsupported {
                            what: "an undefined value is stored".into(),
                            lane: Some(l as u32),
                        });
                    }
                    memory
                        .write(&who, self.address(wave, l)?, &bytes[..self.size])
                        .map_err(Unsupported::at(l))?;
                }
                wave.ask(Event::Store, None, number, Vec::new());
            }
            GlobalOp::Atomic(change, answer) => {
                let words = self.size / 4;
                if answer.is_some() {
                    who.load = memory.next_load(wave.number);
                } else {
                    memory.next_store(wave.number);
                }
                for l in lanes {
                    let mut by = 0;
                    for k in 0..if self.compares { 2 * words } else { words } {
                        let register = wave.register(self.data + k as u16);
                        if register.bad[l] != 0 {
                            return Err(Unsupported {
                                what: "an undefined value in an atomic".into(),
                                lane: Some(l as u32),
                            });
                        }
                        by |= u128::from(register.value[l]) << (32 * k);
                    }
                    let address = self.address(wave, l)?;
                    let old =
                        memory.atomic(&who, address, self.size, (change, by), answer.is_some());
                    let old = old.map_err(Unsupported::at(l))?;
                    for k in (0..words).filter(|_| answer.is_some()) {
                        let into = answer.unwrap_or(0) + k as u16;
                        wave.register_mut(into).set(l, (old >> (32 * k)) as u32, 0);
                    }
                }
                if let Some(first) = answer {
                    wave.ask(
                        Event::Load,
                        Some(Span { vector: true, first, count: words as u16 }),
                        who.load,
                        Vec::new(),
                    );
                } else {
                    let number = memory.writers[wave.number as usize].stores.issued;
                    wave.ask(Event::Store, None, number, Vec::new());
                }
            }
        }
        Ok(())
    }
}

/// A load to scalar registers.
#[derive(Clone, Debug)]
pub struct ScalarLoad {
    words: u16,
    into: u16,
    base: u16,
    offset: i64,
    register: Option<Operand>,
    scaled: bool,
}

impl ScalarLoad {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(text: &Text) -> Result<Option<ScalarLoad>, String> {
        let words = match text.name.strip_prefix("s_load_") {
            Some("b32" | "dword") => 1,
            Some("b64" | "dwordx2") => 2,
            Some("b96") => 3,
            Some("b128" | "dwordx4") => 4,
            Some("b256" | "dwordx8") => 8,
            Some("b512" | "dwordx16") => 16,
            _ => return Ok(None),
        };
        let scalar = |k: usize| match register(text.operand(k)?) {
            Some((Operand::Scalar(n), _)) => Ok(n),
            _ => Err(format!("operand {k} is not a scalar register")),
        };
        let by = text.operand(2)?;
        let register =
            if integer(by).is_some() { None } else { Some(source(by, Type::B32)?.operand) };
        let offset = integer(by).unwrap_or(0) + text.number("offset")?;
        Ok(Some(ScalarLoad {
            words,
            into: scalar(0)?,
            base: scalar(1)?,
            offset,
            register,
            scaled: text.has("scale_offset"),
        }))
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave, memory: &mut Memory) -> Result<(), Unsupported> {
        let (base, mut bad) = wave.pair(self.base);
        let mut address = base.wrapping_add_signed(self.offset);
        if let Some(register) = self.register {
            let (by, by_bad) = wave.read_scalar(register, false)?;
            address = address.wrapping_add(by);
            bad |= by_bad;
            if self.scaled {
                // The offset register counts elements of the loaded size.
                address = address.wrapping_add(by.wrapping_mul(4 * u64::from(self.words) - 1));
            }
        }
        if bad != 0 {
            return Err("an undefined address".into());
        }
        let who = Access { scalar: true, ..wave.access(false) };
        for k in 0..self.words {
            let mut bytes = [0; 4];
            memory.read(&who, (address & !3) + 4 * u64::from(k), &mut bytes)?;
            wave.set_scalar(self.into + k, u32::from_le_bytes(bytes), 0);
        }
        wave.ask(
            Event::Scalar,
            Some(Span { vector: false, first: self.into, count: self.words }),
            0,
            Vec::new(),
        );
        Ok(())
    }
}
