//! The host's dequantiser for any format, from its description. Results and ggml's results are
//! bit-identical.

use super::{BlockFormat, BlockScale, DecodeError, Encoding, Format, GroupScale, Offset, Value};
use half::{bf16, f16};

impl Format {
    /// Decodes whole blocks into f32. The length of `out` must be the number of weights in the
    /// blocks.
    ///
    /// # Errors
    /// [`DecodeError::PartialBlock`], [`DecodeError::WrongLength`].
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
        let (block, elems) = (self.block_bytes(), self.block_elems());
        if !bytes.len().is_multiple_of(block) {
            return Err(DecodeError::PartialBlock { format: self.name, got: bytes.len(), block });
        }
        let blocks = bytes.len() / block;
        let holds = blocks.saturating_mul(elems);
        if holds != out.len() {
            return Err(DecodeError::WrongLength {
                format: self.name,
                blocks,
                holds,
                room: out.len(),
            });
        }
        match &self.encoding {
            Encoding::F32 => each(bytes, out, |b: [u8; 4]| f32::from_le_bytes(b)),
            Encoding::F16 => each(bytes, out, |b: [u8; 2]| f16::from_le_bytes(b).to_f32()),
            Encoding::BF16 => each(bytes, out, |b: [u8; 2]| bf16::from_le_bytes(b).to_f32()),
            Encoding::Blocks(f) => {
                bytes
                    .chunks_exact(block)
                    .zip(out.chunks_exact_mut(elems))
                    .for_each(|(b, o)| f.decode(b, o));
            }
        }
        Ok(())
    }
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    bytes.as_chunks::<N>().0.iter().zip(out).for_each(|(b, o)| *o = read(*b));
}

/// The scale and offset that the weights of a group share: `w = scale · value + offset`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFactors {
    /// `d · s[g]`.
    pub scale: f32,
    /// `± m · t[g]`, including the sign.
    pub offset: f32,
}

impl BlockFormat {
    /// Decodes one block. `block` has [`BlockFormat::bytes`] bytes and `out` [`BlockFormat::elems`]
    /// elements.
    ///
    /// # Panics
    /// If either slice is shorter.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) {
        for (g, out) in out[..self.elems].chunks_exact_mut(self.group).enumerate() {
            let f = self.factors(block, g);
            for (j, out) in out.iter_mut().enumerate() {
                let scaled = f.scale * self.value_of(block, g * self.group + j) as f32;
                // Without an offset nothing is added: −0 stays −0, as in ggml.
                *out = if matches!(self.offset, Offset::None) { scaled } else { scaled + f.offset };
            }
        }
    }

    /// The code of weight `i`: its bits from all planes, or its digit of base 3.
    ///
    /// Byte `b` holds digits `⌊b · 3^k / 256 mod 1 · 3⌋`. The first 32 bytes have five digits, for
    /// weights with distance 32; the next 16 have five, with distance 16; the last four have four,
    /// with distance 4.
    #[inline(always)]
    pub fn code(&self, block: &[u8], i: usize) -> u32 {
        if matches!(self.value, Value::Ternary) {
            let (byte, digit) = match i {
                0..160 => (i % 32, i / 32),
                160..240 => (32 + i % 16, i / 16 - 10),
                _ => (48 + i % 4, i / 4 - 60),
            };
            let power = [1, 3, 9, 27, 81][digit];
            return (((u32::from(block[byte]) * power) & 255) * 3) >> 8;
        }
        let (mut code, mut at) = (0, 0);
        for plane in self.planes {
            code |= plane.bits_of(block, i) << at;
            at += u32::from(plane.bits);
        }
        code
    }

    /// Weight `i` before scaling.
    #[inline(always)]
    pub fn value_of(&self, block: &[u8], i: usize) -> i32 {
        match self.value {
            Value::Codebook(book) => book.element(book.packed_group(block, i / 8), i % 8),
            value => value.of(self.code(block, i)),
        }
    }

    /// The scale `d` of the block.
    #[inline(always)]
    pub fn block_scale(&self, block: &[u8]) -> f32 {
        match self.scale {
            BlockScale::F16(at) => half_at(block, at),
            BlockScale::HalfE8M0(at) => half_e8m0(block[at as usize]),
            BlockScale::F16Down(at, by) => half_at(block, at) * down(by),
            BlockScale::SplitF16Down(at, by) => {
                f16::from_bits(split_half(block, at)).to_f32() * down(by)
            }
            BlockScale::Down(by) => down(by),
        }
    }

    /// Stores a block's scale times the format's divisor, a power of two. Formats without a stored
    /// f16 scale are not changed. For code that quantises.
    pub fn set_block_scale(&self, block: &mut [u8], scale: f16) {
        let bytes = scale.to_le_bytes();
        match self.scale {
            BlockScale::F16(at) | BlockScale::F16Down(at, _) => {
                block[at as usize..][..2].copy_from_slice(&bytes)
            }
            BlockScale::SplitF16Down(at, _) => {
                for (i, word) in block[at as usize..][..8].chunks_exact_mut(2).enumerate() {
                    word[1] = word[1] & 15 | (bytes[i / 2] >> (4 * (i % 2))) << 4;
                }
            }
            BlockScale::HalfE8M0(_) | BlockScale::Down(_) => {}
        }
    }

    /// Scale and offset of group `g`.
    #[inline(always)]
    pub fn factors(&self, block: &[u8], g: usize) -> GroupFactors {
        let d = self.block_scale(block);
        let (s, t) = self.group_codes(block, g);
        let scale = if matches!(self.group_scale, GroupScale::One) { d } else { d * s as f32 };
        let offset = match self.offset {
            Offset::None => 0.0,
            Offset::Plus(at) => half_at(block, at),
            Offset::MinusScaled(at) => -(half_at(block, at) * t as f32),
        };
        GroupFactors { scale, offset }
    }

    /// The integer scale `s` and offset factor `t` of group `g`; 1 if the format does not have
    /// them.
    #[inline(always)]
    pub fn group_codes(&self, block: &[u8], g: usize) -> (i32, i32) {
        match self.group_scale {
            GroupScale::One => (1, 1),
            GroupScale::Planes { low, signed: true, .. } => {
                (i32::from(low.bits_of(block, g) as u8 as i8), 1)
            }
            GroupScale::Planes { low, high, bias, signed: false } => {
                let high = high.map_or(0, |h| h.bits_of(block, g) << low.bits);
                ((low.bits_of(block, g) | high) as i32 - i32::from(bias), 1)
            }
            GroupScale::NibblePair(at) => {
                let b = i32::from(block[at as usize + g]);
                (b & 15, b >> 4)
            }
            GroupScale::SixBitPairs(at) => {
                // Groups 0..4 have their six bits in one byte. Groups 4..8 have the low four in
                // bytes 8..12 and the high two in the top bits of the first eight bytes.
                let b = |i: usize| i32::from(block[at as usize + i]);
                match g {
                    0..4 => (b(g) & 63, b(g + 4) & 63),
                    _ => (b(g + 4) & 15 | (b(g - 4) >> 6) << 4, b(g + 4) >> 4 | (b(g) >> 6) << 4),
                }
            }
            GroupScale::Odd(field) => (2 * field.of(block, g) as i32 + 1, 1),
            GroupScale::Ue4m3(at) => (ue4m3(block[at as usize + g]), 1),
        }
    }
}

impl Value {
    /// The value of a code before scaling. Formats with a codebook have no codes.
    #[inline(always)]
    pub fn of(self, code: u32) -> i32 {
        match self {
            Value::Biased(bias) => code as i32 - i32::from(bias),
            Value::Signed => i32::from(code as u8 as i8),
            Value::Table(table) => i32::from(table[code as usize & 15]),
            Value::Doubled(bias) => 2 * code as i32 - i32::from(bias),
            Value::Ternary => code as i32 - 1,
            Value::Codebook(_) => 0,
        }
    }
}

/// `2^−by`, for `by` up to 126.
#[inline]
pub const fn down(by: u8) -> f32 {
    f32::from_bits((127 - by as u32) << 23)
}

/// The f16 whose nibbles are the highest nibbles of four words at `at`.
#[inline]
pub(crate) fn split_half(block: &[u8], at: u16) -> u16 {
    let nibble = |i: usize| u16::from(block[at as usize + 2 * i + 1] >> 4) << (4 * i);
    nibble(0) | nibble(1) | nibble(2) | nibble(3)
}

/// 512 times a UE4M3 float. 0x7f (NaN) becomes 0, as in ggml.
#[inline]
pub(crate) const fn ue4m3(e: u8) -> i32 {
    let (exponent, mantissa) = (e >> 3 & 15, (e & 7) as i32);
    match (e, exponent) {
        (0x7f, _) => 0,
        (_, 0) => mantissa,
        _ => (8 + mantissa) << (exponent - 1),
    }
}

#[inline]
fn half_at(block: &[u8], at: u16) -> f32 {
    let at = at as usize;
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 2^(e − 128), also if that is subnormal.
#[inline]
pub(crate) fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0020_0000,
        1 => 0x0040_0000,
        _ => (u32::from(e) - 1) << 23,
    })
}

#[cfg(test)]
mod tests {
    use super::super::ALL;
    use super::*;

    #[test]
    fn planes_and_scales_lie_inside_their_block() {
        for format in ALL {
            let Encoding::Blocks(b) = &format.encoding else { continue };
            let block = vec![0xa5; b.bytes];
            let mut out = vec![f32::NAN; b.elems];
            b.decode(&block, &mut out); // indexes out of the block would panic
            assert_eq!(b.elems % b.group, 0, "{format}");
            let bits: u32 = b.planes.iter().map(|p| u32::from(p.bits)).sum();
            let planes = !matches!(b.value, Value::Ternary | Value::Codebook(_));
            assert_eq!((1..=8).contains(&bits), planes, "{format}: {bits} bits");
        }
    }

    #[test]
    fn each_plane_bit_belongs_to_one_weight() {
        for format in ALL {
            let Encoding::Blocks(b) = &format.encoding else { continue };
            let mut owned = vec![0u8; b.bytes];
            for plane in b.planes {
                for i in 0..b.elems {
                    let (byte, shift) = plane.locate(i);
                    let mask = ((1u16 << plane.bits) - 1) as u8;
                    assert_eq!(owned[byte] >> shift & mask, 0, "{format}: weight {i} shares bits");
                    owned[byte] |= mask << shift;
                }
            }
        }
    }

    #[test]
    fn partial_block_is_refused_by_name() {
        let q4 = Format::by_name("q4_0").unwrap();
        let err = q4.decode(&[0; 17], &mut [0.0; 32]).unwrap_err();
        assert_eq!(err.to_string(), "17 bytes are not a whole number of Q4_0 blocks of 18 bytes");
    }
}
