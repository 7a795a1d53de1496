//! 64 codes of any block format into four 128-bit registers, sixteen each.

use super::{Piece, pieces, unsigned};
use crate::host::unpack::Described;
use kjit_kernels::format::Plane;
use std::arch::x86_64::*;

/// See [`Vector::codes`](super::Vector::codes).
///
/// # Safety
/// AVX2 is there; both pointers are valid for a block.
#[inline(always)]
pub unsafe fn codes<F: Described, const C: usize>(first: *const u8, second: *const u8) -> [__m128i; 4] {
    let f = const { F::BLOCK };
    let u = const { unsigned(F::BLOCK.value) };
    // SAFETY: the instructions are there; planes stay in the block, as the format's own test shows.
    unsafe {
        let mut codes = [_mm_setzero_si128(); 4];
        let mut up = 0;
        for plane in f.planes {
            let all = pieces(&f, plane, C);
            for j in 0..4 {
                let Piece { second: in_second, at, shift } = all[j];
                let block = if in_second { second } else { first };
                let bits = match plane.run {
                    1 => single_bits(block, plane, if f.elems == 32 { j % 2 * 16 } else { C * 64 + j * 16 }),
                    _ => {
                        let bytes =
                            _mm_srl_epi16(_mm_loadu_si128(block.add(at).cast()), _mm_cvtsi32_si128(shift as i32));
                        _mm_and_si128(bytes, _mm_set1_epi8(((1u16 << plane.bits) - 1) as i8))
                    }
                };
                codes[j] = _mm_or_si128(codes[j], _mm_sll_epi16(bits, _mm_cvtsi32_si128(up)));
            }
            up += i32::from(plane.bits);
        }
        for code in &mut codes {
            if let Some(table) = u.table {
                *code = _mm_shuffle_epi8(_mm_loadu_si128(table.as_ptr().cast()), *code);
            } else if u.flip != 0 {
                *code = _mm_xor_si128(*code, _mm_set1_epi8(u.flip as i8));
            }
        }
        codes
    }
}

/// Bits `i .. i + 16` of a plane of single bits in order, one in each byte.
///
/// # Safety
/// AVX2 is there; the plane lies in the block.
#[inline(always)]
unsafe fn single_bits(block: *const u8, plane: &Plane, i: usize) -> __m128i {
    // SAFETY: two bytes in the block.
    unsafe {
        let bits = block.add(usize::from(plane.at) + i / 8).cast::<u16>().read_unaligned();
        // Each byte gets the byte its bit is in, and is compared with that bit alone.
        let bytes = _mm_shuffle_epi8(_mm_set1_epi16(bits as i16), _mm_set_epi64x(0x0101_0101_0101_0101, 0));
        let bit = _mm_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
        _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit), _mm_set1_epi8(1))
    }
}
