//! Formats whose codes stand for several weights at once: an index names a vector of magnitudes,
//! and signs or a shift of each eight turn it into weights.

use super::grids::Grid;

/// Bits of a block for element `i`: `bits` bits, at bit `shift + (i % per) · each` of the
/// little-endian word that starts at byte `at + i / per · step`. At most 9 bits, so they are in two
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Byte offset in the block.
    pub at: u16,
    /// Bytes from one word to the next.
    pub step: u16,
    /// Elements of a word.
    pub per: u16,
    /// Bit of the first element in the word.
    pub shift: u16,
    /// Bits from one element to the next.
    pub each: u16,
    /// Bits of an element.
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

/// The change to vectors of eight weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// A weight whose bit is set is negative; for each eight. With 7 bits, the eighth makes the
    /// number of bits even.
    Signs(Field),
    /// Minus one if the bit is set, plus one if not; for each eight.
    ShiftEach(Field),
    /// The same, for each 32.
    ShiftAll(Field),
}

/// The choice of vectors and their change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codebook {
    /// The vectors.
    pub grid: &'static Grid,
    /// The low bits of the index of each vector.
    pub low: Field,
    /// The bits above, if there are more.
    pub high: Option<Field>,
    /// The change.
    pub turn: Turn,
}

/// One in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// 0xff in the bytes whose bits are set.
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
    /// Subtracted from the bytes of [`Codebook::eight`]: with a shift, vectors are stored 16 too
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

    /// The signs of eight `e` of a block, or its shift.
    #[inline(always)]
    pub fn turn_bits(&self, block: &[u8], e: usize) -> usize {
        match self.turn {
            Turn::Signs(f) | Turn::ShiftEach(f) => f.of(block, e),
            Turn::ShiftAll(f) => f.of(block, e / 4),
        }
    }

    /// Weights 8e … 8e + 7 of a block as signed bytes, the first lowest, [`Codebook::bias`] too
    /// large.
    #[inline(always)]
    pub fn eight(&self, block: &[u8], e: usize) -> u64 {
        let bits = self.turn_bits(block, e);
        match self.grid.vector {
            8 => self.turned(self.entry(self.index(block, e)), bits),
            _ => {
                let (low, high) = (self.index(block, 2 * e), self.index(block, 2 * e + 1));
                self.turned(self.entry(low) | self.entry(high) << 32, bits)
            }
        }
    }

    /// Weight `i` of an [`eight`](Codebook::eight).
    #[inline(always)]
    pub const fn element(&self, eight: u64, i: usize) -> i32 {
        (eight >> (8 * i)) as u8 as i8 as i32 - self.bias() as i32
    }

    /// A vector.
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
                // No magnitude is 0, so no byte's sum carries into the next.
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
