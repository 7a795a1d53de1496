//! The layout of weights on a device: the codes of a row in planes, which a lane reads in steps of
//! 16 bytes, and the scales of the row.
//!
//! A matrix is `experts · rows` *row records* of [`Layout::row_bytes`] bytes each (a multiple of
//! 16). Records are contiguous, so one bulk copy loads a row. A record has sections, each starting
//! at a multiple of 16 bytes:
//! | section | bytes for each 32 weights | contents |
//! |---|---|---|
//! | `c8` | 32 | 8-bit codes |
//! | `c4` | 16 | 4-bit codes: word w holds weights 8w..8w+4 (low nibbles), 8w+4..8w+8 (high) |
//! | `c2` | 8 | 2-bit codes: word w holds weights 16w+4j .. 16w+4j+4 in bits 2j of its bytes |
//! | `c1` | 4 | 1-bit codes: word w holds weights 32w+4j .. 32w+4j+4 in bits j of its bytes |
//! | `groups` | 1 or 2 | group scales, see [`Groups`] |
//! | `blocks` | 1, 2 or 4, or 2 or 4 for each 256 | block scales, see [`Blocks`] |
//!
//! A format with a codebook has other sections instead of codes: `index` (4 or 8 bytes: the low
//! byte of each vector's index), `signs` (4) and `high` (1 or 2: the other bits of the indices),
//! see [`Vectors`]. The kernel reads the vectors from a table.
//!
//! So `(word >> 4·h) & 0x0f0f0f0f` is four neighbouring codes, one per byte, ready for a dot
//! product with four bytes of activations. Codes are the codes of the file (unsigned; the kernel
//! applies biases and tables). Plain formats (F32, F16, BF16) have their elements in order; a row
//! is padded with zeros to a multiple of 16 bytes.
//!
//! Bytes per weight are as in the file, except for Q4_K and Q5_K (six-bit scale pairs become two
//! bytes: +2.8 % and +2.3 %), Q3_K (+3.6 %), IQ4_XS (+1.5 %), IQ3_S and IQ1_M (+3.6 %), TQ1_0 (+22
//! %: two bits instead of digits of base 3), and up to 15 bytes of padding per section.

mod groups;
mod vectors;

pub use vectors::Vectors;

use crate::format::{BlockFormat, BlockScale, Encoding, Format, GroupScale, Offset, Value};
use crate::format::{down, half_e8m0, split_half, ue4m3};
pub use groups::Groups;
use half::{bf16, f16};

/// The contents of the `blocks` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blocks {
    /// No section: a plain format.
    None,
    /// The block's scale `d`, f16.
    Half,
    /// `d` and `m`, two f16.
    HalfPair,
    /// An E8M0 byte, halved: its value is 2^(e − 128).
    HalfE8M0,
}

impl Blocks {
    /// Bytes of the section for each block.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Blocks::None => 0,
            Blocks::HalfE8M0 => 1,
            Blocks::Half => 2,
            Blocks::HalfPair => 4,
        }
    }
}

/// The reasons why a matrix has no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The length of a row is not a multiple of the block size.
    #[error("a row of {cols} weights is not a whole number of {format} blocks of {block}")]
    PartialBlock {
        /// Name of the format.
        format: &'static str,
        /// Weights in a row.
        cols: usize,
        /// Weights in a block.
        block: usize,
    },
    /// The size exceeds the range of addresses.
    #[error("{experts} × {rows} × {cols} weights are more than can be addressed")]
    TooLarge {
        /// Number of matrices.
        experts: usize,
        /// Rows of each matrix.
        rows: usize,
        /// Weights in a row.
        cols: usize,
    },
    /// The length of a host buffer differs from the layout.
    #[error("{what} has {got} bytes, the layout asks for {want}")]
    Length {
        /// Name of the buffer.
        what: &'static str,
        /// Length of the buffer in bytes.
        got: usize,
        /// Length by the layout in bytes.
        want: usize,
    },
}

/// The layout of a row record. All offsets and sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The format of the weights.
    pub format: &'static Format,
    /// Weights in a row.
    pub cols: usize,
    /// Offsets of the code sections, indexed by log2 of their bits (1, 2, 4, 8); `None` if the
    /// format has no such section.
    pub codes: [Option<usize>; 4],
    /// The sections of a codebook; `None` for a format without a codebook.
    pub vectors: Option<Vectors>,
    /// Offset of the group scales.
    pub groups_at: usize,
    /// Kind of the group scales.
    pub groups: Groups,
    /// Offset of the block scales.
    pub blocks_at: usize,
    /// Kind of the block scales.
    pub blocks: Blocks,
    /// Bytes of a record.
    pub row_bytes: usize,
}

impl std::hash::Hash for Layout {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.format.ggml_id, self.cols).hash(state); // all other fields follow from these
    }
}

impl Layout {
    /// The layout of rows of `cols` weights.
    ///
    /// # Errors
    /// The row is empty, is not a whole number of blocks, or is too large for 32-bit offsets.
    pub fn new(format: &'static Format, cols: usize) -> Result<Layout, LayoutError> {
        let raw = format.row_bytes(cols).filter(|&b| b > 0).ok_or(LayoutError::PartialBlock {
            format: format.name,
            cols,
            block: format.block_elems(),
        })?;
        // A record has at most twice the bytes of the file's row, so all sums below stay in range.
        if raw > 1 << 29 {
            return Err(LayoutError::TooLarge { experts: 1, rows: 1, cols });
        }
        let mut layout = Layout {
            format,
            cols,
            codes: [None; 4],
            vectors: None,
            groups_at: 0,
            groups: Groups::None,
            blocks_at: 0,
            blocks: Blocks::None,
            row_bytes: raw.next_multiple_of(16),
        };
        if let Encoding::Blocks(b) = &format.encoding {
            let mut at = 0;
            let mut section = |bytes: usize| {
                let here = at;
                at = (at + bytes).next_multiple_of(16);
                here
            };
            for log in (0..4).rev() {
                if widths(b).any(|bits| bits == 1 << log) {
                    layout.codes[log] = Some(section((cols << log).div_ceil(8)));
                }
            }
            if let Value::Codebook(book) = b.value {
                layout.vectors = Some(Vectors::new(book, cols, &mut section));
            }
            layout.groups = match b.group_scale {
                GroupScale::One => Groups::None,
                GroupScale::SixBitPairs(_) => Groups::BytePair,
                GroupScale::NibblePair(_) => Groups::NibblePair,
                GroupScale::Ue4m3(_) => Groups::Ue4m3,
                GroupScale::Odd(_) => layout.vectors.map_or(Groups::None, |v| v.groups(b.group)),
                GroupScale::Planes { .. } if b.group == 16 => Groups::Signed16,
                GroupScale::Planes { .. } => Groups::Signed32,
            };
            layout.groups_at = section(cols / 32 * layout.groups.bytes());
            layout.blocks = match (b.scale, b.offset) {
                (BlockScale::HalfE8M0(_), _) => Blocks::HalfE8M0,
                (BlockScale::Down(_), _) => Blocks::None,
                (_, Offset::None) => Blocks::Half,
                _ => Blocks::HalfPair,
            };
            layout.blocks_at = section(cols / b.elems * layout.blocks.bytes());
            layout.row_bytes = at;
        }
        Ok(layout)
    }

    /// Bytes of `experts` matrices of `rows` rows.
    ///
    /// # Errors
    /// [`LayoutError::TooLarge`] if the size exceeds the range of addresses.
    pub fn bytes(&self, rows: usize, experts: usize) -> Result<usize, LayoutError> {
        let all = self.row_bytes.checked_mul(rows).and_then(|b| b.checked_mul(experts));
        all.filter(|&b| b <= isize::MAX as usize).ok_or(LayoutError::TooLarge {
            experts,
            rows,
            cols: self.cols,
        })
    }

    /// Weights that a lane processes in one step (a *unit*): 32 for quantised formats with codes
    /// below 8 bits, 16 for 8-bit codes, 8 for f16 and bf16, 4 for f32. A section of a unit has at
    /// most 16 bytes.
    pub fn unit(&self) -> usize {
        match &self.format.encoding {
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::BF16 => 8,
            Encoding::Blocks(_) if self.codes[3].is_some() => 16,
            Encoding::Blocks(_) => 32,
        }
    }

    /// Units in a row.
    pub fn units(&self) -> usize {
        self.cols.div_ceil(self.unit())
    }

    /// The block description; `None` for a plain format.
    pub fn block(&self) -> Option<&'static BlockFormat> {
        match &self.format.encoding {
            Encoding::Blocks(b) => Some(b),
            _ => None,
        }
    }

    /// Lays out one row of the file: the reference for the device's `repack` kernel.
    ///
    /// # Errors
    /// [`LayoutError::Length`] if the length of a slice is not exactly that of a row.
    pub fn repack_row(&self, raw: &[u8], record: &mut [u8]) -> Result<(), LayoutError> {
        check(
            "a row of the file",
            raw.len(),
            self.cols / self.format.block_elems() * self.format.block_bytes(),
        )?;
        check("a row record", record.len(), self.row_bytes)?;
        record.fill(0);
        let Some(b) = self.block() else {
            record[..raw.len()].copy_from_slice(raw);
            return Ok(());
        };
        for (n, block) in raw.chunks_exact(b.bytes).enumerate() {
            for i in (0..b.elems).take_while(|_| self.vectors.is_none()) {
                let (code, mut low) = (b.code(block, i), 0);
                for bits in widths(b) {
                    let log = bits.ilog2() as usize;
                    let (byte, shift) = place(log, n * b.elems + i);
                    record[self.codes[log].unwrap_or(0) + byte] |=
                        ((code >> low & ((1 << bits) - 1)) as u8) << shift;
                    low += bits;
                }
                debug_assert!(low <= 8);
            }
            if let Some(vectors) = self.vectors {
                let units = b.elems / 32;
                (0..units).for_each(|u| {
                    vectors.pack(b, block, 32 * u, self.groups, record, n * units + u)
                });
            }
            for g in 0..b.elems / b.group {
                let (s, t) = b.group_codes(block, g);
                let at = n * (b.elems / b.group) + g;
                match self.groups {
                    Groups::None | Groups::InSigns | Groups::InHigh => {}
                    Groups::Odd16 => {
                        record[self.groups_at + at / 2] |= (((s - 1) / 2) << (4 * (at % 2))) as u8
                    }
                    Groups::Ue4m3 => {
                        let GroupScale::Ue4m3(from) = b.group_scale else { continue };
                        record[self.groups_at + at] = block[from as usize + g];
                    }
                    Groups::BytePair => {
                        record[self.groups_at + 2 * at] = s as u8;
                        record[self.groups_at + 2 * at + 1] = t as u8;
                    }
                    Groups::NibblePair => record[self.groups_at + at] = (s | t << 4) as u8,
                    Groups::Signed16 | Groups::Signed32 => record[self.groups_at + at] = s as u8,
                }
            }
            let size = self.blocks.bytes();
            let to = &mut record[self.blocks_at + n * size..][..size];
            match b.scale {
                BlockScale::F16(at) => to[..2].copy_from_slice(&block[at as usize..][..2]),
                BlockScale::HalfE8M0(at) => to[0] = block[at as usize],
                BlockScale::F16Down(at, _) => to[..2].copy_from_slice(&block[at as usize..][..2]),
                BlockScale::SplitF16Down(at, _) => {
                    to[..2].copy_from_slice(&split_half(block, at).to_le_bytes())
                }
                BlockScale::Down(_) => {}
            }
            if let Offset::Plus(at) | Offset::MinusScaled(at) = b.offset {
                to[2..4].copy_from_slice(&block[at as usize..][..2]);
            }
        }
        Ok(())
    }

    /// Decodes a row record into f32, bit-identical to [`Format::decode`] of the file's row.
    ///
    /// # Errors
    /// [`LayoutError::Length`] if the record or the output (in elements) has the wrong length.
    pub fn decode_row(&self, record: &[u8], out: &mut [f32]) -> Result<(), LayoutError> {
        check("a row record", record.len(), self.row_bytes)?;
        check("the output (elements)", out.len(), self.cols)?;
        let half = |at: usize| f16::from_le_bytes([record[at], record[at + 1]]);
        match &self.format.encoding {
            Encoding::F32 => out
                .iter_mut()
                .zip(record.as_chunks::<4>().0)
                .for_each(|(o, b)| *o = f32::from_le_bytes(*b)),
            Encoding::F16 => {
                out.iter_mut().enumerate().for_each(|(i, o)| *o = half(2 * i).to_f32())
            }
            Encoding::BF16 => out
                .iter_mut()
                .enumerate()
                .for_each(|(i, o)| *o = bf16::from_bits(half(2 * i).to_bits()).to_f32()),
            Encoding::Blocks(b) => {
                for (i, o) in out.iter_mut().enumerate() {
                    let value = if let Some(vectors) = self.vectors {
                        vectors.value(record, i)
                    } else {
                        let (mut code, mut low) = (0u32, 0);
                        for bits in widths(b) {
                            let log = bits.ilog2() as usize;
                            let (byte, shift) = place(log, i);
                            let here = self.codes[log].unwrap_or(0) + byte;
                            code |= (u32::from(record[here]) >> shift & ((1 << bits) - 1)) << low;
                            low += bits;
                        }
                        b.value.of(code)
                    };
                    let block = self.blocks_at + i / b.elems * self.blocks.bytes();
                    let (d, m) = match self.blocks {
                        Blocks::HalfE8M0 => (half_e8m0(record[block]), 0.0),
                        Blocks::HalfPair => (half(block).to_f32(), half(block + 2).to_f32()),
                        Blocks::Half => (half(block).to_f32(), 0.0),
                        Blocks::None => (1.0, 0.0),
                    };
                    let d = match b.scale {
                        BlockScale::F16Down(_, by)
                        | BlockScale::SplitF16Down(_, by)
                        | BlockScale::Down(by) => d * down(by),
                        BlockScale::F16(_) | BlockScale::HalfE8M0(_) => d,
                    };
                    let g = self.groups_at + i / b.group;
                    let (s, t) = match self.groups {
                        Groups::None => (1, 1),
                        Groups::Odd16 => {
                            let n = record[self.groups_at + i / 32] >> (i / 16 % 2 * 4) & 15;
                            (2 * i32::from(n) + 1, 1)
                        }
                        Groups::InSigns | Groups::InHigh => {
                            let (signs, high) =
                                self.vectors.map_or((0, 0), |v| v.words(record, i / 32));
                            let n = if self.groups == Groups::InSigns {
                                signs >> 28
                            } else {
                                high >> 12 & 7
                            };
                            (2 * n as i32 + 1, 1)
                        }
                        Groups::Ue4m3 => (ue4m3(record[g]), 1),
                        Groups::BytePair => {
                            let g = self.groups_at + 2 * (i / b.group);
                            (i32::from(record[g]), i32::from(record[g + 1]))
                        }
                        Groups::NibblePair => {
                            (i32::from(record[g] & 15), i32::from(record[g] >> 4))
                        }
                        Groups::Signed16 | Groups::Signed32 => (i32::from(record[g] as i8), 1),
                    };
                    let scale = if self.groups == Groups::None { d } else { d * s as f32 };
                    let scaled = scale * value as f32;
                    *o = match b.offset {
                        Offset::None => scaled,
                        Offset::Plus(_) => scaled + m,
                        Offset::MinusScaled(_) => scaled + -(m * t as f32),
                    };
                }
            }
        }
        Ok(())
    }
}

/// Bits of the code sections of a format, low bits of a code first.
fn widths(b: &BlockFormat) -> impl Iterator<Item = u8> {
    let digits = matches!(b.value, Value::Ternary).then_some(2);
    b.planes.iter().map(|p| p.bits).chain(digits)
}

/// Byte in the section, and shift in that byte, of the `1 << log` bits of weight `i`.
const fn place(log: usize, i: usize) -> (usize, usize) {
    let bits = 1 << log;
    let per_word = 32 / bits; // weights in a word; four neighbours have the same shift
    (i / per_word * 4 + i % 4, i % per_word / 4 * bits)
}

fn check(what: &'static str, got: usize, want: usize) -> Result<(), LayoutError> {
    if got == want { Ok(()) } else { Err(LayoutError::Length { what, got, want }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ALL;

    fn random(seed: &mut u64) -> u8 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) as u8
    }

    #[test]
    fn repacked_weights_decode_to_file_values() {
        let mut seed = 7;
        for format in ALL {
            for blocks in [1, 3, 18] {
                let cols = format.block_elems() * blocks;
                let layout = Layout::new(format, cols).unwrap();
                let raw: Vec<u8> =
                    (0..format.row_bytes(cols).unwrap()).map(|_| random(&mut seed)).collect();
                let mut record = vec![0xa5; layout.row_bytes];
                layout.repack_row(&raw, &mut record).unwrap();
                let (mut want, mut got) = (vec![0.0; cols], vec![f32::NAN; cols]);
                format.decode(&raw, &mut want).unwrap();
                layout.decode_row(&record, &mut got).unwrap();
                for (i, (w, g)) in want.iter().zip(&got).enumerate() {
                    assert!(
                        w.to_bits() == g.to_bits() || w.is_nan() && g.is_nan(),
                        "{format} {cols}: weight {i}: {w} {g}"
                    );
                }
            }
        }
    }

    #[test]
    fn repacked_rows_are_within_four_percent_of_file_size() {
        for format in ALL {
            let layout = Layout::new(format, 4096).unwrap();
            let (file, ours) = (format.row_bytes(4096).unwrap() as f64, layout.row_bytes as f64);
            // Each digit of base 3 becomes two bits.
            let most = if format.name == "TQ1_0" { 1.23 } else { 1.04 };
            assert!((1.0..most).contains(&(ours / file)), "{format}: {file} bytes became {ours}");
        }
    }

    #[test]
    fn partial_block_in_row_is_refused_by_name() {
        let q4 = Format::by_name("Q4_K").unwrap();
        let error = Layout::new(q4, 4000).unwrap_err().to_string();
        assert_eq!(error, "a row of 4000 weights is not a whole number of Q4_K blocks of 256");
        assert!(Layout::new(q4, 0).is_err());
        assert!(Layout::new(q4, 1 << 40).is_err());
        assert!(Layout::new(q4, 256).unwrap().bytes(usize::MAX / 256, 2).is_err());
    }
}
