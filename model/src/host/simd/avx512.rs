//! 32 floats in two AVX-512 registers.

use super::{Job, Vector};
use std::arch::x86_64::*;

/// Whether the processor and the system have all that [`enter`] switches on.
pub fn present() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && super::avx2::present()
}

/// Runs a job with these instructions.
///
/// # Safety
/// [`present`] is true, and what the job asks of its fields holds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
pub unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: the instructions are there, says the caller.
    unsafe { job.run::<Avx512>() }
}

/// Lanes 0..16 and 16..32.
#[derive(Clone, Copy)]
pub struct Avx512(__m512, __m512);

/// Applies an expression to both registers.
macro_rules! both {
    ($f:ident($a:expr $(, $b:expr)*)) => {
        // SAFETY: the instructions are there: the trait's contract.
        unsafe { Avx512($f($a.0 $(, $b.0)*), $f($a.1 $(, $b.1)*)) }
    };
}

// SAFETY: the instructions used are those that `enter` switches on; memory is reached only through the pointers, for 32 elements.
unsafe impl Vector for Avx512 {
    // 12 rows of two registers are 24; two of the other matrix and one broadcast make 27 of 32.
    const TILE_ROWS: usize = 12;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the instructions are there.
        let v = unsafe { _mm512_set1_ps(x) };
        Avx512(v, v)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 32 elements are readable.
        unsafe { Avx512(_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 32 elements are writable.
        unsafe {
            _mm512_storeu_ps(p, self.0);
            _mm512_storeu_ps(p.add(16), self.1);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: 32 elements of two bytes are readable.
        unsafe {
            let h = _mm512_loadu_si512(p.cast());
            Avx512(_mm512_cvtph_ps(_mm512_castsi512_si256(h)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(h)))
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: 32 elements of two bytes are writable.
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm256_storeu_si256(p.add(16).cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: 32 elements of two bytes are readable.
        unsafe {
            let low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            let high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.add(16).cast()));
            Avx512(
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(low)),
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: 32 bytes are readable.
        unsafe {
            let low = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(16).cast()));
            Avx512(_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        both!(_mm512_add_ps(self, b))
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        both!(_mm512_sub_ps(self, b))
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        both!(_mm512_mul_ps(self, b))
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        both!(_mm512_div_ps(self, b))
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        both!(_mm512_fmadd_ps(self, b, c))
    }

    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        both!(_mm512_max_ps(self, b))
    }

    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        both!(_mm512_min_ps(self, b))
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the instructions are there.
        unsafe {
            const TO_NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            Avx512(_mm512_roundscale_ps::<TO_NEAREST>(self.0), _mm512_roundscale_ps::<TO_NEAREST>(self.1))
        }
    }

    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: the instructions are there.
        unsafe {
            let low = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            let high = _mm512_add_epi32(_mm512_cvtps_epi32(self.1), _mm512_set1_epi32(127));
            Avx512(
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(low)),
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_reduce_add_ps(_mm512_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the instructions are there.
        unsafe { _mm512_reduce_max_ps(_mm512_max_ps(self.0, self.1)) }
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32) {
        for (i, j) in [(0, 0), (0, 16), (16, 0), (16, 16)] {
            // SAFETY: quarters of the tile that the caller vouches for.
            unsafe { transpose16(src.add(i * stride + j), stride, dst.add(j * super::LANES + i)) };
        }
    }
}

/// Transposes 16 × 16 floats; the destination's rows are 32 apart.
///
/// # Safety
/// AVX-512 is there; 16 rows of 16 at multiples of `stride` are readable, 16 rows of 16 at multiples of 32 writable.
#[inline(always)]
unsafe fn transpose16(src: *const f32, stride: usize, dst: *mut f32) {
    // SAFETY: the caller's promise covers all that is read and written.
    unsafe {
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm512_loadu_ps(src.add(i * stride));
        }
        // Inside each 128-bit lane: 4 × 4 transposes of rows i..i+4.
        let mut t = [_mm512_setzero_ps(); 16];
        for i in (0..16).step_by(4) {
            let (ab0, ab1) = (_mm512_unpacklo_ps(r[i], r[i + 1]), _mm512_unpackhi_ps(r[i], r[i + 1]));
            let (cd0, cd1) = (_mm512_unpacklo_ps(r[i + 2], r[i + 3]), _mm512_unpackhi_ps(r[i + 2], r[i + 3]));
            t[i] = _mm512_shuffle_ps::<0x44>(ab0, cd0);
            t[i + 1] = _mm512_shuffle_ps::<0xee>(ab0, cd0);
            t[i + 2] = _mm512_shuffle_ps::<0x44>(ab1, cd1);
            t[i + 3] = _mm512_shuffle_ps::<0xee>(ab1, cd1);
        }
        // Then the lanes: column 4·lane + c collects lane `lane` of t[c], t[4 + c], t[8 + c], t[12 + c].
        for c in 0..4 {
            let (lo0, hi0) =
                (_mm512_shuffle_f32x4::<0x44>(t[c], t[4 + c]), _mm512_shuffle_f32x4::<0xee>(t[c], t[4 + c]));
            let (lo1, hi1) =
                (_mm512_shuffle_f32x4::<0x44>(t[8 + c], t[12 + c]), _mm512_shuffle_f32x4::<0xee>(t[8 + c], t[12 + c]));
            _mm512_storeu_ps(dst.add(c * 32), _mm512_shuffle_f32x4::<0x88>(lo0, lo1));
            _mm512_storeu_ps(dst.add((4 + c) * 32), _mm512_shuffle_f32x4::<0xdd>(lo0, lo1));
            _mm512_storeu_ps(dst.add((8 + c) * 32), _mm512_shuffle_f32x4::<0x88>(hi0, hi1));
            _mm512_storeu_ps(dst.add((12 + c) * 32), _mm512_shuffle_f32x4::<0xdd>(hi0, hi1));
        }
    }
}
