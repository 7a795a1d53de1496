//! [`Vector`] as eight NEON registers. Every 64-bit Arm CPU has 32 of them.

use super::neon_codes;
use super::tile_arguments::Tile;
use super::vector::{CHUNK, Job, LANES, Vector};
use crate::format_type::FormatType;
use std::arch::aarch64::*;
use std::array::from_fn;

/// Whether the CPU and the system support all features that [`enter`] enables.
pub fn present() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

/// Runs a job with these features.
///
/// # Safety
/// [`present`] is true, and the job's requirements on its fields hold.
#[target_feature(enable = "neon")]
pub unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: the caller guarantees the instruction set and the job's requirements.
    unsafe { job.run::<Neon>() }
}

/// The matrix kernel.
///
/// # Safety
/// The requirements of [`enter`] and [`Tile::run`].
#[target_feature(enable = "neon")]
#[inline(never)]
unsafe fn tile<const M: usize>(tile: Tile) {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { tile.run::<Neon, M>() }
}

/// Number of registers in a [`Neon`].
const REGISTERS: usize = LANES / 4;

/// Four lanes in each register, in order.
#[derive(Clone, Copy)]
pub struct Neon([float32x4_t; REGISTERS]);

impl Neon {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Neon(from_fn(|i| f(self.0[i], b.0[i])))
    }

    /// Combines the registers in pairs until one is left.
    #[inline(always)]
    fn fold(self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> float32x4_t {
        let [a, b, c, d, e, g, h, i] = self.0;
        f(f(f(a, e), f(c, h)), f(f(b, g), f(d, i)))
    }
}

// SAFETY: the instructions used are those that `enter` enables; memory is accessed only through the
// pointers, for 32 elements.
unsafe impl Vector for Neon {
    // 2 rows of eight registers are 16 registers. With eight of the other matrix and two
    // broadcasts, 26 of 32 registers are in use.
    const TILE_ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        Neon([unsafe { vdupq_n_f32(x) }; REGISTERS])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: 32 elements are readable.
        Neon(from_fn(|i| unsafe { vld1q_f32(p.add(4 * i)) }))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, v) in self.0.into_iter().enumerate() {
            // SAFETY: 32 elements are writable.
            unsafe { vst1q_f32(p.add(4 * i), v) };
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: 32 elements of two bytes are readable.
        Neon(from_fn(|i| unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(4 * i)))) }))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        for (i, v) in self.0.into_iter().enumerate() {
            // SAFETY: the caller guarantees the instruction set and 32 writable elements of two
            // bytes. The rounding mode is always to nearest even.
            unsafe { vst1_u16(p.add(4 * i), vreinterpret_u16_f16(vcvt_f16_f32(v))) };
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: 32 elements of two bytes are readable.
        Neon(from_fn(|i| unsafe {
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p.add(4 * i)))))
        }))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: 32 bytes are readable.
        unsafe {
            let ([a, b, c, d], [e, f, g, h]) = (floats(vld1q_s8(p)), floats(vld1q_s8(p.add(16))));
            Neon([a, b, c, d, e, f, g, h])
        }
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        self.zip(b, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        self.zip(b, |a, b| unsafe { vsubq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        self.zip(b, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        self.zip(b, |a, b| unsafe { vdivq_f32(a, b) })
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        Neon(from_fn(|i| unsafe { vfmaq_f32(c.0[i], self.0[i], b.0[i]) }))
    }

    // The max and min instructions return NaN if either lane is NaN; comparisons return b.
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        self.zip(b, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        self.zip(b, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        Neon(self.0.map(|v| unsafe { vrndnq_f32(v) }))
    }

    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        Neon(self.0.map(|v| unsafe {
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(v), vdupq_n_s32(127))))
        }))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { vaddvq_f32(self.fold(|a, b| vaddq_f32(a, b))) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { vmaxnmvq_f32(self.fold(|a, b| vmaxnmq_f32(a, b))) }
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32) {
        for i in (0..LANES).step_by(4) {
            for j in (0..LANES).step_by(4) {
                // SAFETY: parts of the tile that the caller guarantees.
                unsafe { transpose4(src.add(i * stride + j), stride, dst.add(j * LANES + i)) };
            }
        }
    }

    #[inline(always)]
    unsafe fn tile<const M: usize>(t: Tile) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { tile::<M>(t) }
    }

    type Codes = [uint8x16_t; 4];

    #[inline(always)]
    unsafe fn half(bits: u16) -> f32 {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits)))) }
    }

    #[inline(always)]
    unsafe fn codes<F: FormatType, const C: usize>(
        first: *const u8,
        second: *const u8,
    ) -> Self::Codes {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { neon_codes::codes::<F, C>(first, second) }
    }

    #[inline(always)]
    unsafe fn load_codes(codes: &[u8; CHUNK]) -> Self::Codes {
        // SAFETY: the caller guarantees the instruction set; 64 bytes are four times sixteen.
        from_fn(|j| unsafe { vld1q_u8(codes.as_ptr().add(16 * j)) })
    }

    #[inline(always)]
    unsafe fn widen(codes: Self::Codes, bias: u8) -> [Self; 2] {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            let [a, b, c, d] = codes.map(|codes| floats(signed(codes, bias)));
            let join = |a: [float32x4_t; 4], b: [float32x4_t; 4]| {
                Neon([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]])
            };
            [join(a, b), join(c, d)]
        }
    }

    #[inline(always)]
    unsafe fn halves(first: f32, second: f32) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        let (a, b) = unsafe { (vdupq_n_f32(first), vdupq_n_f32(second)) };
        Neon([a, a, a, a, b, b, b, b])
    }

    /// 16-bit products, added as 32 bits. The instruction that multiplies bytes and adds four
    /// products is missing in the first 64-bit Arm CPUs and in Rust's stable intrinsics.
    #[inline(always)]
    unsafe fn add_dot(
        mut self,
        codes: Self::Codes,
        bias: u8,
        q: *const u8,
        scales: [f32; 4],
    ) -> Self {
        // SAFETY: the caller guarantees the instruction set and a readable chunk at q. A sum of
        // four products is below 4 · 128 · 32512 < 2^24, so it is exact as a float.
        unsafe {
            for i in 0..4 {
                let u = signed(codes[i], bias);
                let (low, high) = (vmovl_s8(vget_low_s8(u)), vmovl_high_s8(u));
                let q = q.add(32 * i).cast::<i16>();
                let (a, b) = (vld1q_s16(q), vld1q_s16(q.add(8)));
                let sum = vmlal_high_s16(vmull_s16(vget_low_s16(low), vget_low_s16(a)), low, a);
                let sum =
                    vmlal_high_s16(vmlal_s16(sum, vget_low_s16(high), vget_low_s16(b)), high, b);
                self.0[i] = vfmaq_n_f32(self.0[i], vcvtq_f32_s32(sum), scales[i]);
            }
        }
        self
    }

    super::scales::scales_in_an_array!();

    #[inline(always)]
    unsafe fn place(q: &[i32; LANES], part: usize, chunk: *mut u8) {
        // SAFETY: the caller guarantees that half of a chunk is writable.
        unsafe { chunk.cast::<[i16; LANES]>().add(part).write_unaligned(q.map(|q| q as i16)) };
    }
}

/// Codes minus their bias, as signed bytes.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn signed(codes: uint8x16_t, bias: u8) -> int8x16_t {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { vreinterpretq_s8_u8(vsubq_u8(codes, vdupq_n_u8(bias))) }
}

/// Sixteen signed bytes as floats.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn floats(bytes: int8x16_t) -> [float32x4_t; 4] {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        [
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_high_s16(high)),
        ]
    }
}

/// Transposes 4 × 4 floats; the destination's rows are 32 apart.
///
/// # Safety
/// The CPU has NEON; 4 rows of 4 at multiples of `stride` are readable, 4 rows of 4 at multiples of
/// 32 writable.
#[inline(always)]
unsafe fn transpose4(src: *const f32, stride: usize, dst: *mut f32) {
    // SAFETY: the caller guarantees all rows that are read and written.
    unsafe {
        let [a, b, c, d]: [float32x4_t; 4] = from_fn(|i| vld1q_f32(src.add(i * stride)));
        let (ab0, ab1) =
            (vreinterpretq_f64_f32(vtrn1q_f32(a, b)), vreinterpretq_f64_f32(vtrn2q_f32(a, b)));
        let (cd0, cd1) =
            (vreinterpretq_f64_f32(vtrn1q_f32(c, d)), vreinterpretq_f64_f32(vtrn2q_f32(c, d)));
        let columns = [
            vtrn1q_f64(ab0, cd0),
            vtrn1q_f64(ab1, cd1),
            vtrn2q_f64(ab0, cd0),
            vtrn2q_f64(ab1, cd1),
        ];
        for (i, column) in columns.into_iter().enumerate() {
            vst1q_f32(dst.add(i * LANES), vreinterpretq_f32_f64(column));
        }
    }
}
