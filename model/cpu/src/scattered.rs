//! Formats whose codes are not in groups of sixteen adjacent bytes: codebook vectors, base-3
//! digits, and planes of single bits or of pairs of bits in order.
//!
//! Codes are unpacked in words of eight bytes by code that is compiled once per format, for all
//! instruction sets. The arithmetic is compiled once per instruction set, for all these formats.
//! Compiling both for each pair took minutes.

use super::format_type::{FormatType, Id};
use super::simd::{CHUNK, unsigned};
use kjit_formats::format::{BlockFormat, Format, Value};

/// The functions and properties of one of these formats.
#[derive(Clone, Copy)]
pub struct Scattered {
    /// The description.
    pub block: BlockFormat,
    /// Bias that is subtracted from the codes.
    pub bias: u8,
    /// Returns 64 codes of the block's chunk with this number, made unsigned as described at
    /// [`unsigned`].
    pub codes: fn(&[u8], usize) -> [u8; CHUNK],
    /// The scales of each sixteen weights of a block.
    pub scales: fn(&[u8]) -> [f32; 16],
}

impl Scattered {
    const fn of<F: FormatType>() -> Scattered {
        Scattered {
            block: F::BLOCK,
            bias: const { unsigned(F::BLOCK.value).bias },
            codes: codes::<F>,
            scales: scales::<F>,
        }
    }

    /// The entry of a format; `None` if its codes are in groups of sixteen adjacent bytes.
    pub fn find(format: &Format) -> Option<Scattered> {
        macro_rules! find {
            ($($id:literal)*) => {
                match format.ggml_id {
                    $($id => Some(Scattered::of::<Id<$id>>()),)*
                    _ => None,
                }
            };
        }
        kjit_formats::scattered_format_ids!(find!())
    }
}

fn scales<F: FormatType>(block: &[u8]) -> [f32; 16] {
    let f = const { F::BLOCK };
    let mut scales = [0.0; 16];
    let each = f.group / 16;
    for g in 0..f.elems / f.group {
        scales[g * each..][..each].fill(f.factors(block, g).scale);
    }
    scales
}

fn codes<F: FormatType>(block: &[u8], chunk: usize) -> [u8; CHUNK] {
    let f = const { F::BLOCK };
    let block = &block[..f.bytes];
    let mut codes = [0; CHUNK];
    if let Value::Codebook(book) = f.value {
        // The top bit makes signed bytes unsigned; biased codes are not negative.
        let flip = if book.bias() == 0 { 0x8080_8080_8080_8080u64 } else { 0 };
        for (e, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *codes = (book.packed_group(block, chunk * CHUNK / 8 + e) ^ flip).to_le_bytes();
        }
    } else {
        let u = const { unsigned(F::BLOCK.value) };
        for (i, to) in codes.iter_mut().enumerate() {
            let code = f.code(block, chunk * CHUNK + i) as u8;
            *to = u.table.map_or(code << u.up, |t| t[usize::from(code & 15)]);
        }
    }
    codes
}
