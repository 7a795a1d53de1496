//! Unpacks 64 codes of any block format into four 128-bit registers, sixteen each.

use super::codes::{CodeLocation, plane_pieces, unsigned};
use crate::format_type::FormatType;
use kjit_formats::format::Plane;
use std::arch::x86_64::*;

/// See [`Vector::codes`](super::Vector::codes).
///
/// # Safety
/// The CPU has AVX2; both pointers are valid for a block.
#[inline(always)]
pub unsafe fn codes<F: FormatType, const C: usize>(
    first: *const u8,
    second: *const u8,
) -> [__m128i; 4] {
    // These are compile-time constants: computed at run time, they took four times as long as the
    // products.
    let known = const { [plane_pieces(&F::BLOCK, 0, C), plane_pieces(&F::BLOCK, 1, C)] };
    let f = const { F::BLOCK };
    let u = const { unsigned(F::BLOCK.value) };
    // SAFETY: the caller guarantees the instruction set and the blocks; a test of each format shows
    // that planes stay in the block.
    unsafe {
        let mut codes = [_mm_setzero_si128(); 4];
        for (j, code) in codes.iter_mut().enumerate() {
            *code = sixteen(first, second, &f.planes[0], known[0][j], C, j);
            if let [low, high] = f.planes {
                let bits = sixteen(first, second, high, known[1][j], C, j);
                *code = _mm_or_si128(
                    *code,
                    _mm_sll_epi16(bits, _mm_cvtsi32_si128(i32::from(low.bits))),
                );
            }
            if let Some(table) = u.table {
                *code = _mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), *code);
            } else if u.flip != 0 {
                *code = _mm_xor_si128(*code, _mm_set1_epi8(u.flip as i8));
            }
        }
        codes
    }
}

/// The bits of sixteen codes of one plane, piece `j` of chunk `c`, in the low bits of each byte.
///
/// # Safety
/// The requirements of [`codes`].
#[inline(always)]
unsafe fn sixteen(
    first: *const u8,
    second: *const u8,
    plane: &Plane,
    piece: CodeLocation,
    c: usize,
    j: usize,
) -> __m128i {
    let block = if piece.second { second } else { first };
    // SAFETY: the caller guarantees the instruction set and the blocks; the piece stays in the
    // block.
    unsafe {
        if plane.run == 1 {
            // The first or second half of a block of 32; planes of single bits exist only in such
            // blocks.
            return single_bits(block, plane, (4 * c + j) % 2 * 16);
        }
        let bytes = _mm_loadu_si128(block.add(piece.at).cast());
        let bytes = match piece.shift {
            0 => bytes,
            shift => _mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32)),
        };
        match plane.bits {
            8 => bytes,
            bits => _mm_and_si128(bytes, _mm_set1_epi8(((1u16 << bits) - 1) as i8)),
        }
    }
}

/// Bits `i .. i + 16` of a plane of single bits, one per byte.
///
/// # Safety
/// The CPU has AVX2; the plane is in the block.
#[inline(always)]
unsafe fn single_bits(block: *const u8, plane: &Plane, i: usize) -> __m128i {
    // SAFETY: the caller guarantees that these two bytes are in the block.
    unsafe {
        let bits = block.add(usize::from(plane.at) + i / 8).cast::<u16>().read_unaligned();
        // Each byte gets the source byte of its bit and is compared with that bit.
        let bytes =
            _mm_shuffle_epi8(_mm_set1_epi16(bits as i16), _mm_set_epi64x(0x0101_0101_0101_0101, 0));
        let bit = _mm_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
        _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit), _mm_set1_epi8(1))
    }
}
