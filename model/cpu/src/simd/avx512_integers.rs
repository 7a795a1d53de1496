//! Rounding for AVX-512.

use super::vector::{LARGEST, inverse};
use std::arch::x86_64::*;

/// [`round`](super::vector::round) for AVX-512.
///
/// # Safety
/// The CPU has AVX-512; 32 elements are readable.
#[inline(always)]
pub(super) unsafe fn integers(x: *const f32) -> (f32, [__m512i; 2]) {
    // SAFETY: the caller guarantees AVX-512 and 32 elements.
    unsafe {
        let (a, b) = (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16)));
        let largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
        // NaN for each element that is infinite or NaN, otherwise 0, so that rounding does not hide
        // it.
        let (zero, none) =
            (_mm512_setzero_ps(), _mm512_add_ps(_mm512_sub_ps(a, a), _mm512_sub_ps(b, b)));
        let wrong = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(none, zero);
        let scale = if wrong == 0 { largest / LARGEST } else { f32::NAN };
        let inverse = _mm512_set1_ps(inverse(largest));
        (
            scale,
            [
                _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)),
                _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse)),
            ],
        )
    }
}
