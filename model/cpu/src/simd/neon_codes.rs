//! Unpacks 64 codes of any block format into four NEON registers, sixteen each.

use super::codes::{CodeLocation, plane_pieces, unsigned};
use crate::format_type::FormatType;
use kjit_formats::format::Plane;
use std::arch::aarch64::*;

/// See [`Vector::codes`](super::Vector::codes).
///
/// # Safety
/// The CPU has NEON; both pointers are valid for a block.
#[inline(always)]
pub unsafe fn codes<F: FormatType, const C: usize>(
    first: *const u8,
    second: *const u8,
) -> [uint8x16_t; 4] {
    // Compile-time constants, as for the other instruction sets.
    let known = const { [plane_pieces(&F::BLOCK, 0, C), plane_pieces(&F::BLOCK, 1, C)] };
    let f = const { F::BLOCK };
    let u = const { unsigned(F::BLOCK.value) };
    // SAFETY: the caller guarantees the instruction set and the blocks; a test of each format shows
    // that planes stay in the block.
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
) -> uint8x16_t {
    let block = if piece.second { second } else { first };
    // SAFETY: the caller guarantees the instruction set and the blocks; the piece stays in the
    // block.
    unsafe {
        if plane.run == 1 {
            // The first or second half of a block of 32; planes of single bits exist only in such
            // blocks.
            return single_bits(block, plane, (4 * c + j) % 2 * 16);
        }
        let bytes = vld1q_u8(block.add(piece.at));
        // A negative shift is a right shift.
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

/// Bits `i .. i + 16` of a plane of single bits, one per byte.
///
/// # Safety
/// The CPU has NEON; the plane is in the block.
#[inline(always)]
unsafe fn single_bits(block: *const u8, plane: &Plane, i: usize) -> uint8x16_t {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: the caller guarantees that these two bytes are in the block.
    unsafe {
        let at = block.add(usize::from(plane.at) + i / 8);
        let bytes = vcombine_u8(vdup_n_u8(*at), vdup_n_u8(*at.add(1)));
        vandq_u8(vtstq_u8(bytes, vld1q_u8(BIT.as_ptr())), vdupq_n_u8(1))
    }
}
