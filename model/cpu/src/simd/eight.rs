//! Scales of eight successive blocks in one register of AVX2, which AVX-512 has too.

use std::arch::x86_64::*;

/// Eight IEEE halves, `step` bytes apart.
///
/// The first by a load that clears the register: putting all eight into one whose contents do not
/// matter, the compiler takes one that is in use, the sum of the products most often, and each
/// round of the loop waits for the one before (25 cycles for 64 weights instead of 10).
///
/// # Safety
/// AVX2 and F16C are there; eight halves are readable, each with the two bytes behind it.
#[inline(always)]
pub unsafe fn halves(p: *const u8, step: usize) -> __m256 {
    // SAFETY: the caller's promise.
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
/// AVX2 is there.
#[inline(always)]
pub unsafe fn bytes(bytes: u64, by: f32) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes.cast_signed()));
        _mm256_mul_ps(_mm256_cvtepi32_ps(bytes), _mm256_set1_ps(by))
    }
}

/// Each times one of eight floats.
///
/// # Safety
/// AVX2 is there; eight floats are readable.
#[inline(always)]
pub unsafe fn times(scales: __m256, by: *const f32) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_mul_ps(scales, _mm256_loadu_ps(by)) }
}

/// Two bytes.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn word(p: *const u8) -> i32 {
    // SAFETY: the caller's promise.
    i32::from(unsafe { p.cast::<i16>().read_unaligned() })
}
