//! Scratch memory: bytes of each lane, for spilled registers and arrays with an index. Code for
//! gfx942, gfx11 and gfx12 uses `scratch_` instructions. Code for older families uses `buffer_`
//! instructions with the wave's buffer; the kernel adds the wave's offset to that buffer first.

use crate::global::{LaneAccess, size_of};
use crate::memory::Memory;
use crate::object::ScratchUse;
use crate::operand::{Operand, Type, register, source};
use crate::span::Span;
use crate::target::Event;
use crate::text::{Text, integer};
use crate::unsupported::Unsupported;
use crate::wave::Wave;
use crate::width::LANES;

/// Address of the buffer of all waves. No region has such an address.
const BUFFER: u64 = 0x5000_0000_0000;
/// The other words of the buffer's descriptor.
const DESCRIPTOR: [u32; 2] = [0xffff_ffff, 0x00e0_0000];

/// The scratch memory of a wave.
#[derive(Clone, Debug, Default)]
pub struct LaneMemory {
    /// Bytes of each lane.
    each: usize,
    bytes: Vec<u8>,
    /// Undefined bits of each byte.
    bad: Vec<u8>,
    /// Offset of the wave in the buffer of all waves.
    offset: u32,
}

impl LaneMemory {
    /// The memory of a wave, undefined. The registers that the kernel's descriptor requests get
    /// their values.
    pub fn begin(wave: &mut Wave, of: &ScratchUse, mut random: impl FnMut() -> u8) {
        let (each, offset) = (of.bytes as usize, (wave.number % 0x3fff + 1) << 16);
        let bytes = (0..each * LANES).map(|_| random()).collect();
        if let Some(first) = of.buffer {
            wave.set_pair(first, BUFFER, 0);
            wave.set_scalar(first + 2, DESCRIPTOR[0], 0);
            wave.set_scalar(first + 3, DESCRIPTOR[1], 0);
        }
        // For instructions that may access scratch memory and other memory. Kernels have none.
        if let Some(first) = of.flat {
            wave.set_pair(first, BUFFER, 0);
        }
        if let Some(register) = of.offset {
            wave.set_scalar(register, offset, 0);
        }
        wave.scratch = LaneMemory { each, bytes, bad: vec![0xff; each * LANES], offset };
    }

    fn place(&self, lane: usize, at: i64, size: usize) -> Result<usize, Unsupported> {
        match usize::try_from(at).ok().filter(|at| at + size <= self.each) {
            Some(at) => Ok(lane * self.each + at),
            None => Err(Unsupported {
                what: format!("{size} bytes at {at} of {} bytes of scratch memory", self.each),
                lane: Some(lane as u32),
            }),
        }
    }
}

/// An instruction that accesses scratch memory.
#[derive(Clone, Debug)]
pub struct Scratch {
    load: bool,
    size: usize,
    signed: bool,
    /// `d16`: the half of the register.
    half: Option<u32>,
    data: u16,
    /// A vector register with an offset.
    by_lane: Option<u16>,
    /// A scalar register or constant with an offset.
    by_wave: Option<Operand>,
    offset: i64,
    /// The first register of the buffer's descriptor.
    buffer: Option<u16>,
}

impl Scratch {
    /// Decodes an instruction; `None` if its name is unknown.
    pub fn decode(text: &Text) -> Result<Option<Scratch>, String> {
        let (name, buffer) =
            match (text.name.strip_prefix("scratch_"), text.name.strip_prefix("buffer_")) {
                (Some(name), _) => (name, false),
                (_, Some(name)) => (name, true),
                _ => return Ok(None),
            };
        let (load, kind) = match (name.strip_prefix("load_"), name.strip_prefix("store_")) {
            (Some(kind), _) => (true, kind),
            (_, Some(kind)) => (false, kind),
            _ => return Ok(None),
        };
        let half =
            if kind.contains("d16_hi") { Some(16) } else { kind.contains("d16").then_some(0) };
        let plain = kind.replace("d16_hi", "").replace("d16", "");
        let Some((size, signed)) = size_of(plain.trim_matches('_')) else { return Ok(None) };
        let known = ["offset", "offen", "nt", "glc", "slc", "dlc", "sc0", "sc1", "scope", "th"];
        let unknown = |m: &&String| !known.contains(&m.split(':').next().unwrap_or_default());
        if let Some(m) = text.modifiers.iter().find(unknown) {
            return Err(format!("modifier {m} is unknown"));
        }
        let vector = |k: usize| match register(text.operand(k)?) {
            Some((Operand::Vector(n), _)) => Ok(Some(n)),
            None if text.operands[k] == "off" => Ok(None),
            _ => Err(format!("operand {k} is no vector register")),
        };
        // `scratch_load data, lane, wave`, `scratch_store lane, data, wave`, and for both kinds of
        // `buffer_`: data, lane, descriptor, wave.
        let (data, lane) = if load || buffer { (0, 1) } else { (1, 0) };
        let by = if buffer { 3 } else { 2 };
        let by_wave = match text.operand(by)? {
            "off" => None,
            other => Some(match integer(other) {
                Some(n) => Operand::Constant(n as u64),
                None => source(other, Type::B32)?.operand,
            }),
        };
        Ok(Some(Scratch {
            load,
            size,
            signed,
            half,
            data: vector(data)?.ok_or("no data")?,
            by_lane: vector(lane)?,
            by_wave,
            offset: text.number("offset")?,
            buffer: match buffer.then(|| text.operand(2)).transpose()?.map(register) {
                Some(Some((Operand::Scalar(n), 4))) => Some(n),
                Some(_) => return Err("operand 2 is no descriptor".into()),
                None => None,
            },
        }))
    }

    /// The access of a `flat_` instruction whose addresses are in scratch memory.
    pub fn of(access: LaneAccess) -> Scratch {
        let LaneAccess { load, size, signed, half, address, data, offset } = access;
        let (by_lane, by_wave, buffer) = (Some(address), None, None);
        Scratch { load, size, signed, half, data, by_lane, by_wave, offset, buffer }
    }

    /// Whether it is a load that fully overwrites its registers.
    pub fn fills(&self) -> bool {
        self.load && self.half.is_none()
    }

    /// The offset that all lanes have, after a check of the buffer.
    fn start(&self, wave: &Wave) -> Result<i64, Unsupported> {
        if let Some(first) = self.buffer {
            let (low, low_bad) = wave.pair(first);
            let (high, high_bad) = wave.pair(first + 2);
            let own = BUFFER + u64::from(wave.scratch.offset);
            let descriptor = u64::from(DESCRIPTOR[0]) | u64::from(DESCRIPTOR[1]) << 32;
            if (low_bad, high_bad, low, high) != (0, 0, own, descriptor) {
                return Err("a buffer that is not the wave's scratch memory".into());
            }
        }
        let Some(by) = self.by_wave else { return Ok(self.offset) };
        match wave.read_scalar(by, false)? {
            // In the buffer the bytes of all lanes lie between two words of a lane.
            (by, 0) if self.buffer.is_some() => Ok(self.offset + by as i64 / wave.lanes()),
            (by, 0) => Ok(self.offset + i64::from(by as u32 as i32)),
            _ => Err("an undefined address".into()),
        }
    }

    /// Executes the instruction.
    pub fn run(&self, wave: &mut Wave, memory: &mut Memory) -> Result<(), Unsupported> {
        let (exec, start) = (wave.exec(), self.start(wave)?);
        let words = self.size.div_ceil(4);
        let number =
            if self.load { memory.next_load(wave.number) } else { memory.next_store(wave.number) };
        for l in (0..LANES).filter(|l| exec >> l & 1 == 1) {
            let mut at = start;
            if let Some(n) = self.by_lane {
                let register = wave.register(n);
                if register.bad[l] != 0 {
                    return Err(Unsupported::at(l)("an undefined address".into()));
                }
                at += i64::from(register.value[l] as i32);
            }
            let place = wave.scratch.place(l, at, self.size)?;
            for k in 0..words {
                let (place, count) = (place + 4 * k, (self.size - 4 * k).min(4));
                let (into, shift) = (self.data + k as u16, self.half.unwrap_or(0));
                if !self.load {
                    let register = wave.register(into);
                    let value = (register.value[l] >> shift).to_le_bytes();
                    let bad = (register.bad[l] >> shift).to_le_bytes();
                    wave.scratch.bytes[place..place + count].copy_from_slice(&value[..count]);
                    wave.scratch.bad[place..place + count].copy_from_slice(&bad[..count]);
                    continue;
                }
                let word = |from: &[u8]| {
                    let mut raw = [0; 4];
                    raw[..count].copy_from_slice(&from[place..place + count]);
                    let x = u32::from_le_bytes(raw);
                    let up = 32 - 8 * count as u32;
                    if self.signed { ((x << up) as i32 >> up) as u32 } else { x }
                };
                let (x, bad) = (word(&wave.scratch.bytes), word(&wave.scratch.bad));
                let register = wave.register_mut(into);
                match self.half {
                    None => register.set(l, x, bad),
                    Some(shift) => {
                        let keep = !(0xffff << shift);
                        let old = (register.value[l] & keep, register.bad[l] & keep);
                        let low = |x: u32| (x & 0xffff) << shift;
                        register.set(l, old.0 | low(x), old.1 | low(bad));
                    }
                }
            }
        }
        if self.load {
            let into = Span { vector: true, first: self.data, count: words as u16 };
            wave.ask(Event::Load, Some(into), number, Vec::new());
        } else {
            wave.ask(Event::Store, None, number, Vec::new());
        }
        Ok(())
    }
}
