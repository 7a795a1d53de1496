//! Codes of block formats for vector instructions.

use super::vector::CHUNK;
use kjit_formats::format::{BlockFormat, Plane, Value};

/// How the codes of a format are mapped to unsigned bytes `u`, so that one instruction can multiply
/// them with signed bytes. The value before scaling is `u − bias`.
#[derive(Clone, Copy)]
pub struct Unsigned {
    /// Bias that is subtracted from `u`.
    pub bias: u8,
    /// `u = code ^ flip`.
    pub flip: u8,
    /// `u = code << up`.
    pub up: u32,
    /// `u = table[code]`, if the format has a table.
    pub table: Option<[u8; 16]>,
}

/// The [`Unsigned`] of a format.
pub const fn unsigned(value: Value) -> Unsigned {
    let u = made_unsigned(value);
    // The AVX-512 code requires this.
    assert!(u.bias == 0 || u.bias.is_power_of_two(), "a bias is a power of two or 0");
    u
}

pub(super) const fn made_unsigned(value: Value) -> Unsigned {
    match value {
        Value::Biased(bias) => Unsigned { bias: bias as u8, flip: 0, up: 0, table: None },
        Value::Signed => Unsigned { bias: 128, flip: 128, up: 0, table: None },
        Value::Doubled(bias) => Unsigned { bias: bias as u8, flip: 0, up: 1, table: None },
        Value::Ternary => Unsigned { bias: 1, flip: 0, up: 0, table: None },
        Value::Codebook(book) => match book.bias() {
            0 => Unsigned { bias: 128, flip: 128, up: 0, table: None },
            bias => Unsigned { bias, flip: 0, up: 0, table: None },
        },
        Value::Table(signed) => {
            let mut table = [0; 16];
            let mut i = 0;
            while i < 16 {
                table[i] = (signed[i] as i16 + 128) as u8;
                i += 1;
            }
            Unsigned { bias: 128, flip: 0, up: 0, table: Some(table) }
        }
    }
}

/// The location of 16 codes of a plane with groups of at least 16: whether they are in the second
/// block, the byte, and the shift.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CodeLocation {
    pub second: bool,
    pub at: usize,
    pub shift: u32,
}

/// The four pieces of chunk `c` of a plane.
pub const fn pieces(f: &BlockFormat, plane: &Plane, c: usize) -> [CodeLocation; 4] {
    let mut pieces = [CodeLocation { second: false, at: 0, shift: 0 }; 4];
    let mut j = 0;
    while j < 4 {
        let code = if f.elems == 32 { j % 2 * 16 } else { c * CHUNK + j * 16 };
        let (at, shift) = plane.locate(code);
        pieces[j] = CodeLocation { second: f.elems == 32 && j >= 2, at, shift };
        j += 1;
    }
    pieces
}

/// The pieces of chunk `c` of plane `p` of a format, or of its first plane if it has no plane `p`.
pub const fn plane_pieces(f: &BlockFormat, p: usize, c: usize) -> [CodeLocation; 4] {
    pieces(f, &f.planes[if p < f.planes.len() { p } else { 0 }], c)
}
