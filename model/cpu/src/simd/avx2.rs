//! [`Vector`] as four AVX2 registers.

use super::avx2_codes;
use super::eight;
use super::tile_arguments::Tile;
use super::vector::{CHUNK, Job, LANES, Vector};
use crate::format_type::FormatType;
use std::arch::x86_64::*;

/// Whether the CPU and the system support all features that [`enter`] enables.
pub fn present() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// Runs a job with these features.
///
/// # Safety
/// [`present`] is true, and the job's requirements on its fields hold.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
pub unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: the caller guarantees the instruction set and the job's requirements.
    unsafe { job.run::<Avx2>() }
}

/// The matrix kernel.
///
/// # Safety
/// The requirements of [`enter`] and [`Tile::run`].
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
#[inline(never)]
unsafe fn tile<const M: usize>(tile: Tile) {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { tile.run::<Avx2, M>() }
}

/// Lanes 0..8, 8..16, 16..24 and 24..32.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256, __m256, __m256);

/// Applies a function to all registers.
macro_rules! all {
    ($f:ident($a:expr $(, $b:expr)*)) => {
        // SAFETY: the trait's contract guarantees the instruction set.
        unsafe { Avx2($f($a.0 $(, $b.0)*), $f($a.1 $(, $b.1)*), $f($a.2 $(, $b.2)*), $f($a.3 $(, $b.3)*)) }
    };
}

/// Evaluates an expression for the pointer of each register's eight elements.
macro_rules! each {
    ($p:ident, $f:expr) => {
        Avx2(
            $f,
            {
                let $p = $p.add(8);
                $f
            },
            {
                let $p = $p.add(16);
                $f
            },
            {
                let $p = $p.add(24);
                $f
            },
        )
    };
}

/// Evaluates an expression for each register.
macro_rules! every {
    ($v:ident in $a:expr, $f:expr) => {
        Avx2(
            {
                let $v = $a.0;
                $f
            },
            {
                let $v = $a.1;
                $f
            },
            {
                let $v = $a.2;
                $f
            },
            {
                let $v = $a.3;
                $f
            },
        )
    };
}

// SAFETY: the instructions used are those that `enter` enables; memory is accessed only through the
// pointers, for 32 elements.
unsafe impl Vector for Avx2 {
    // 2 rows of four registers are 8 registers. With four of the other matrix and two broadcasts,
    // 14 of 16 registers are in use. 3 rows spill.
    const TILE_ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        let v = unsafe { _mm256_set1_ps(x) };
        Avx2(v, v, v, v)
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 32 elements are readable.
        unsafe { each!(p, _mm256_loadu_ps(p)) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: 32 elements are writable.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
            _mm256_storeu_ps(p.add(16), self.2);
            _mm256_storeu_ps(p.add(24), self.3);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: 32 elements of two bytes are readable.
        unsafe { each!(p, _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: 32 elements of two bytes are writable.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self.0));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(self.1));
            _mm_storeu_si128(p.add(16).cast(), _mm256_cvtps_ph::<NEAREST>(self.2));
            _mm_storeu_si128(p.add(24).cast(), _mm256_cvtps_ph::<NEAREST>(self.3));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: 32 elements of two bytes are readable.
        unsafe {
            each!(p, {
                let w = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w))
            })
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: 32 bytes are readable.
        unsafe { each!(p, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())))) }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        all!(_mm256_add_ps(self, b))
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        all!(_mm256_sub_ps(self, b))
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        all!(_mm256_mul_ps(self, b))
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        all!(_mm256_div_ps(self, b))
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        all!(_mm256_fmadd_ps(self, b, c))
    }

    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        all!(_mm256_max_ps(self, b))
    }

    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        all!(_mm256_min_ps(self, b))
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            every!(v in self, _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
        }
    }

    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            every!(v in self, {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            })
        }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let v = _mm256_add_ps(_mm256_add_ps(self.0, self.2), _mm256_add_ps(self.1, self.3));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let v = _mm256_max_ps(_mm256_max_ps(self.0, self.2), _mm256_max_ps(self.1, self.3));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32) {
        for i in (0..LANES).step_by(8) {
            for j in (0..LANES).step_by(8) {
                // SAFETY: parts of the tile that the caller guarantees.
                unsafe { transpose8(src.add(i * stride + j), stride, dst.add(j * LANES + i)) };
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<const M: usize>(t: Tile) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { tile::<M>(t) }
    }

    type Codes = [__m128i; 4];

    #[inline(always)]
    unsafe fn half(bits: u16) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    #[inline(always)]
    unsafe fn codes<F: FormatType, const C: usize>(
        first: *const u8,
        second: *const u8,
    ) -> Self::Codes {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { avx2_codes::codes::<F, C>(first, second) }
    }

    #[inline(always)]
    unsafe fn load_codes(codes: &[u8; CHUNK]) -> Self::Codes {
        let at = |j: usize| codes[16 * j..].as_ptr().cast();
        // SAFETY: the caller guarantees the instruction set; 64 bytes are four times sixteen.
        unsafe {
            [
                _mm_loadu_si128(at(0)),
                _mm_loadu_si128(at(1)),
                _mm_loadu_si128(at(2)),
                _mm_loadu_si128(at(3)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn widen(codes: Self::Codes, bias: u8) -> [Self; 2] {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            // Codes minus their bias are signed bytes.
            let bias = _mm_set1_epi8(bias as i8);
            let [a, b, c, d] = codes.map(|codes| _mm_sub_epi8(codes, bias));
            [
                Avx2(low_floats(a), high_floats(a), low_floats(b), high_floats(b)),
                Avx2(low_floats(c), high_floats(c), low_floats(d), high_floats(d)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn halves(first: f32, second: f32) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        let (a, b) = unsafe { (_mm256_set1_ps(first), _mm256_set1_ps(second)) };
        Avx2(a, a, b, b)
    }

    #[inline(always)]
    unsafe fn add_dot(self, codes: Self::Codes, bias: u8, q: *const u8, scales: [f32; 4]) -> Self {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { self.add_products(codes, bias, q, scales.map(|s| _mm256_set1_ps(s))) }
    }

    type Scales = __m256;

    #[inline(always)]
    unsafe fn scales(p: *const u8, step: usize) -> __m256 {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { eight::halves(p, step) }
    }

    #[inline(always)]
    unsafe fn scales_of(bytes: u64, by: f32) -> __m256 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { eight::bytes(bytes, by) }
    }

    #[inline(always)]
    unsafe fn scaled(scales: __m256, by: *const f32) -> __m256 {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { eight::times(scales, by) }
    }

    #[inline(always)]
    unsafe fn add_scaled(mut self, scales: __m256, by: *const f32) -> Self {
        // SAFETY: the caller guarantees the instruction set and eight readable floats.
        unsafe { self.3 = _mm256_fmadd_ps(scales, _mm256_loadu_ps(by), self.3) };
        self
    }

    #[inline(always)]
    unsafe fn add_chunk<const C: usize>(
        self,
        codes: Self::Codes,
        bias: u8,
        q: *const u8,
        scales: __m256,
    ) -> Self {
        // SAFETY: the caller guarantees the instruction set and a readable chunk at q.
        unsafe {
            let first = _mm256_permutevar8x32_ps(scales, _mm256_set1_epi32(2 * C as i32));
            let second = _mm256_permutevar8x32_ps(scales, _mm256_set1_epi32(2 * C as i32 + 1));
            self.add_products(codes, bias, q, [first, first, second, second])
        }
    }

    #[inline(always)]
    unsafe fn place(q: &[i32; LANES], part: usize, chunk: *mut u8) {
        // SAFETY: the caller guarantees that half of a chunk is writable.
        unsafe { chunk.cast::<[i16; LANES]>().add(part).write_unaligned(q.map(|q| q as i16)) };
    }
}

impl Avx2 {
    /// 16-bit products, added in pairs, times a scale for each group of 16. The byte instruction
    /// saturates at 16 bits, which 8-bit codes exceed.
    ///
    /// # Safety
    /// The requirements of [`Vector::add_dot`].
    #[inline(always)]
    unsafe fn add_products(
        mut self,
        codes: [__m128i; 4],
        bias: u8,
        q: *const u8,
        scales: [__m256; 4],
    ) -> Self {
        // SAFETY: the caller guarantees the instruction set and a readable chunk at q. Minus their
        // bias, codes are signed bytes; a sum of two products is below 2 · 128 · 32512 < 2^24.
        unsafe {
            for (i, acc) in
                [&mut self.0, &mut self.1, &mut self.2, &mut self.3].into_iter().enumerate()
            {
                let products = _mm256_madd_epi16(
                    _mm256_cvtepi8_epi16(_mm_sub_epi8(codes[i], _mm_set1_epi8(bias as i8))),
                    _mm256_loadu_si256(q.add(32 * i).cast()),
                );
                *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scales[i], *acc);
            }
        }
        self
    }
}

/// The first eight signed bytes as floats.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn low_floats(bytes: __m128i) -> __m256 {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)) }
}

/// The last eight signed bytes as floats.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn high_floats(bytes: __m128i) -> __m256 {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { low_floats(_mm_unpackhi_epi64(bytes, bytes)) }
}

/// Transposes 8 × 8 floats; the destination's rows are 32 apart.
///
/// # Safety
/// The CPU has AVX2; 8 rows of 8 at multiples of `stride` are readable, 8 rows of 8 at multiples of
/// 32 writable.
#[inline(always)]
unsafe fn transpose8(src: *const f32, stride: usize, dst: *mut f32) {
    // SAFETY: the caller guarantees all rows that are read and written.
    unsafe {
        let mut t = [_mm256_setzero_ps(); 8];
        for i in [0, 4] {
            let (a, b) =
                (_mm256_loadu_ps(src.add(i * stride)), _mm256_loadu_ps(src.add((i + 1) * stride)));
            let (c, d) = (
                _mm256_loadu_ps(src.add((i + 2) * stride)),
                _mm256_loadu_ps(src.add((i + 3) * stride)),
            );
            let (ab0, ab1) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd0, cd1) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            t[i] = _mm256_shuffle_ps::<0x44>(ab0, cd0);
            t[i + 1] = _mm256_shuffle_ps::<0xee>(ab0, cd0);
            t[i + 2] = _mm256_shuffle_ps::<0x44>(ab1, cd1);
            t[i + 3] = _mm256_shuffle_ps::<0xee>(ab1, cd1);
        }
        for c in 0..4 {
            _mm256_storeu_ps(dst.add(c * LANES), _mm256_permute2f128_ps::<0x20>(t[c], t[4 + c]));
            _mm256_storeu_ps(
                dst.add((4 + c) * LANES),
                _mm256_permute2f128_ps::<0x31>(t[c], t[4 + c]),
            );
        }
    }
}
