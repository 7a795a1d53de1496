//! A part of a vector instruction: computes the result for each lane and stores it.
//!
//! A bit of the result is undefined if it changes with undefined bits of the sources. The emulator
//! sets all of them to 0, to 1 and to some patterns. So a mask (`and`), a shift or a byte selection
//! can remove undefined bits, and arithmetic spreads them.

use super::fetch::{Fetch, flushed};
use crate::exchange::Exchange;
use crate::operand::{EXEC, Operand, Type};
use crate::ops::{Compute, OperandLayout};
use crate::text::Text;
use crate::unsupported::Unsupported;
use crate::wave::Wave;
use crate::width::LANES;
use crate::width::LaneValues64;
use half::f16;

/// The effect on the other bits of a destination register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OtherBits {
    Keep,
    Zero,
    Sign,
}

/// The destination of a result.
#[derive(Clone, Debug)]
pub(super) struct ResultDestination {
    pub register: Option<u16>,
    pub shift: u32,
    pub bits: u32,
    pub rest: OtherBits,
    pub flags: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Clamp {
    None,
    Unit(Type),
    Add,
    Subtract,
}

#[derive(Clone, Debug)]
pub(super) struct Part {
    pub compute: Compute,
    pub fetch: Vec<Fetch>,
    pub put: ResultDestination,
    /// Whether it is a comparison: its result is undefined if any bit of a source is undefined.
    pub compare: bool,
    pub clamp: Clamp,
    pub scale: f32,
    /// Whether a subnormal f32 result is flushed, in the wave's mode that flushes.
    pub flush: bool,
}

/// The result of a part.
pub(super) struct PartResult {
    value: LaneValues64,
    bad: LaneValues64,
    flags: u64,
    flags_bad: u64,
}

/// Values that replace undefined bits. They are rotated differently for each source.
const UNDEFINED_VALUES: [u64; 8] = [
    0,
    u64::MAX,
    0x5555_5555_5555_5555,
    0xaaaa_aaaa_aaaa_aaaa,
    0x0123_4567_89ab_cdef,
    0xf0e1_d2c3_b4a5_9687,
    0x3c00_3f80_4000_c000,
    0x9e37_79b9_7f4a_7c15,
];

impl Part {
    /// Makes two parts: both 16-bit halves, or both registers of pairs.
    pub fn twice(
        self,
        name: &str,
        text: &Text,
        form: OperandLayout,
        selected: &[u32],
        selected_high: &[u32],
    ) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        for half in 0..2u16 {
            let mut part = self.clone();
            let signs = text.list(if half == 0 { "neg_lo" } else { "neg_hi" }).unwrap_or_default();
            let select = if half == 0 { selected } else { selected_high };
            for (k, f) in part.fetch.iter_mut().enumerate() {
                let mut upper = select.get(k).copied().unwrap_or(0);
                if name == "v_pk_mov_b32" {
                    upper = selected.get(k).copied().unwrap_or(0);
                }
                if signs.get(k) == Some(&1) {
                    f.turn ^= 1 << (f.bits - 1);
                }
                match (form, f.operand) {
                    (OperandLayout::Halves, _) => f.shift = 16 * upper,
                    (_, Operand::Vector(n)) => f.operand = Operand::Vector(n + upper as u16),
                    (_, Operand::Scalar(n)) => f.operand = Operand::Scalar(n + upper as u16),
                    _ => {}
                }
            }
            if name == "v_pk_mov_b32" {
                part.fetch.swap(0, usize::from(half));
            }
            if form == OperandLayout::Halves {
                part.put.shift = 16 * u32::from(half);
            } else {
                part.put.register = part.put.register.map(|r| r + half);
            }
            parts.push(part);
        }
        Ok(parts)
    }

    fn finish(&self, x: u128, flushes: bool) -> u128 {
        let flag = x >> 64 & 1 == 1;
        let mut x = x;
        if self.flush && flushes {
            x = x & !0xffff_ffff | u128::from(flushed(x as u32));
        }
        if self.scale != 1.0 {
            x = x & !0xffff_ffff | u128::from((f32::from_bits(x as u32) * self.scale).to_bits());
        }
        match self.clamp {
            Clamp::None => x,
            Clamp::Add if flag => 0xffff_ffff,
            Clamp::Subtract if flag => 0,
            Clamp::Add | Clamp::Subtract => x,
            Clamp::Unit(Type::F16) => {
                let h = f16::from_bits(x as u16).to_f32();
                u128::from(
                    f16::from_f32(if h.is_nan() { 0.0 } else { h.clamp(0.0, 1.0) }).to_bits(),
                )
            }
            Clamp::Unit(_) => {
                let v = f32::from_bits(x as u32);
                u128::from((if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) }).to_bits())
            }
        }
    }

    pub fn run(
        &self,
        wave: &Wave,
        exec: u64,
        write: u64,
        exchange: Option<&Exchange>,
    ) -> Result<PartResult, Unsupported> {
        let mut values = [[0u64; LANES]; 4];
        let mut bads = [[0u64; LANES]; 4];
        let (mut any, flushes) = (0, wave.flushes);
        for (k, f) in self.fetch.iter().enumerate() {
            let mut a = f.read(wave, &mut values[k], &mut bads[k])?;
            if k == 0
                && let Some(e) = exchange
            {
                a = e.apply(exec, &mut values[k], &mut bads[k]);
            }
            any |= a;
            if f.widen.is_some() || f.flush || f.turn != 0 || f.keep != u64::MAX {
                values[k].iter_mut().for_each(|x| *x = f.finish(*x, flushes));
            }
        }
        let mut out = PartResult { value: [0; LANES], bad: [0; LANES], flags: 0, flags_bad: 0 };
        let mut todo = write;
        while todo != 0 {
            let l = todo.trailing_zeros() as usize;
            todo &= todo - 1;
            let mut s = [values[0][l], values[1][l], values[2][l], values[3][l]];
            let x = self.finish((self.compute)(&s), flushes);
            out.value[l] = x as u64;
            out.flags |= ((x >> 64) as u64 & 1) << l;
            if any >> l & 1 == 0 {
                continue;
            }
            if self.compare {
                out.flags_bad |= 1 << l;
                continue;
            }
            let mut first = None;
            let mut differs = 0u128;
            for (t, pattern) in UNDEFINED_VALUES.iter().enumerate() {
                for (k, f) in self.fetch.iter().enumerate() {
                    let bad = bads[k][l];
                    if bad != 0 {
                        // Undefined bits belong to the value before conversion and signs, so the
                        // computation starts there.
                        let raw =
                            if f.widen.is_some() { self.raw(wave, k, l) } else { values[k][l] };
                        let tried = raw & !bad | pattern.rotate_left((7 * k + t) as u32) & bad;
                        s[k] = if f.widen.is_some() { f.finish(tried, flushes) } else { tried };
                    }
                }
                let x = self.finish((self.compute)(&s), flushes);
                differs |= x ^ *first.get_or_insert(x);
            }
            out.bad[l] = differs as u64;
            out.flags_bad |= ((differs >> 64) as u64 & 1) << l;
        }
        Ok(out)
    }

    /// The value of a 16-bit source as stored in its register.
    fn raw(&self, wave: &Wave, k: usize, lane: usize) -> u64 {
        let (mut value, mut bad) = ([0; LANES], [0; LANES]);
        let _ = self.fetch[k].read(wave, &mut value, &mut bad);
        value[lane]
    }

    pub fn store(&self, wave: &mut Wave, write: u64, out: &PartResult) -> Result<(), Unsupported> {
        let put = &self.put;
        if let Some(r) = put.register {
            let bits = put.bits.min(32);
            let mask = if bits == 32 { u32::MAX } else { ((1u32 << bits) - 1) << put.shift };
            let register = wave.register_mut(r);
            let mut todo = write;
            while todo != 0 {
                let l = todo.trailing_zeros() as usize;
                todo &= todo - 1;
                let (x, b) = (out.value[l] as u32, out.bad[l] as u32);
                if bits == 32 {
                    register.value[l] = x;
                    register.bad[l] = b;
                } else {
                    let (old, old_bad) = match put.rest {
                        OtherBits::Keep => (register.value[l], register.bad[l]),
                        OtherBits::Zero => (0, 0),
                        OtherBits::Sign => {
                            let sign = x >> (bits - 1) & 1 == 1;
                            (if sign { u32::MAX << put.shift } else { 0 }, 0)
                        }
                    };
                    register.value[l] = old & !mask | x << put.shift & mask;
                    register.bad[l] = old_bad & !mask | b << put.shift & mask;
                }
                register.any = register.any & !(1 << l) | u64::from(register.bad[l] != 0) << l;
            }
            if put.bits == 64 {
                let register = wave.register_mut(r + 1);
                for l in (0..LANES).filter(|l| write >> l & 1 == 1) {
                    register.set(l, (out.value[l] >> 32) as u32, (out.bad[l] >> 32) as u32);
                }
            }
        }
        if let Some(n) = put.flags {
            wave.set_mask(n, out.flags, out.flags_bad);
            if n == EXEC {
                wave.check_exec()?;
            }
        }
        Ok(())
    }
}
