//! [`Vector`] as two AVX-512 registers.

use super::avx512_integers::integers;
use super::eight;
use super::tile_arguments::InterleavedTile;
use super::tile_arguments::Tile;
use super::tile_arguments::WordTile;
use super::vector::{CHUNK, Job, LANES, Vector, WordJob, WordKernel};
use super::{avx512_codes, avx512_interleaved};
use crate::format_type::FormatType;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Whether the CPU and the system support all features that [`enter`] enables.
pub fn present() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && super::avx2::present()
}

/// See [`Isa::ahead`](super::Isa::ahead).
pub fn ahead() -> usize {
    // The value is read once: in a virtual machine the hypervisor answers `cpuid`, which takes
    // microseconds.
    static AHEAD: OnceLock<usize> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let id = __cpuid(0);
        let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
        if vendor.as_flattened() == b"GenuineIntel" { 4096 } else { 0 }
    })
}

/// Runs a job with these features.
///
/// # Safety
/// [`present`] is true, and the job's requirements on its fields hold.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
)]
pub unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: the caller guarantees the instruction set and the job's requirements.
    unsafe { job.run::<Avx512>() }
}

/// [`enter`] for int16 jobs.
///
/// # Safety
/// The requirements of [`enter`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
)]
pub unsafe fn enter_words<J: WordJob>(job: J) {
    // SAFETY: the caller guarantees the instruction set and the job's requirements.
    unsafe { job.run::<Avx512>() }
}

/// Rows of a tile of the int16 matrix kernel. 12 sums of a group and 12 total sums take 24 of 32
/// registers. Two registers of the panel and a broadcast make 27.
///
/// # Safety
/// The requirements of [`enter`] and [`WordKernel::word_tile`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline(never)]
unsafe fn word_tile<const M: usize, const G: usize>(t: WordTile) {
    // SAFETY: all pointers stay in what the caller guarantees.
    unsafe {
        let mut all = [[_mm512_setzero_ps(); 2]; M];
        for (i, all) in all.iter_mut().enumerate() {
            let c = t.c.add(i * t.c_stride);
            *all = [_mm512_loadu_ps(c), _mm512_loadu_ps(c.add(16))];
        }
        for g in 0..t.groups {
            let mut sums = [[_mm512_setzero_si512(); 2]; M];
            for k in g * (G / 2)..(g + 1) * (G / 2) {
                let w = t.w.add(k * LANES);
                let (low, high) =
                    (_mm512_loadu_si512(w.cast()), _mm512_loadu_si512(w.add(16).cast()));
                for (i, [a, b]) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(t.x.add(i * t.x_stride + k).cast::<i32>().read());
                    *a = _mm512_dpwssd_epi32(*a, low, x);
                    *b = _mm512_dpwssd_epi32(*b, high, x);
                }
            }
            let at = g * LANES;
            let scales =
                [_mm512_loadu_ps(t.scales.add(at)), _mm512_loadu_ps(t.scales.add(at + 16))];
            for (i, (sums, all)) in sums.iter().zip(&mut all).enumerate() {
                let scale = _mm512_set1_ps(*t.x_scales.add(i * t.x_stride + g * G / 32));
                for h in 0..2 {
                    all[h] = _mm512_fmadd_ps(
                        _mm512_cvtepi32_ps(sums[h]),
                        _mm512_mul_ps(scales[h], scale),
                        all[h],
                    );
                }
            }
        }
        for (i, all) in all.iter().enumerate() {
            let c = t.c.add(i * t.c_stride);
            _mm512_storeu_ps(c, all[0]);
            _mm512_storeu_ps(c.add(16), all[1]);
        }
    }
}

/// The matrix kernel.
///
/// # Safety
/// The requirements of [`enter`] and [`Tile::run`].
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt"
)]
#[inline(never)]
unsafe fn tile<const M: usize>(tile: Tile) {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { tile.run::<Avx512, M>() }
}

/// Lanes 0..16 and 16..32.
#[derive(Clone, Copy)]
pub struct Avx512(__m512, __m512);

/// Applies an expression to both registers.
macro_rules! both {
    ($f:ident($a:expr $(, $b:expr)*)) => {
        // SAFETY: the trait's contract guarantees the instruction set.
        unsafe { Avx512($f($a.0 $(, $b.0)*), $f($a.1 $(, $b.1)*)) }
    };
}

// SAFETY: the instructions used are those that `enter` enables; memory is accessed only through the
// pointers, for 32 elements.
unsafe impl Vector for Avx512 {
    // 8 rows of two registers are 16 registers. With two of the other matrix and eight broadcasts,
    // 26 of 32 registers are in use. With 12 rows the compiler loads all broadcasts before the
    // first product, and spills.
    const TILE_ROWS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller guarantees the instruction set.
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
            Avx512(
                _mm512_cvtph_ps(_mm512_castsi512_si256(h)),
                _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(h)),
            )
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: 32 elements of two bytes are writable.
        unsafe {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0));
            _mm256_storeu_si256(
                p.add(16).cast(),
                _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1),
            );
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
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            const TO_NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            Avx512(
                _mm512_roundscale_ps::<TO_NEAREST>(self.0),
                _mm512_roundscale_ps::<TO_NEAREST>(self.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
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
        // SAFETY: the caller guarantees the instruction set.
        unsafe { _mm512_reduce_add_ps(_mm512_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { _mm512_reduce_max_ps(_mm512_max_ps(self.0, self.1)) }
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32) {
        for (i, j) in [(0, 0), (0, 16), (16, 0), (16, 16)] {
            // SAFETY: quarters of the tile that the caller guarantees.
            unsafe {
                transpose16(src.add(i * stride + j), stride, dst.add(j * super::vector::LANES + i))
            };
        }
    }

    #[inline(always)]
    unsafe fn tile<const M: usize>(t: Tile) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { tile::<M>(t) }
    }

    type Codes = __m512i;

    #[inline(always)]
    unsafe fn half(bits: u16) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
    }

    #[inline(always)]
    unsafe fn codes<F: FormatType, const C: usize>(first: *const u8, second: *const u8) -> __m512i {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { avx512_codes::codes::<F, C>(first, second) }
    }

    #[inline(always)]
    unsafe fn load_codes(codes: &[u8; CHUNK]) -> Self::Codes {
        // SAFETY: the caller guarantees the instruction set; a register has 64 bytes.
        unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn widen(codes: __m512i, bias: u8) -> [Self; 2] {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            // Codes minus their bias are signed bytes.
            let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(bias as i8));
            [
                Avx512(
                    floats(_mm512_castsi512_si128(codes)),
                    floats(_mm512_extracti32x4_epi32::<1>(codes)),
                ),
                Avx512(
                    floats(_mm512_extracti32x4_epi32::<2>(codes)),
                    floats(_mm512_extracti32x4_epi32::<3>(codes)),
                ),
            ]
        }
    }

    #[inline(always)]
    unsafe fn halves(first: f32, second: f32) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { Avx512(_mm512_set1_ps(first), _mm512_set1_ps(second)) }
    }

    /// Activations are `256 · high + low`, both signed bytes, in two thirds of the chunk. Two
    /// byte-product instructions add groups of four; the first sum is shifted. The last third has
    /// the negative sums of four activations. These times the bias are the start of the second sum.
    #[inline(always)]
    unsafe fn add_dot(self, codes: __m512i, bias: u8, q: *const u8, scales: [f32; 4]) -> Self {
        // SAFETY: the caller guarantees the instruction set and a readable chunk at q.
        unsafe {
            let all = products(codes, bias, q);
            let spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            let scales = _mm512_castps128_ps512(_mm_loadu_ps(scales.as_ptr()));
            Avx512(_mm512_fmadd_ps(all, _mm512_permutexvar_ps(spread, scales), self.0), self.1)
        }
    }

    /// Prefetches into the L2 cache: data that is used 4 KB later does not fit in L1.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch reads nothing and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
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
    unsafe fn add_scaled(self, scales: __m256, by: *const f32) -> Self {
        // SAFETY: the caller guarantees the instruction set and eight readable floats.
        unsafe {
            Avx512(self.0, _mm512_add_ps(self.1, _mm512_zextps256_ps512(Self::scaled(scales, by))))
        }
    }

    #[inline(always)]
    unsafe fn add_chunk<const C: usize>(
        self,
        codes: __m512i,
        bias: u8,
        q: *const u8,
        scales: __m256,
    ) -> Self {
        // SAFETY: the caller guarantees the instruction set and a readable chunk at q.
        unsafe {
            let all = products(codes, bias, q);
            let (a, b) = (2 * C as i32, 2 * C as i32 + 1);
            let spread = _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b);
            let scales = _mm512_permutexvar_ps(spread, _mm512_zextps256_ps512(scales));
            Avx512(_mm512_fmadd_ps(all, scales, self.0), self.1)
        }
    }

    #[inline(always)]
    unsafe fn place(q: &[i32; LANES], part: usize, chunk: *mut u8) {
        // SAFETY: `q` has 32 integers; the caller guarantees that this half of each third of the
        // chunk is writable.
        unsafe {
            let q = [
                _mm512_loadu_si512(q.as_ptr().cast()),
                _mm512_loadu_si512(q.as_ptr().add(16).cast()),
            ];
            put(q, part, chunk);
        }
    }

    #[inline(always)]
    unsafe fn round_chunk(x: *const f32, part: usize, chunk: *mut u8) -> (f32, [f32; 2]) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            let (scale, q) = integers(x);
            put(q, part, chunk);
            (
                scale,
                [
                    _mm512_reduce_add_epi32(q[0]) as f32 * scale,
                    _mm512_reduce_add_epi32(q[1]) as f32 * scale,
                ],
            )
        }
    }

    #[inline(always)]
    unsafe fn round_words(x: *const f32, to: *mut f32) -> (f32, [f32; 2]) {
        // SAFETY: the caller guarantees the instruction set, 32 readable elements, and space for 32
        // int16.
        unsafe {
            let (scale, q) = integers(x);
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(q[0]));
            _mm256_storeu_si256(to.add(8).cast(), _mm512_cvtepi32_epi16(q[1]));
            (
                scale,
                [
                    _mm512_reduce_add_epi32(q[0]) as f32 * scale,
                    _mm512_reduce_add_epi32(q[1]) as f32 * scale,
                ],
            )
        }
    }
}

/// Writes 32 integers: their high bytes, their low bytes, and the negative sums of each group of
/// four, times 8.
///
/// # Safety
/// The CPU has AVX-512 with VNNI; half `part` of each third of the chunk is writable.
#[inline(always)]
unsafe fn put(q: [__m512i; 2], part: usize, chunk: *mut u8) {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        let round = _mm512_set1_epi32(128);
        let a = _mm512_srai_epi32::<8>(_mm512_add_epi32(q[0], round));
        let b = _mm512_srai_epi32::<8>(_mm512_add_epi32(q[1], round));
        let high = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
        let a = _mm512_sub_epi32(q[0], _mm512_slli_epi32::<8>(a));
        let b = _mm512_sub_epi32(q[1], _mm512_slli_epi32::<8>(b));
        let low = _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
        let (none, one) = (_mm256_setzero_si256(), _mm256_set1_epi8(1));
        let fours = _mm256_slli_epi32::<8>(_mm256_dpbusd_epi32(none, one, high));
        let sums = _mm256_dpbusd_epi32(fours, one, low);
        let at = chunk.add(part * LANES);
        _mm256_storeu_si256(at.cast(), high);
        _mm256_storeu_si256(at.add(CHUNK).cast(), low);
        let sums = _mm256_slli_epi32::<EIGHT>(_mm256_sub_epi32(none, sums));
        _mm256_storeu_si256(at.add(2 * CHUNK).cast(), sums);
    }
}

// SAFETY: the instructions used are those that `enter` enables; memory is accessed only through the
// pointers, as the trait describes.
unsafe impl WordKernel for Avx512 {
    #[inline(always)]
    unsafe fn store_words(codes: __m512i, bias: u8, to: *mut f32) {
        // SAFETY: the caller guarantees the instruction set and space for 64 int16.
        unsafe {
            // Codes minus their bias are signed bytes.
            let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(bias as i8));
            _mm512_storeu_si512(to.cast(), _mm512_cvtepi8_epi16(_mm512_castsi512_si256(codes)));
            _mm512_storeu_si512(
                to.add(16).cast(),
                _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(codes)),
            );
        }
    }

    #[inline(always)]
    unsafe fn word_tile<const M: usize, const G: usize>(t: WordTile) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { word_tile::<M, G>(t) }
    }

    #[inline(always)]
    unsafe fn round_unit(x: *const f32, to: *mut f32) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { avx512_interleaved::round_unit(x, to) }
    }

    #[inline(always)]
    unsafe fn interleaved_tile<
        const M: usize,
        const WIDE: bool,
        const OFFSET: bool,
        const TABLE: bool,
    >(
        t: InterleavedTile,
    ) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { avx512_interleaved::tile::<M, WIDE, OFFSET, TABLE>(t) }
    }
}

/// log2 of the factor on the sums of four activations in a chunk. The factor is Q4_0's bias, which
/// then needs no shift.
const EIGHT: i32 = 3;

/// Products of `code − bias` and activations, added in groups of four.
///
/// # Safety
/// The CPU has AVX-512 with VNNI; a chunk is readable at `q`.
#[inline(always)]
unsafe fn products(codes: __m512i, bias: u8, q: *const u8) -> __m512 {
    // SAFETY: the caller guarantees the instruction set and a readable chunk. A sum of four is
    // below 4 · 255 · 128 · 256 < 2^26.
    unsafe {
        // The second product adds to the first one, shifted, which already includes the bias.
        let high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, _mm512_loadu_si512(q.cast()));
        let mut start = _mm512_slli_epi32::<8>(high);
        if bias != 0 {
            let sums = _mm512_loadu_si512(q.add(2 * CHUNK).cast());
            let by = bias.trailing_zeros() as i32;
            start = _mm512_add_epi32(
                start,
                match by - EIGHT {
                    0 => sums,
                    up @ 1.. => _mm512_sll_epi32(sums, _mm_cvtsi32_si128(up)),
                    down => _mm512_sra_epi32(sums, _mm_cvtsi32_si128(-down)),
                },
            );
        }
        _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(
            start,
            codes,
            _mm512_loadu_si512(q.add(CHUNK).cast()),
        ))
    }
}

/// Signed bytes as floats.
///
/// # Safety
/// The CPU has AVX-512.
#[inline(always)]
unsafe fn floats(bytes: __m128i) -> __m512 {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)) }
}

/// Transposes 16 × 16 floats; the destination's rows are 32 apart.
///
/// # Safety
/// The CPU has AVX-512; 16 rows of 16 at multiples of `stride` are readable, 16 rows of 16 at
/// multiples of 32 writable.
#[inline(always)]
unsafe fn transpose16(src: *const f32, stride: usize, dst: *mut f32) {
    // SAFETY: the caller guarantees all rows that are read and written.
    unsafe {
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            *r = _mm512_loadu_ps(src.add(i * stride));
        }
        // Within each 128-bit lane: 4 × 4 transposes of rows i..i+4.
        let mut t = [_mm512_setzero_ps(); 16];
        for i in (0..16).step_by(4) {
            let (ab0, ab1) =
                (_mm512_unpacklo_ps(r[i], r[i + 1]), _mm512_unpackhi_ps(r[i], r[i + 1]));
            let (cd0, cd1) =
                (_mm512_unpacklo_ps(r[i + 2], r[i + 3]), _mm512_unpackhi_ps(r[i + 2], r[i + 3]));
            t[i] = _mm512_shuffle_ps::<0x44>(ab0, cd0);
            t[i + 1] = _mm512_shuffle_ps::<0xee>(ab0, cd0);
            t[i + 2] = _mm512_shuffle_ps::<0x44>(ab1, cd1);
            t[i + 3] = _mm512_shuffle_ps::<0xee>(ab1, cd1);
        }
        // Then the lanes are exchanged: column 4·lane + c collects lane `lane` of t[c], t[4 + c],
        // t[8 + c], t[12 + c].
        for c in 0..4 {
            let (lo0, hi0) = (
                _mm512_shuffle_f32x4::<0x44>(t[c], t[4 + c]),
                _mm512_shuffle_f32x4::<0xee>(t[c], t[4 + c]),
            );
            let (lo1, hi1) = (
                _mm512_shuffle_f32x4::<0x44>(t[8 + c], t[12 + c]),
                _mm512_shuffle_f32x4::<0xee>(t[8 + c], t[12 + c]),
            );
            _mm512_storeu_ps(dst.add(c * 32), _mm512_shuffle_f32x4::<0x88>(lo0, lo1));
            _mm512_storeu_ps(dst.add((4 + c) * 32), _mm512_shuffle_f32x4::<0xdd>(lo0, lo1));
            _mm512_storeu_ps(dst.add((8 + c) * 32), _mm512_shuffle_f32x4::<0x88>(hi0, hi1));
            _mm512_storeu_ps(dst.add((12 + c) * 32), _mm512_shuffle_f32x4::<0xdd>(hi0, hi1));
        }
    }
}
