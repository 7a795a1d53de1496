//! Unpacks 64 codes of any block format into one AVX-512 register.
//!
//! The four groups of sixteen codes of a plane come from four offsets, which are constants of the
//! format. There are only a few patterns, each with its own cheapest load. The compiler selects the
//! load.

use super::codes::{CodeLocation, pieces, unsigned};
use crate::format_type::FormatType;
use kjit_formats::format::{BlockFormat, Plane};
use std::arch::x86_64::*;

/// The load pattern of four groups of sixteen codes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// 64 adjacent bytes.
    All,
    /// 32 bytes, used twice.
    Twice,
    /// 16 bytes twice, then the next 16 twice.
    Doubled,
    /// 16 bytes of each block, each twice.
    DoubledOfTwo,
    /// 32 bytes of each block.
    Two,
    /// Any other pattern. Each group is loaded separately.
    Each,
}

const fn load(p: &[CodeLocation; 4]) -> Load {
    let at = p[0].at;
    let offsets = [p[1].at.wrapping_sub(at), p[2].at.wrapping_sub(at), p[3].at.wrapping_sub(at)];
    match (p[2].second, offsets) {
        (false, [16, 32, 48]) => Load::All,
        (false, [16, 0, 16]) => Load::Twice,
        (false, [0, 16, 16]) => Load::Doubled,
        (true, [0, 0, 0]) => Load::DoubledOfTwo,
        (true, [16, 0, 16]) => Load::Two,
        _ => Load::Each,
    }
}

/// The common shift of all shifted groups of sixteen, and a mask of the shifted 16-bit elements. A
/// shift of 0: no group is shifted. `None`: there are several shifts, and the instruction with a
/// shift per element, which is the slowest, is used.
const fn one_shift(p: &[CodeLocation; 4]) -> Option<(u32, u32)> {
    let (mut shift, mut which) = (0, 0);
    let mut i = 0;
    while i < 4 {
        if p[i].shift != 0 {
            if shift != 0 && shift != p[i].shift {
                return None;
            }
            shift = p[i].shift;
            which |= 0xff << (8 * i);
        }
        i += 1;
    }
    Some((shift, which))
}

/// The shift of each 16-bit element.
const fn shifts(p: &[CodeLocation; 4]) -> [u16; 32] {
    let mut shifts = [0; 32];
    let mut i = 0;
    while i < 32 {
        shifts[i] = p[i / 8].shift as u16;
        i += 1;
    }
    shifts
}

/// The compile-time properties of a plane.
#[derive(Clone, Copy)]
struct PlaneLayout {
    pieces: [CodeLocation; 4],
    load: Load,
    one_shift: Option<(u32, u32)>,
    shifts: [u16; 32],
}

const fn known(f: &BlockFormat, plane: usize, c: usize) -> PlaneLayout {
    let pieces = pieces(f, &f.planes[plane], c);
    PlaneLayout {
        pieces,
        load: load(&pieces),
        one_shift: one_shift(&pieces),
        shifts: shifts(&pieces),
    }
}

const fn plane(f: &BlockFormat, plane: usize) -> Plane {
    f.planes[plane]
}

/// See [`Vector::codes`](super::Vector::codes).
///
/// # Safety
/// The CPU has AVX-512 F and BW; both pointers are valid for a block.
#[inline(always)]
pub unsafe fn codes<F: FormatType, const C: usize>(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: the caller guarantees the instruction set and the blocks; a test of each format shows
    // that `known` stays in the block.
    unsafe {
        let mut codes = one_plane::<F, C, 0>(first, second);
        if const { F::BLOCK.planes.len() == 2 } {
            let up = const { plane(&F::BLOCK, 0).bits as u32 };
            let high = one_plane_or_nothing::<F, C>(first, second);
            // The shifted bits stay within their byte, because both planes together have at most
            // eight bits.
            codes = _mm512_or_si512(codes, _mm512_sll_epi16(high, _mm_cvtsi32_si128(up as i32)));
        }
        let u = const { unsigned(F::BLOCK.value) };
        if let Some(table) = u.table {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            codes = _mm512_shuffle_epi8(table, codes);
        } else if u.flip != 0 {
            codes = _mm512_xor_si512(codes, _mm512_set1_epi8(u.flip as i8));
        }
        codes
    }
}

/// The second plane. It is also compiled for formats with one plane, but not called for them.
///
/// # Safety
/// The requirements of [`codes`].
#[inline(always)]
unsafe fn one_plane_or_nothing<F: FormatType, const C: usize>(
    first: *const u8,
    second: *const u8,
) -> __m512i {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        match const { F::BLOCK.planes.len() } {
            2 => one_plane::<F, C, 1>(first, second),
            _ => _mm512_setzero_si512(),
        }
    }
}

/// The bits of one plane, in the low bits of each byte.
///
/// # Safety
/// The requirements of [`codes`].
#[inline(always)]
unsafe fn one_plane<F: FormatType, const C: usize, const P: usize>(
    first: *const u8,
    second: *const u8,
) -> __m512i {
    // For a format with one plane, P = 1 is compiled as well. It uses plane 0, and the result is
    // dropped.
    let plane = const { plane(&F::BLOCK, if P < F::BLOCK.planes.len() { P } else { 0 }) };
    let at = usize::from(plane.at);
    // SAFETY: the caller guarantees the instruction set and the blocks; all loads stay in the
    // block.
    unsafe {
        if plane.run == 1 {
            // Single bits in order are used as a mask.
            let mask = match const { F::BLOCK.elems } {
                32 => {
                    let (low, high) = (first.add(at).cast::<u32>(), second.add(at).cast::<u32>());
                    u64::from(low.read_unaligned()) | u64::from(high.read_unaligned()) << 32
                }
                _ => first.add(at + 8 * C).cast::<u64>().read_unaligned(),
            };
            return _mm512_maskz_set1_epi8(mask, 1);
        }
        let k = const { known(&F::BLOCK, if P < F::BLOCK.planes.len() { P } else { 0 }, C) };
        let at = k.pieces[0].at;
        let mut bytes = match k.load {
            Load::All => _mm512_loadu_si512(first.add(at).cast()),
            Load::Twice => _mm512_broadcast_i64x4(_mm256_loadu_si256(first.add(at).cast())),
            Load::Doubled => {
                let v = _mm512_castsi256_si512(_mm256_loadu_si256(first.add(at).cast()));
                _mm512_shuffle_i64x2::<0b01_01_00_00>(v, v)
            }
            Load::DoubledOfTwo => {
                let low = _mm512_broadcast_i32x4(_mm_loadu_si128(first.add(at).cast()));
                _mm512_mask_broadcast_i32x4(low, 0xff00, _mm_loadu_si128(second.add(at).cast()))
            }
            Load::Two => {
                let low = _mm512_castsi256_si512(_mm256_loadu_si256(first.add(at).cast()));
                _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(second.add(at).cast()))
            }
            Load::Each => {
                let from =
                    |p: CodeLocation| if p.second { second.add(p.at) } else { first.add(p.at) };
                let v = _mm512_castsi128_si512(_mm_loadu_si128(from(k.pieces[0]).cast()));
                let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(from(k.pieces[1]).cast()));
                let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(from(k.pieces[2]).cast()));
                _mm512_inserti32x4::<3>(v, _mm_loadu_si128(from(k.pieces[3]).cast()))
            }
        };
        bytes = match k.one_shift {
            Some((0, _)) => bytes,
            Some((shift, u32::MAX)) => _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32)),
            Some((shift, which)) => {
                _mm512_mask_srl_epi16(bytes, which, bytes, _mm_cvtsi32_si128(shift as i32))
            }
            None => _mm512_srlv_epi16(bytes, _mm512_loadu_si512(k.shifts.as_ptr().cast())),
        };
        if plane.bits < 8 {
            bytes = _mm512_and_si512(bytes, _mm512_set1_epi8(((1u16 << plane.bits) - 1) as i8));
        }
        bytes
    }
}
