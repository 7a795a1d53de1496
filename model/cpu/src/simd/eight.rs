//! Scales of eight adjacent blocks in one AVX2 register, for AVX2 and AVX-512.

use std::arch::x86_64::*;

/// Loads eight f16 numbers, `step` bytes apart.
///
/// The first load clears the register. If all eight numbers were inserted into an undefined
/// register, the compiler would reuse a register in use, usually the sum of the products. Each
/// iteration would then wait for the previous one (25 cycles for 64 weights instead of 10).
///
/// # Safety
/// The CPU has AVX2 and F16C; eight f16 numbers are readable, each with the two bytes after it.
#[inline(always)]
pub unsafe fn halves(p: *const u8, step: usize) -> __m256 {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        let v = _mm_loadu_si32(p);
        let v = _mm_insert_epi16::<1>(v, word(p.add(step)));
        let v = _mm_insert_epi16::<2>(v, word(p.add(2 * step)));
        let v = _mm_insert_epi16::<3>(v, word(p.add(3 * step)));
        let v = _mm_insert_epi16::<4>(v, word(p.add(4 * step)));
        let v = _mm_insert_epi16::<5>(v, word(p.add(5 * step)));
        let v = _mm_insert_epi16::<6>(v, word(p.add(6 * step)));
        _mm256_cvtph_ps(_mm_insert_epi16::<7>(v, word(p.add(7 * step))))
    }
}

/// Eight bytes, the lowest first, times `by`.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub unsafe fn bytes(bytes: u64, by: f32) -> __m256 {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed()));
        _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), _mm256_set1_ps(by))
    }
}

/// Products of eight scales and eight floats.
///
/// # Safety
/// The CPU has AVX2; eight floats are readable.
#[inline(always)]
pub unsafe fn times(scales: __m256, by: *const f32) -> __m256 {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { _mm256_mul_ps(scales, _mm256_loadu_ps(by)) }
}

/// Reads two bytes.
///
/// # Safety
/// Two bytes are readable at `p`.
#[inline(always)]
unsafe fn word(p: *const u8) -> i32 {
    // SAFETY: the caller guarantees two readable bytes.
    i32::from(unsafe { p.cast::<i16>().read_unaligned() })
}
