//! Sections of a row record of a format with a codebook.

use super::groups::Groups;
use crate::format::{BlockFormat, Codebook, Turn};

/// The sections of a format with a codebook; all offsets in bytes. `V` vectors (4 or 8) are 32
/// weights. An *eight* is a group of eight adjacent weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vectors {
    /// The codebook.
    pub book: &'static Codebook,
    /// Offset of `index`: one byte for each vector.
    pub index: usize,
    /// Offset of `signs`, if the format has signs: a word for each 32 weights, with the signs of
    /// four eights in order.
    pub signs: Option<usize>,
    /// Sign bits of a group of eight weights: 8, or 7. With 7, the top four bits of the word are
    /// free for other data.
    pub sign_bits: usize,
    /// Whether the top four bits of the signs are the eighth bits of the indices.
    pub index_in_signs: bool,
    /// Offset of `high`, if the format has this section.
    pub high: Option<usize>,
    /// Bytes of `high` for each 32 weights.
    pub high_bytes: usize,
    /// Number of bits between the high bits of successive vectors.
    pub high_step: usize,
    /// Position in `high` of the first eight's shift bit, and the distance to that of the next
    /// eight.
    pub shift: (usize, usize),
}

impl Vectors {
    /// Bits of an index that are not in its low byte.
    pub fn high_bits(&self) -> usize {
        self.book.index_bits() - 8
    }

    pub(super) fn new(
        book: &'static Codebook,
        cols: usize,
        section: &mut impl FnMut(usize) -> usize,
    ) -> Vectors {
        let (units, vectors, high_bits) = (cols / 32, 32 / book.grid.vector, book.index_bits() - 8);
        let sign_bits = if let Turn::Signs(f) = book.turn { usize::from(f.bits) } else { 0 };
        let index_in_signs = sign_bits == 7 && high_bits == 1 && vectors == 4;
        let (high_step, shift) = match book.turn {
            Turn::Signs(_) => (high_bits, (0, 0)),
            Turn::ShiftEach(_) => (high_bits + 1, (high_bits, high_bits + 1)),
            Turn::ShiftAll(_) => (high_bits, (15, 0)),
        };
        let high_bytes = match book.turn {
            _ if index_in_signs || high_bits == 0 => 0,
            Turn::Signs(_) => vectors * high_bits / 8,
            Turn::ShiftEach(_) | Turn::ShiftAll(_) => 2,
        };
        Vectors {
            book,
            index: section(units * vectors),
            signs: (sign_bits > 0).then(|| section(4 * units)),
            sign_bits,
            index_in_signs,
            high: (high_bytes > 0).then(|| section(high_bytes * units)),
            high_bytes,
            high_step,
            shift,
        }
    }

    /// Kind of the groups' scales.
    pub(super) fn groups(&self, group: usize) -> Groups {
        match self.book.turn {
            _ if group == 16 => Groups::Odd16,
            Turn::Signs(_) if self.sign_bits == 7 && !self.index_in_signs => Groups::InSigns,
            Turn::ShiftAll(_) => Groups::InHigh,
            _ => Groups::Signed32,
        }
    }

    /// Writes the record's codebook sections for the 32 weights with index `unit`. `first` is the
    /// index in `block` of the first weight.
    pub(super) fn pack(
        &self,
        b: &BlockFormat,
        block: &[u8],
        first: usize,
        groups: Groups,
        record: &mut [u8],
        unit: usize,
    ) {
        let vectors = 32 / self.book.grid.vector;
        let (mut signs, mut high) = (0u32, 0u32);
        for j in 0..vectors {
            let index = self.book.index(block, first / self.book.grid.vector + j);
            record[self.index + unit * vectors + j] = index as u8;
            let rest = (index >> 8) as u32;
            if self.index_in_signs {
                signs |= rest << (28 + j);
            } else {
                high |= rest << (self.high_step * j);
            }
        }
        for e in 0..4 {
            let bits = self.book.sign_or_shift_bits(block, first / 8 + e) as u32;
            match self.book.turn {
                Turn::Signs(_) => signs |= bits << (self.sign_bits * e),
                Turn::ShiftEach(_) | Turn::ShiftAll(_) => {
                    high |= bits << (self.shift.0 + self.shift.1 * e)
                }
            }
        }
        let odd = |g: usize| (b.group_codes(block, g).0 as u32 - 1) / 2;
        match groups {
            Groups::InSigns => signs |= odd(first / 32) << 28,
            Groups::InHigh => high |= odd(first / 32) << 12,
            _ => {}
        }
        if let Some(at) = self.signs {
            record[at + 4 * unit..][..4].copy_from_slice(&signs.to_le_bytes());
        }
        if let Some(at) = self.high {
            record[at + self.high_bytes * unit..][..self.high_bytes]
                .copy_from_slice(&high.to_le_bytes()[..self.high_bytes]);
        }
    }

    fn word(&self, record: &[u8], at: Option<usize>, bytes: usize, unit: usize) -> u32 {
        let read = |i: usize| u32::from(record[at.unwrap_or(0) + bytes * unit + i]) << (8 * i);
        if at.is_some() { (0..bytes).map(read).sum() } else { 0 }
    }

    /// The signs and the high bits of the 32 weights number `unit`.
    pub(super) fn words(&self, record: &[u8], unit: usize) -> (u32, u32) {
        (
            self.word(record, self.signs, 4, unit),
            self.word(record, self.high, self.high_bytes, unit),
        )
    }

    /// The value of weight `i` of a row before scaling.
    pub(super) fn value(&self, record: &[u8], i: usize) -> i32 {
        let (unit, each) = (i / 32, self.book.grid.vector);
        let (signs, high) = self.words(record, unit);
        let (e, j) = (i % 32 / 8, i % 32 / each);
        let low = usize::from(record[self.index + i / each]);
        let rest =
            if self.index_in_signs { signs >> (28 + j) & 1 } else { high >> (self.high_step * j) };
        let rest = rest as usize & ((1 << self.high_bits()) - 1);
        let bits = match self.book.turn {
            Turn::Signs(_) => signs >> (self.sign_bits * e) & ((1 << self.sign_bits) - 1),
            Turn::ShiftEach(_) | Turn::ShiftAll(_) => high >> (self.shift.0 + self.shift.1 * e) & 1,
        };
        // The vector at its position in its eight, because signs belong to eights.
        let eight = self.book.entry(low | rest << 8) << if each == 4 { 32 * (j % 2) } else { 0 };
        let eight = if each == 4 { eight | 0x0101_0101 << (32 * (1 - j % 2)) } else { eight };
        self.book.element(self.book.turned(eight, bits as usize), i % 8)
    }
}
