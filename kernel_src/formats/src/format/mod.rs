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
//! constant or looks up a table, and `m · t` is the optional offset. In a format with a codebook,
//! `v` is an element of a vector that an index names for several weights at once ([`Codebook`]).
//! The host's dequantiser ([`BlockFormat::decode`]), its dot products, and the GPU's layout and
//! code follow from this one description. A new GGML type is one constant in `table.rs`, and its id
//! below.
//!
//! The order of roundings (f32, no contraction: `d · s` first, then `· v`, then `± m · t`) is
//! ggml's, so values agree bit for bit.

mod codebook;
mod decode;
pub mod grids;
mod table;

pub use codebook::{Codebook, Field, Turn};
pub use decode::{GroupFactors, down};
pub(crate) use decode::{half_e8m0, split_half, ue4m3};
pub use table::ALL;

/// The place of a code's bits: `8 / bits` codes share each byte, `run` neighbours are in
/// neighbouring bytes.
///
/// Code `i` is at byte `at + (i / (run · n)) · run + i % run`, shifted right by `bits · ((i / run)
/// % n)`, with `n = 8 / bits`. (Q4_0, run 16: weights 0..16 are the low nibbles of 16 bytes,
/// weights 16..32 the high ones.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Byte offset in the block.
    pub at: u16,
    /// Bits this plane gives to each code: 1, 2, 4 or 8.
    pub bits: u8,
    /// Successive codes in successive bytes, before the next bits of the same bytes follow.
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

    /// The bits of code `i`, in the low end.
    #[inline]
    pub const fn bits_of(&self, block: &[u8], i: usize) -> u32 {
        let (byte, shift) = self.locate(i);
        (block[byte] as u32 >> shift) & ((1 << self.bits) - 1)
    }
}

/// The value of a code before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// `code − bias`, the code unsigned.
    Biased(i8),
    /// The code is a signed byte.
    Signed,
    /// `table[code]`, sixteen entries.
    Table(&'static [i8; 16]),
    /// `2 · code − bias`: a step of one bit goes from −1 to 1.
    Doubled(i8),
    /// `code − 1`, the code a digit of base 3, five to a byte; there are no planes. See
    /// [`BlockFormat::code`].
    Ternary,
    /// An element of a vector of a codebook; there are no planes.
    Codebook(&'static Codebook),
}

/// A number stored once a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockScale {
    /// IEEE half at this byte offset.
    F16(u16),
    /// An exponent byte (E8M0) at this offset, halved: 2^(e − 128), because MXFP4's table holds
    /// doubled values.
    HalfE8M0(u16),
    /// IEEE half at this byte offset, times 2 to the power of minus the second number.
    F16Down(u16, u8),
    /// IEEE half whose nibbles, lowest first, are the highest of four 16-bit words at this offset;
    /// times 2 to the power of minus the second number.
    SplitF16Down(u16, u8),
    /// Not stored: 2 to the power of minus this number.
    Down(u8),
}

/// The scale (and offset) of each group of weights in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScale {
    /// None: there is only the block's scale.
    One,
    /// An integer per group, its low bits in the first plane and its high bits in the second, minus
    /// `bias`; signed bytes if `signed`.
    Planes {
        /// Low bits.
        low: Plane,
        /// High bits, if the scale has more than the first plane's.
        high: Option<Plane>,
        /// Subtracted from the unsigned integer.
        bias: i8,
        /// The one plane holds signed bytes.
        signed: bool,
    },
    /// A scale and an offset of 4 bits each in one byte per group at this offset (low nibble the
    /// scale): Q2_K.
    NibblePair(u16),
    /// Eight scales and eight offsets of 6 bits packed into the 12 bytes at this offset: Q4_K and
    /// Q5_K.
    SixBitPairs(u16),
    /// Twice the field of the group, plus one.
    Odd(Field),
    /// A float of 4 exponent and 3 mantissa bits (UE4M3) per group at this offset, as 2^9 times its
    /// value; 0x7f is 0, as in ggml.
    Ue4m3(u16),
}

/// The offset of a block, before the group's factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offset {
    /// No offset.
    None,
    /// `+ m`, an IEEE half at this byte offset: Q4_1, Q5_1.
    Plus(u16),
    /// `− m · t[g]`, `m` an IEEE half at this byte offset: Q2_K, Q4_K, Q5_K.
    MinusScaled(u16),
}

/// A quantised block, described.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockFormat {
    /// Weights in a block.
    pub elems: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The bit planes of a code, lowest bits first; none for a codebook or base 3.
    pub planes: &'static [Plane],
    /// The value of a code.
    pub value: Value,
    /// Weights that share a group scale (`elems` if there is only the block's).
    pub group: usize,
    /// The block's scale.
    pub scale: BlockScale,
    /// The groups' scales.
    pub group_scale: GroupScale,
    /// The block's offset.
    pub offset: Offset,
}

impl BlockFormat {
    /// Whether neighbouring codes are neither in runs of sixteen bytes nor, as single bits, in one
    /// word.
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
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    BF16,
    /// Blocks of integer codes with scales.
    Blocks(BlockFormat),
}

/// A format that kjit can compute with.
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

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input is not a whole number of blocks.
    #[error("{got} bytes are not a whole number of {format} blocks of {block} bytes")]
    PartialBlock {
        /// The format's name.
        format: &'static str,
        /// Bytes given.
        got: usize,
        /// Bytes of one block.
        block: usize,
    },
    /// The output has not exactly as many elements as the input's blocks hold.
    #[error("{blocks} {format} blocks hold {holds} weights, the output has room for {room}")]
    WrongLength {
        /// The format's name.
        format: &'static str,
        /// Blocks given.
        blocks: usize,
        /// Weights they hold.
        holds: usize,
        /// Length of the output.
        room: usize,
    },
}
