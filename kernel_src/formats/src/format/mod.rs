//! How weights are stored in blocks: one description per format, as data.
//!
//! A block of `elems` weights holds an integer *code* per weight, split over bit [`Plane`]s, and
//! scales. Every format here is an instance of one formula,
//!
//! ```text
//! w[i] = (d · s[g]) · v(code[i])  ±  (m · t[g])        g = i / group
//! ```
//!
//! where `d` is the block's scale, `s` the optional scale of a group of weights, `v` subtracts a
//! constant or looks up a table, and `m · t` is the optional offset. In a format with a codebook
//! `v` is an element of a vector of several weights, which an index selects ([`Codebook`]).
//! The host's dequantiser ([`BlockFormat::decode`]), its dot products, and the GPU's layout and
//! code follow from this one description. A new GGML type is one constant in `table.rs`, and its id
//! below.
//!
//! The order of roundings (f32, no contraction: `d · s` first, then `· v`, then `± m · t`) is that
//! of ggml, so values are bit-identical.

mod codebook;
mod decode;
pub mod grids;
mod table;

pub use codebook::{Codebook, Field, Turn};
pub use decode::{GroupFactors, down};
pub(crate) use decode::{half_e8m0, split_half, ue4m3};
pub use table::ALL;

/// Position of a code's bits: each byte has bits of `8 / bits` codes; `run` neighbouring codes are
/// in neighbouring bytes.
///
/// Code `i` is at byte `at + (i / (run · n)) · run + i % run`, shifted right by `bits · ((i / run)
/// % n)`, with `n = 8 / bits`. (Q4_0, run 16: weights 0..16 are the low nibbles of 16 bytes,
/// weights 16..32 the high ones.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Byte offset in the block.
    pub at: u16,
    /// Bits of each code in this plane: 1, 2, 4 or 8.
    pub bits: u8,
    /// Number of successive codes in successive bytes; the next codes have the next bits of the
    /// same bytes.
    pub run: u16,
}

impl Plane {
    /// Byte offset in the block and right shift of code `i`.
    #[inline]
    pub const fn locate(&self, i: usize) -> (usize, u32) {
        let (run, per_byte) = (self.run as usize, 8 / self.bits as usize);
        let byte = self.at as usize + i / (run * per_byte) * run + i % run;
        (byte, (self.bits as usize * (i / run % per_byte)) as u32)
    }

    /// The bits of code `i`, shifted to bit 0.
    #[inline]
    pub const fn bits_of(&self, block: &[u8], i: usize) -> u32 {
        let (byte, shift) = self.locate(i);
        (block[byte] as u32 >> shift) & ((1 << self.bits) - 1)
    }
}

/// The value of a code before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// `code − bias`; the code is unsigned.
    Biased(i8),
    /// The code is a signed byte.
    Signed,
    /// `table[code]`, sixteen entries.
    Table(&'static [i8; 16]),
    /// `2 · code − bias`: a code of one bit gives −1 or 1.
    Doubled(i8),
    /// `code − 1`: the code is a digit of base 3, five digits per byte; there are no planes. See
    /// [`BlockFormat::code`].
    Ternary,
    /// An element of a codebook vector. Such formats have no planes.
    Codebook(&'static Codebook),
}

/// A number stored once per block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockScale {
    /// f16 at this byte offset.
    F16(u16),
    /// An exponent byte (E8M0) at this offset, halved: 2^(e − 128), because MXFP4's table has
    /// doubled values.
    HalfE8M0(u16),
    /// f16 at this byte offset, times 2 to the power of minus the second number.
    F16Down(u16, u8),
    /// f16 whose nibbles, lowest first, are the highest nibbles of four 16-bit words at this
    /// offset; times 2 to the power of minus the second number.
    SplitF16Down(u16, u8),
    /// No stored scale: 2 to the power of minus this number.
    Down(u8),
}

/// The scale (and offset) of each group of weights in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScale {
    /// No group scale: only the block has a scale.
    One,
    /// An integer per group, its low bits in the first plane and its high bits in the second, minus
    /// `bias`; signed bytes if `signed`.
    Planes {
        /// Low bits of the integer.
        low: Plane,
        /// High bits, if the integer has more bits than the first plane.
        high: Option<Plane>,
        /// Subtracted from the unsigned integer.
        bias: i8,
        /// Whether the first plane holds signed bytes.
        signed: bool,
    },
    /// A 4-bit scale and a 4-bit offset in one byte per group at this offset (the low nibble is the
    /// scale): Q2_K.
    NibblePair(u16),
    /// Eight scales and eight offsets of 6 bits packed into the 12 bytes at this offset: Q4_K and
    /// Q5_K.
    SixBitPairs(u16),
    /// Two times the field of the group, plus one.
    Odd(Field),
    /// A float with 4 exponent and 3 mantissa bits (UE4M3) per group at this offset, as 2^9 times
    /// its value; 0x7f is 0, as in ggml.
    Ue4m3(u16),
}

/// The offset of a block, before the group's factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offset {
    /// No offset.
    None,
    /// `+ m`, f16 at this byte offset: Q4_1, Q5_1.
    Plus(u16),
    /// `− m · t[g]`, `m` is f16 at this byte offset: Q2_K, Q4_K, Q5_K.
    MinusScaled(u16),
}

/// The description of a quantised block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockFormat {
    /// Weights in a block.
    pub elems: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The bit planes of a code, lowest bits first; empty for a codebook or base 3.
    pub planes: &'static [Plane],
    /// The value of a code.
    pub value: Value,
    /// Weights that share a group scale (`elems` if only the block has a scale).
    pub group: usize,
    /// The block's scale.
    pub scale: BlockScale,
    /// The groups' scales.
    pub group_scale: GroupScale,
    /// The block's offset.
    pub offset: Offset,
}

impl BlockFormat {
    /// Whether adjacent codes are neither in runs of sixteen bytes nor single bits of one word.
    pub const fn is_scattered(&self) -> bool {
        if matches!(self.value, Value::Ternary | Value::Codebook(_)) {
            return true;
        }
        let mut p = 0;
        while p < self.planes.len() {
            let plane = self.planes[p];
            if plane.run < 16 && !(plane.run == 1 && plane.bits == 1 && self.elems == 32) {
                return true;
            }
            p += 1;
        }
        false
    }
}

/// How the weights of a tensor are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// f32.
    F32,
    /// f16.
    F16,
    /// The upper 16 bits of an f32.
    BF16,
    /// Blocks of integer codes with scales.
    Blocks(BlockFormat),
}

/// A format that kjit supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// ggml's name, in its spelling (`Q4_K`).
    pub name: &'static str,
    /// The id in a GGUF file.
    pub ggml_id: u32,
    /// The encoding.
    pub encoding: Encoding,
}

impl Format {
    /// Weights in a block; 1 for plain floats.
    pub const fn block_elems(&self) -> usize {
        match self.encoding {
            Encoding::Blocks(b) => b.elems,
            _ => 1,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(&self) -> usize {
        match self.encoding {
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::BF16 => 2,
            Encoding::Blocks(b) => b.bytes,
        }
    }

    /// Bytes of a row of `cols` weights, or `None` if the row is not a whole number of blocks or
    /// overflows.
    pub const fn row_bytes(&self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_elems()) {
            return None;
        }
        (cols / self.block_elems()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The reasons why bytes cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The length of the input is not a multiple of the block size.
    #[error("{got} bytes are not a whole number of {format} blocks of {block} bytes")]
    PartialBlock {
        /// Name of the format.
        format: &'static str,
        /// Bytes of the input.
        got: usize,
        /// Bytes of one block.
        block: usize,
    },
    /// The length of the output differs from the number of weights in the input's blocks.
    #[error("{blocks} {format} blocks hold {holds} weights, the output has room for {room}")]
    WrongLength {
        /// Name of the format.
        format: &'static str,
        /// Blocks of the input.
        blocks: usize,
        /// Weights in these blocks.
        holds: usize,
        /// Length of the output.
        room: usize,
    },
}
