//! Kernels for interleaved matrices, whose sixteen rows are the lanes of a register: see
//! [`interleaved`](crate::interleaved).

use super::avx512_integers::integers;
use super::tile_arguments::InterleavedTile;
use super::vector::LANES;
use crate::interleaved::{ROWS, START, UNIT};
use std::arch::x86_64::*;

/// See [`WordKernel::round_unit`](super::WordKernel::round_unit).
///
/// # Safety
/// The CPU has AVX-512; 32 elements are readable, a unit writable.
#[inline(always)]
pub unsafe fn round_unit(x: *const f32, to: *mut f32) {
    // SAFETY: the caller guarantees AVX-512, 32 elements, and a unit; each half of the bytes has
    // 32.
    unsafe {
        let (scale, [a, b]) = integers(x);
        let round = _mm512_set1_epi32(128);
        let (high_a, high_b) = (
            _mm512_srai_epi32::<8>(_mm512_add_epi32(a, round)),
            _mm512_srai_epi32::<8>(_mm512_add_epi32(b, round)),
        );
        let low_a = _mm512_sub_epi32(a, _mm512_slli_epi32::<8>(high_a));
        let low_b = _mm512_sub_epi32(b, _mm512_slli_epi32::<8>(high_b));
        let bytes = to.cast::<u8>();
        _mm_storeu_si128(bytes.cast(), _mm512_cvtepi32_epi8(high_a));
        _mm_storeu_si128(bytes.add(16).cast(), _mm512_cvtepi32_epi8(high_b));
        _mm_storeu_si128(bytes.add(LANES).cast(), _mm512_cvtepi32_epi8(low_a));
        _mm_storeu_si128(bytes.add(LANES + 16).cast(), _mm512_cvtepi32_epi8(low_b));
        // If an element is infinite or NaN, the integers are undefined and the scale is NaN.
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
        to.add(16).write(scale);
        to.add(17).write(sum as f32 * scale);
        to.add(18).write(f32::from_bits(sum.wrapping_mul(-START).cast_unsigned()));
        to.add(19).write(0.0);
    }
}

/// See [`WordKernel::interleaved_tile`](super::WordKernel::interleaved_tile). Activations are `256
/// · high + low`. The products with each byte are summed over a block, and the sum of the high
/// bytes is shifted. This is exact: below 32 · 255 · 32512 < 2^28. Each sum uses two registers,
/// since a product waits for the previous product with the same register: eight products would take
/// 40 cycles.
///
/// # Safety
/// The requirements of [`enter`](super::avx512::enter) and of the trait's method.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline(never)]
pub unsafe fn tile<const M: usize, const WIDE: bool, const OFFSET: bool, const TABLE: bool>(
    t: InterleavedTile,
) {
    // SAFETY: all pointers stay in what the caller guarantees.
    unsafe {
        let mut all = [_mm512_setzero_ps(); M];
        let nibble = _mm512_set1_epi8(15);
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(t.table.cast()));
        let start_shift = _mm_cvtsi32_si128(
            t.bias.max(1).trailing_zeros() as i32 - START.trailing_zeros() as i32,
        );
        for b in 0..t.blocks {
            let w = t.w.add(b * t.w_len);
            if t.ahead > 0 {
                for line in (0..4 * t.w_len).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T1>(w.cast::<u8>().wrapping_add(t.ahead + line).cast());
                }
            }
            let mut high = [[_mm512_setzero_si512(); 2]; M];
            let mut low = [[_mm512_setzero_si512(); 2]; M];
            let codes = w.add(if OFFSET { 16 } else { 8 });
            for j in 0..4 {
                let pair = if WIDE {
                    [
                        _mm512_loadu_si512(codes.add(16 * j).cast()),
                        _mm512_loadu_si512(codes.add(16 * (j + 4)).cast()),
                    ]
                } else {
                    let bytes = _mm512_loadu_si512(codes.add(16 * j).cast());
                    let pair = [
                        _mm512_and_si512(bytes, nibble),
                        _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), nibble),
                    ];
                    if TABLE {
                        [_mm512_shuffle_epi8(table, pair[0]), _mm512_shuffle_epi8(table, pair[1])]
                    } else {
                        pair
                    }
                };
                for i in 0..M {
                    let x = t.x.add(i * t.x_stride + b * UNIT).cast::<i32>();
                    for h in 0..2 {
                        let at = x.add(j + 4 * h);
                        high[i][h] =
                            _mm512_dpbusd_epi32(high[i][h], pair[h], _mm512_set1_epi32(at.read()));
                        low[i][h] = _mm512_dpbusd_epi32(
                            low[i][h],
                            pair[h],
                            _mm512_set1_epi32(at.add(8).read()),
                        );
                    }
                }
            }
            let scales = _mm512_cvtph_ps(_mm256_loadu_si256(w.cast()));
            for i in 0..M {
                let x = t.x.add(i * t.x_stride + b * UNIT);
                let sum = _mm512_slli_epi32::<8>(_mm512_add_epi32(high[i][0], high[i][1]));
                let mut sum = _mm512_add_epi32(sum, _mm512_add_epi32(low[i][0], low[i][1]));
                if t.bias != 0 {
                    let start = _mm512_set1_epi32(x.add(18).cast::<i32>().read());
                    sum = _mm512_add_epi32(sum, _mm512_sll_epi32(start, start_shift));
                }
                let scale = _mm512_mul_ps(scales, _mm512_set1_ps(x.add(16).read()));
                all[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, all[i]);
                if OFFSET {
                    let offsets = _mm512_cvtph_ps(_mm256_loadu_si256(w.add(8).cast()));
                    all[i] = _mm512_fmadd_ps(offsets, _mm512_set1_ps(x.add(17).read()), all[i]);
                }
            }
        }
        for (i, all) in all.iter().enumerate() {
            _mm512_storeu_ps(t.c.add(ROWS * i), *all);
        }
    }
}
