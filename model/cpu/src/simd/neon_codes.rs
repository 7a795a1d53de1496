//! 64 codes of any block format into four NEON registers, sixteen each.

use super::{Piece, plane_pieces, unsigned};
use crate::unpack::Described;
use kjit_formats::format::Plane;
use std::arch::aarch64::*;

/// See [`Vector::codes`](super::Vector::codes).
///
/// # Safety
/// NEON is there; both pointers are valid for a block.
#[inline(always)]
pub unsafe fn codes<F: Described, const C: usize>(
    first: *const u8,
    second: *const u8,
) -> [uint8x16_t; 4] {
    // Constants of the compilation, as on other processors.
    let known = const { [plane_pieces(&F::BLOCK, 0, C), plane_pieces(&F::BLOCK, 1, C)] };
    let f = const { F::BLOCK };
    let u = const { unsigned(F::BLOCK.value) };
    // SAFETY: the instructions are there; planes stay in the block, as the format's own test shows.
    std::array::from_fn(|j| unsafe {
        let mut code = sixteen(first, second, &f.planes[0], known[0][j], C, j);
        if let [low, high] = f.planes {
            let bits = sixteen(first, second, high, known[1][j], C, j);
            code = vorrq_u8(code, vshlq_u8(bits, vdupq_n_s8(low.bits as i8)));
        }
        match u.table {
            Some(table) => vqtbl1q_u8(vld1q_u8(table.as_ptr()), code),
            None if u.flip != 0 => veorq_u8(code, vdupq_n_u8(u.flip)),
            None => code,
        }
    })
}

/// Sixteen codes' bits of one plane, piece `j` of chunk `c`, at the low end of each byte.
///
/// # Safety
/// As [`codes`].
#[inline(always)]
unsafe fn sixteen(
    first: *const u8,
    second: *const u8,
    plane: &Plane,
    piece: Piece,
    c: usize,
    j: usize,
) -> uint8x16_t {
    let block = if piece.second { second } else { first };
    // SAFETY: the caller's promise.
    unsafe {
        if plane.run == 1 {
            // Of a block of 32 (single bits come in no larger ones), the first or second half.
            return single_bits(block, plane, (4 * c + j) % 2 * 16);
        }
        let bytes = vld1q_u8(block.add(piece.at));
        // A negative shift is one to the right.
        let bytes = match piece.shift {
            0 => bytes,
            shift => vshlq_u8(bytes, vdupq_n_s8(-(shift as i8))),
        };
        match plane.bits {
            8 => bytes,
            bits => vandq_u8(bytes, vdupq_n_u8(((1u16 << bits) - 1) as u8)),
        }
    }
}

/// Bits `i .. i + 16` of a plane of single bits in order, one in each byte.
///
/// # Safety
/// NEON is there; the plane lies in the block.
#[inline(always)]
unsafe fn single_bits(block: *const u8, plane: &Plane, i: usize) -> uint8x16_t {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: two bytes in the block.
    unsafe {
        let at = block.add(usize::from(plane.at) + i / 8);
        let bytes = vcombine_u8(vdup_n_u8(*at), vdup_n_u8(*at.add(1)));
        vandq_u8(vtstq_u8(bytes, vld1q_u8(BIT.as_ptr())), vdupq_n_u8(1))
    }
}
