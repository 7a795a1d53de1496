//! Sources of a vector instruction: the values of all lanes, the selected bits, and undefined bits.

use crate::operand::{Operand, Type};
use crate::unsupported::Unsupported;
use crate::wave::Wave;
use crate::width::LANES;
use crate::width::LaneValues64;

/// A source with its modifiers.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pub operand: Operand,
    /// Whether it is a pair of registers.
    pub wide: bool,
    /// Whether it is the lane's bit of a mask.
    pub mask: bool,
    /// The number of the first selected bit.
    pub shift: u32,
    pub bits: u32,
    pub extend: bool,
    /// Conversion of f16 or bfloat16 to f32.
    pub widen: Option<fn(u16) -> f32>,
    pub keep: u64,
    pub turn: u64,
    /// Whether it is an f32 that is flushed if it is subnormal, in the wave's mode that flushes.
    pub flush: bool,
}

/// An f32, or a zero of its sign if it is subnormal.
pub(super) fn flushed(x: u32) -> u32 {
    if x & 0x7f80_0000 == 0 { x & 0x8000_0000 } else { x }
}

impl Fetch {
    pub fn new(operand: Operand, ty: Type) -> Fetch {
        Fetch {
            operand,
            wide: ty.bits() == 64,
            mask: ty == Type::Mask,
            shift: 0,
            bits: if ty == Type::Mask { 64 } else { ty.bits() },
            extend: false,
            widen: None,
            keep: u64::MAX,
            turn: 0,
            flush: false,
        }
    }

    /// Extracts the selected bits from the value of a register.
    fn take(&self, x: u64) -> u64 {
        let mut x = x >> self.shift;
        if self.bits < 64 {
            x &= (1 << self.bits) - 1;
            if self.extend && x >> (self.bits - 1) & 1 == 1 {
                x |= u64::MAX << self.bits & 0xffff_ffff;
            }
        }
        x
    }

    /// Applies the conversion to f32, the signs, and in a mode that flushes the flush.
    pub fn finish(&self, mut x: u64, flushes: bool) -> u64 {
        if let Some(widen) = self.widen {
            x = u64::from(widen(x as u16).to_bits());
        }
        let x = x & self.keep ^ self.turn;
        if self.flush && flushes { u64::from(flushed(x as u32)) } else { x }
    }

    /// Reads values and undefined bits of all lanes, before sign modifiers. Returns the lanes that
    /// have undefined bits.
    pub fn read(
        &self,
        wave: &Wave,
        value: &mut LaneValues64,
        bad: &mut LaneValues64,
    ) -> Result<u64, Unsupported> {
        match self.operand {
            Operand::Vector(n) => {
                let low = wave.register(n);
                let mut any = low.any;
                if self.wide {
                    let high = wave.register(n + 1);
                    any |= high.any;
                    for l in 0..LANES {
                        value[l] = u64::from(low.value[l]) | u64::from(high.value[l]) << 32;
                        bad[l] = u64::from(low.bad[l]) | u64::from(high.bad[l]) << 32;
                    }
                } else {
                    for l in 0..LANES {
                        value[l] = u64::from(low.value[l]);
                        bad[l] = u64::from(low.bad[l]);
                    }
                }
                if any != 0 && (self.shift != 0 || self.bits < 32) {
                    any = 0;
                    for (l, b) in bad.iter_mut().enumerate() {
                        *b = self.take(*b);
                        any |= u64::from(*b != 0) << l;
                    }
                }
                if self.shift != 0 || self.bits < 32 {
                    value.iter_mut().for_each(|x| *x = self.take(*x));
                }
                Ok(any)
            }
            Operand::Lane => {
                value.iter_mut().enumerate().for_each(|(l, x)| *x = l as u64);
                Ok(0)
            }
            Operand::Scalar(n) if self.mask => {
                let (m, b) = wave.mask(n);
                for l in 0..LANES {
                    value[l] = m >> l & 1;
                    bad[l] = b >> l & 1;
                }
                Ok(b)
            }
            _ => {
                let (x, b) = wave.read_scalar(self.operand, self.wide)?;
                value.fill(self.take(x));
                let b = self.take(b);
                if b != 0 {
                    bad.fill(b);
                }
                Ok(if b != 0 { u64::MAX } else { 0 })
            }
        }
    }
}
