//! Formats whose codes represent several weights: an index selects a vector of magnitudes, and
//! signs or a shift for each eight weights convert it to weights.

use super::grids::Grid;

/// A field of a block for each element `i`: `bits` bits at bit `shift + (i % per) · each` of the
/// little-endian word that starts at byte `at + i / per · step`. It has at most 9 bits, so it is in
/// two bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Byte offset in the block.
    pub at: u16,
    /// Bytes from one word to the next.
    pub step: u16,
    /// Number of elements in a word.
    pub per: u16,
    /// Bit of the first element in the word.
    pub shift: u16,
    /// Number of bits from one element to the next.
    pub each: u16,
    /// Number of bits of an element.
    pub bits: u16,
}

impl Field {
    /// The bits of element `i`.
    #[inline(always)]
    pub const fn of(&self, block: &[u8], i: usize) -> usize {
        let (per, step, each) = (self.per as usize, self.step as usize, self.each as usize);
        let shift = self.shift as usize + i % per * each;
        let (byte, shift) = (self.at as usize + i / per * step + shift / 8, shift % 8);
        let mut word = block[byte] as usize;
        if shift + self.bits as usize > 8 {
            word |= (block[byte + 1] as usize) << 8;
        }
        word >> shift & ((1 << self.bits) - 1)
    }
}

/// How eight magnitudes become weights: by signs, or by a shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// One sign bit per weight, for each eight weights; a set bit means negative. With 7 bits, the
    /// eighth is their parity.
    Signs(Field),
    /// One shift bit for each eight weights: a set bit subtracts one from each weight, a clear bit
    /// adds one.
    ShiftEach(Field),
    /// One shift bit for each 32 weights.
    ShiftAll(Field),
}

/// A codebook format: index bits, vectors, and signs or shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codebook {
    /// The vectors.
    pub grid: &'static Grid,
    /// The low bits of each vector's index.
    pub low: Field,
    /// The high bits of the index, if it has more bits.
    pub high: Option<Field>,
    /// Signs or shift.
    pub turn: Turn,
}

/// 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Byte i of entry n is 0xff if bit i of n is set.
const MASKS: [u64; 256] = {
    let mut masks = [0; 256];
    let mut i = 0;
    while i < 8 * 256 {
        masks[i / 8] |= ((((i / 8) >> (i % 8)) & 1) as u64 * 0xff) << (8 * (i % 8));
        i += 1;
    }
    masks
};

impl Codebook {
    /// The bias of [`Codebook::packed_group`]'s bytes: with a shift, stored vectors are 16 too
    /// large.
    pub const fn bias(&self) -> u8 {
        if matches!(self.turn, Turn::Signs(_)) { 0 } else { 16 }
    }

    /// Bits of an index.
    pub const fn index_bits(&self) -> usize {
        self.low.bits as usize + if let Some(high) = self.high { high.bits as usize } else { 0 }
    }

    /// The index of vector `i` of a block.
    #[inline(always)]
    pub fn index(&self, block: &[u8], i: usize) -> usize {
        self.low.of(block, i) | self.high.map_or(0, |high| high.of(block, i) << self.low.bits)
    }

    /// The sign bits of group `e` of eight weights of a block, or its shift.
    #[inline(always)]
    pub fn sign_or_shift_bits(&self, block: &[u8], e: usize) -> usize {
        match self.turn {
            Turn::Signs(f) | Turn::ShiftEach(f) => f.of(block, e),
            Turn::ShiftAll(f) => f.of(block, e / 4),
        }
    }

    /// Weights 8e … 8e + 7 of a block as signed bytes, the first in the lowest byte; all are
    /// [`Codebook::bias`] too large.
    #[inline(always)]
    pub fn packed_group(&self, block: &[u8], e: usize) -> u64 {
        let bits = self.sign_or_shift_bits(block, e);
        match self.grid.vector {
            8 => self.turned(self.entry(self.index(block, e)), bits),
            _ => {
                let (low, high) = (self.index(block, 2 * e), self.index(block, 2 * e + 1));
                self.turned(self.entry(low) | self.entry(high) << 32, bits)
            }
        }
    }

    /// Weight `i` of a packed group ([`Codebook::packed_group`]).
    #[inline(always)]
    pub const fn element(&self, eight: u64, i: usize) -> i32 {
        (eight >> (8 * i)) as u8 as i8 as i32 - self.bias() as i32
    }

    /// The vector at an index.
    #[inline(always)]
    pub fn entry(&self, index: usize) -> u64 {
        self.grid.entries[index]
    }

    /// Eight magnitudes with their signs or their shift.
    #[inline(always)]
    pub fn turned(&self, vector: u64, bits: usize) -> u64 {
        match self.turn {
            Turn::Signs(f) => {
                let odd = if f.bits == 7 { (bits.count_ones() as usize & 1) << 7 } else { 0 };
                let mask = MASKS[(bits | odd) & 255];
                // No magnitude is 0, so no byte overflows into the next.
                (vector ^ mask) + (mask & ONES)
            }
            Turn::ShiftEach(_) | Turn::ShiftAll(_) => {
                if bits == 0 {
                    vector + ONES
                } else {
                    vector - ONES
                }
            }
        }
    }
}
