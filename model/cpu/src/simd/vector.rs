//! A vector of 32 floats, and kernels over it.

use super::tile_arguments::{InterleavedTile, Tile, WordTile};
use crate::format_type::FormatType;

/// Floats in a [`Vector`].
pub const LANES: usize = 32;

/// Number of codes that are unpacked and multiplied together: two blocks of 32, or a quarter of a
/// block of 256.
pub const CHUNK: usize = 64;

/// Bytes of a chunk: 64 activations rounded to 16 bits, in the order of the instruction set, and
/// sums that it needs.
pub const CHUNK_BYTES: usize = 3 * CHUNK;

/// A vector of 32 floats.
///
/// # Safety
/// Every function requires that the CPU has the instruction set of the implementing type.
/// [`Isa::run`](super::Isa::run) checks that and then enters [`Job::run`]. Pointers must be valid
/// for [`LANES`] elements; any alignment is allowed.
pub unsafe trait Vector: Copy {
    /// Rows of the matrix kernel's tile that fit in the registers.
    const TILE_ROWS: usize;

    /// One number in all lanes.
    unsafe fn splat(x: f32) -> Self;
    /// Loads from memory.
    unsafe fn load(p: *const f32) -> Self;
    /// Stores to memory.
    unsafe fn store(self, p: *mut f32);
    /// Loads f16 numbers.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Stores as f16, rounded to nearest even.
    unsafe fn store_f16(self, p: *mut u16);
    /// Loads bf16 numbers.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Loads signed bytes.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// `self + b`.
    unsafe fn add(self, b: Self) -> Self;
    /// `self − b`.
    unsafe fn sub(self, b: Self) -> Self;
    /// `self · b`.
    unsafe fn mul(self, b: Self) -> Self;
    /// `self / b`.
    unsafe fn div(self, b: Self) -> Self;
    /// `self · b + c`, with a single rounding if the CPU has FMA.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// The larger lane. If one is NaN, the lane of `b`.
    unsafe fn max(self, b: Self) -> Self;
    /// The smaller lane. If one is NaN, the lane of `b`.
    unsafe fn min(self, b: Self) -> Self;
    /// The nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// 2 to the power of the lane, an integer from −126 to 127.
    unsafe fn pow2(self) -> Self;
    /// Sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// The largest lane. NaN lanes may be ignored.
    unsafe fn largest(self) -> f32;
    /// Writes the transpose of a 32 × 32 tile: `dst[j · 32 + i] = src[i · stride + j]`.
    ///
    /// `src` must be valid for rows of 32 elements at each multiple of `stride` below `32 ·
    /// stride`, `dst` for 1024 elements.
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32);

    /// [`Tile::run`] as a separate function: if it is inlined into a larger one, the compiler
    /// spills its registers.
    ///
    /// The tile's requirements hold for `M` rows.
    unsafe fn tile<const M: usize>(tile: Tile);

    /// 64 codes, each in a byte.
    type Codes: Copy;

    /// Converts an f16 number.
    unsafe fn half(bits: u16) -> f32;

    /// Unpacks 64 codes in order, made unsigned as described at
    /// [`Unsigned`](super::codes::Unsigned). For formats with blocks of 32: all codes of `first`,
    /// then all of `second`. For blocks of 256: chunk `C` of `first`.
    ///
    /// Each pointer must be valid for a block.
    unsafe fn codes<F: FormatType, const C: usize>(
        first: *const u8,
        second: *const u8,
    ) -> Self::Codes;

    /// Loads 64 codes that are already unpacked.
    unsafe fn load_codes(codes: &[u8; CHUNK]) -> Self::Codes;

    /// `code − bias` as floats: the first 32 and the second 32.
    unsafe fn widen(codes: Self::Codes, bias: u8) -> [Self; 2];

    /// `first` in the first 16 lanes, `second` in the others.
    unsafe fn halves(first: f32, second: f32) -> Self;

    /// Adds products of `code − bias` and activations, times a scale per 16 of them, to some lanes
    /// of `self`. Only the sum of all lanes is defined. The bias is the bias of the codes' format,
    /// a power of two or 0.
    ///
    /// `q` must be valid for a chunk that [`Vector::place`] wrote.
    unsafe fn add_dot(self, codes: Self::Codes, bias: u8, q: *const u8, scales: [f32; 4]) -> Self;

    /// Prefetches the cache line at `p`, which may be any address.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    /// Scales of eight adjacent blocks of 32 codes, which are four chunks.
    type Scales: Copy;

    /// Loads eight f16 numbers, `step` bytes apart, as scales.
    ///
    /// The two bytes after each number must be readable as well.
    unsafe fn scales(p: *const u8, step: usize) -> Self::Scales;

    /// Eight bytes, the lowest first, times `by`, as scales.
    unsafe fn scales_of(bytes: u64, by: f32) -> Self::Scales;

    /// Products of scales and eight floats.
    unsafe fn scaled(scales: Self::Scales, by: *const f32) -> Self::Scales;

    /// Adds products of scales and eight floats to some lanes of `self`.
    unsafe fn add_scaled(self, scales: Self::Scales, by: *const f32) -> Self;

    /// Like [`Vector::add_dot`], for chunk `C` of four, with the two scales of the chunk.
    unsafe fn add_chunk<const C: usize>(
        self,
        codes: Self::Codes,
        bias: u8,
        q: *const u8,
        scales: Self::Scales,
    ) -> Self;

    /// Writes the first (`part` 0) or second (1) half of a chunk of activations, integers within
    /// ±32512.
    ///
    /// `chunk` must be valid for [`CHUNK_BYTES`].
    unsafe fn place(q: &[i32; LANES], part: usize, chunk: *mut u8);

    /// Rounds 32 elements to 16-bit integers and writes them as [`Vector::place`] does. Returns the
    /// scale and the sums of each group of 16.
    ///
    /// `x` must be valid for 32 elements, `chunk` for [`CHUNK_BYTES`].
    #[inline(always)]
    unsafe fn round_chunk(x: *const f32, part: usize, chunk: *mut u8) -> (f32, [f32; 2]) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            let (scale, q) = round::<Self>(x);
            Self::place(&q, part, chunk);
            (scale, sums(&q, scale))
        }
    }

    /// Like [`Vector::round_chunk`], but the integers are written in plain order.
    ///
    /// `to` must be valid for 32 integers, which are 16 floats.
    #[inline(always)]
    unsafe fn round_words(x: *const f32, to: *mut f32) -> (f32, [f32; 2]) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            let (scale, q) = round::<Self>(x);
            to.cast::<[i16; LANES]>().write_unaligned(q.map(|q| q as i16));
            (scale, sums(&q, scale))
        }
    }

    /// e to the power of the lane, within 2e-7 of the result. Below −87.3 the result is 0 (1e-38),
    /// and it is at most 2e38. NaN stays NaN.
    ///
    /// `x = n · ln 2 + r` with `|r| ≤ 0.35`, and the Taylor series of `e^r` to the seventh power,
    /// whose next term is 5e-9.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: the caller guarantees the instruction set, which is all that these calls need.
        unsafe {
            let s = |x: f32| Self::splat(x);
            let x = s(88.3).min(s(-87.3).max(self));
            let n = x.mul(s(std::f32::consts::LOG2_E)).round();
            // ln 2 in two parts. The first has few bits, so that its product with n is exact.
            let r = n.fma(s(-0.693_359_4), x);
            let r = n.fma(s(2.121_944_4e-4), r);
            let mut p = s(1.0 / 5040.0);
            for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
                p = p.fma(r, s(c));
            }
            p.mul(n.pow2())
        }
    }
}

/// A vector on a CPU that multiplies int16 and adds them in pairs with one instruction.
///
/// # Safety
/// The requirements of [`Vector`].
pub unsafe trait WordKernel: Vector {
    /// Writes `code − bias` of 64 codes as 16-bit integers.
    ///
    /// `to` must be valid for 64 integers, which are 32 floats.
    unsafe fn store_words(codes: Self::Codes, bias: u8, to: *mut f32);

    /// Products of `M` tokens with a panel, in groups of `G` columns. This is a separate function.
    ///
    /// The tile's requirements hold for `M` tokens.
    unsafe fn word_tile<const M: usize, const G: usize>(tile: WordTile);

    /// Rounds 32 elements as [`Vector::round_chunk`] does, into a unit of
    /// [`interleaved`](super::interleaved).
    ///
    /// `x` must be valid for 32 elements, `to` for a unit.
    unsafe fn round_unit(x: *const f32, to: *mut f32);

    /// Products of `M` tokens with sixteen interleaved rows, as a separate function. Codes have 8
    /// bits if `WIDE`, otherwise 4. They are table indices if `TABLE`. There are offsets if
    /// `OFFSET`.
    ///
    /// The tile's requirements hold for `M` tokens.
    unsafe fn interleaved_tile<
        const M: usize,
        const WIDE: bool,
        const OFFSET: bool,
        const TABLE: bool,
    >(
        tile: InterleavedTile,
    );
}

/// A kernel: its data, and its computation with any vector.
pub trait Job {
    /// The result.
    type Out;

    /// Does the work.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, and the job's requirements on its fields hold.
    unsafe fn run<V: Vector>(self) -> Self::Out;
}

/// A kernel that needs [`WordKernel`].
pub trait WordJob {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, and the job's requirements on its fields hold.
    unsafe fn run<V: WordKernel>(self);
}

/// The largest integer whose high byte, rounded, fits in a signed byte.
pub const LARGEST: f32 = 32512.0;

/// Rounds 32 elements to integers, with any vector. Returns the scale and the integers.
///
/// # Safety
/// The requirements of [`Job::run`]; `x` has 32 elements.
#[inline(always)]
pub unsafe fn round<V: Vector>(x: *const f32) -> (f32, [i32; LANES]) {
    let mut rounded = [0.0f32; LANES];
    // SAFETY: `x` has 32 elements, by the caller's guarantee; `rounded` has 32, too.
    unsafe {
        let v = V::load(x);
        let largest = v.max(V::splat(0.0).sub(v)).largest();
        // NaN if an element is infinite or NaN, otherwise 0, so that rounding does not hide it.
        let poison = v.mul(V::splat(0.0)).sum();
        v.mul(V::splat(inverse(largest))).round().store(rounded.as_mut_ptr());
        (largest / LARGEST + poison, rounded.map(|r| r as i32))
    }
}

/// The factor that makes the largest element the largest integer.
#[inline(always)]
pub fn inverse(largest: f32) -> f32 {
    let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
    // The factor is infinite for a block of subnormals. They become zero.
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The scaled sums of each half.
#[inline(always)]
pub fn sums(q: &[i32; LANES], scale: f32) -> [f32; 2] {
    let (first, second) = q.split_at(LANES / 2);
    [first.iter().sum::<i32>() as f32 * scale, second.iter().sum::<i32>() as f32 * scale]
}
