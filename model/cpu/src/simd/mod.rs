//! One vector of 32 floats on every processor: two AVX-512 registers, four AVX2 ones, eight of
//! NEON, or an array. Kernels are written once over [`Vector`] and compiled for each instruction
//! set; which one runs is decided once, at run time, by [`Isa::best`].
//!
//! The pattern: a kernel is a [`Job`] whose `run` is inlined into a function that carries the
//! `target_feature` attribute, so the intrinsics in it become instructions, not calls. 32 lanes
//! because that is a row of registers in the matrix kernel's tile, and the length of a block of
//! most weight formats.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx_probe;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_codes;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_beside;
#[cfg(target_arch = "x86_64")]
mod avx512_codes;
#[cfg(target_arch = "x86_64")]
mod eight;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_codes;
mod plain;
#[cfg(test)]
mod tests;

use super::beside::BesideTile;
use super::gemm::Tile;
use super::quantise::{round, sums};
use super::unpack::Described;
use super::words::WordTile;
use kjit_formats::format::{BlockFormat, Plane, Value};

/// Floats in a [`Vector`].
pub const LANES: usize = 32;

/// Codes that are unpacked and multiplied at a time: two blocks of 32, or a quarter of a block of
/// 256.
pub const CHUNK: usize = 64;

/// Bytes of 64 activations rounded to 16 bits, in each instruction set's own order, and what else
/// it wants to know of them.
pub const CHUNK_BYTES: usize = 3 * CHUNK;

/// 32 floats.
///
/// # Safety
/// Every function may be called only where the processor has the instruction set of the
/// implementing type; that is inside [`Job::run`], which [`Isa::run`] enters after checking.
/// Pointers must be valid for [`LANES`] elements; no alignment is asked for.
pub unsafe trait Vector: Copy {
    /// Rows of the matrix kernel's tile that fit in the registers with two more vectors.
    const TILE_ROWS: usize;

    /// All lanes the same.
    unsafe fn splat(x: f32) -> Self;
    /// From memory.
    unsafe fn load(p: *const f32) -> Self;
    /// To memory.
    unsafe fn store(self, p: *mut f32);
    /// From IEEE halves.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// To IEEE halves, to nearest even.
    unsafe fn store_f16(self, p: *mut u16);
    /// From the upper halves of singles.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// From signed bytes.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// `self + b`.
    unsafe fn add(self, b: Self) -> Self;
    /// `self − b`.
    unsafe fn sub(self, b: Self) -> Self;
    /// `self · b`.
    unsafe fn mul(self, b: Self) -> Self;
    /// `self / b`.
    unsafe fn div(self, b: Self) -> Self;
    /// `self · b + c`; rounded once where the processor can.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// The larger; `b` where one is NaN.
    unsafe fn max(self, b: Self) -> Self;
    /// The smaller; `b` where one is NaN.
    unsafe fn min(self, b: Self) -> Self;
    /// The nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// 2 to the lane, which holds an integer from −126 to 127.
    unsafe fn pow2(self) -> Self;
    /// Sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// The largest lane; a NaN lane may be passed over.
    unsafe fn largest(self) -> f32;
    /// Writes the transpose of a 32 × 32 tile: `dst[j · 32 + i] = src[i · stride + j]`.
    ///
    /// `src` must be valid for rows of 32 elements at each multiple of `stride` below `32 ·
    /// stride`, `dst` for 1024 elements.
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32);

    /// [`Tile::run`], in a function of its own: inlined into a larger one, the compiler spills its
    /// registers.
    ///
    /// What the tile asks for holds for `M` rows.
    unsafe fn tile<const M: usize>(tile: Tile);

    /// 64 codes, each in a byte.
    type Codes: Copy;

    /// Converts an IEEE half.
    unsafe fn half(bits: u16) -> f32;

    /// Unpacks 64 codes in order, made unsigned as [`Unsigned`] says: of a format with blocks of
    /// 32, all of `first` and then all of `second`; of a format with blocks of 256, chunk `C` of
    /// `first`.
    ///
    /// The pointers must be valid for a block each.
    unsafe fn codes<F: Described, const C: usize>(
        first: *const u8,
        second: *const u8,
    ) -> Self::Codes;

    /// 64 codes that were unpacked elsewhere.
    unsafe fn load_codes(codes: &[u8; CHUNK]) -> Self::Codes;

    /// `code − bias` as floats, the first 32 and the second.
    unsafe fn widen(codes: Self::Codes, bias: u8) -> [Self; 2];

    /// The first 16 lanes one number, the others another.
    unsafe fn halves(first: f32, second: f32) -> Self;

    /// Adds products of `code − bias` and activations, times a scale for each 16 of them, to some
    /// lanes of `self`: what counts is the sum of all. The bias is a power of two or 0, the one of
    /// the codes' format.
    ///
    /// `q` must be valid for a chunk whose halves [`Vector::place`] wrote.
    unsafe fn add_dot(self, codes: Self::Codes, bias: u8, q: *const u8, scales: [f32; 4]) -> Self;

    /// Asks for the line of the cache at `p`, where there may be nothing.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    /// A scale for each of eight successive blocks of 32 codes, which are four chunks.
    type Scales: Copy;

    /// Eight IEEE halves, `step` bytes apart, as scales.
    ///
    /// Each may be read with the two bytes behind it.
    unsafe fn scales(p: *const u8, step: usize) -> Self::Scales;

    /// Eight bytes, the lowest first, times `by`, as scales.
    unsafe fn scales_of(bytes: u64, by: f32) -> Self::Scales;

    /// Each times one of eight floats.
    unsafe fn scaled(scales: Self::Scales, by: *const f32) -> Self::Scales;

    /// Adds products of scales and eight floats to some lanes of `self`.
    unsafe fn add_scaled(self, scales: Self::Scales, by: *const f32) -> Self;

    /// [`Vector::add_dot`] of chunk `C` of four, with its two scales.
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

    /// Rounds 32 elements to integers of 16 bits and writes them as [`Vector::place`] does; their
    /// scale, and the sums of each sixteen.
    ///
    /// `x` must be valid for 32 elements, `chunk` for [`CHUNK_BYTES`].
    #[inline(always)]
    unsafe fn round_chunk(x: *const f32, part: usize, chunk: *mut u8) -> (f32, [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, q) = round::<Self>(x);
            Self::place(&q, part, chunk);
            (scale, sums(&q, scale))
        }
    }

    /// The same, in order.
    ///
    /// `to` must be valid for 32 integers, which are 16 floats.
    #[inline(always)]
    unsafe fn round_words(x: *const f32, to: *mut f32) -> (f32, [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, q) = round::<Self>(x);
            to.cast::<[i16; LANES]>().write_unaligned(q.map(|q| q as i16));
            (scale, sums(&q, scale))
        }
    }

    /// e to the lane, to within 2e-7 of the result; 0 (1e-38) below −87.3, and no more than 2e38.
    /// NaN stays NaN.
    ///
    /// `x = n · ln 2 + r` with `|r| ≤ 0.35`, and the Taylor series of `e^r` to the seventh power,
    /// whose next term is 5e-9.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        // SAFETY: the caller's promise is that of each call here.
        unsafe {
            let s = |x: f32| Self::splat(x);
            let x = s(88.3).min(s(-87.3).max(self));
            let n = x.mul(s(std::f32::consts::LOG2_E)).round();
            // ln 2 in two parts: the first has few bits, so that n times it is exact.
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

/// A vector whose processor multiplies integers of 16 bits and adds them by pairs in one
/// instruction.
///
/// # Safety
/// As [`Vector`].
pub unsafe trait Words: Vector {
    /// Writes `code − bias` of 64 codes as integers of 16 bits.
    ///
    /// `to` must be valid for 64 integers, which are 32 floats.
    unsafe fn store_words(codes: Self::Codes, bias: u8, to: *mut f32);

    /// Products of `M` tokens with a panel, groups of `G` columns, in a function of its own.
    ///
    /// What the tile asks for holds for `M` tokens.
    unsafe fn word_tile<const M: usize, const G: usize>(tile: WordTile);

    /// Rounds 32 elements as [`Vector::round_chunk`] does, into a unit of
    /// [`beside`](super::beside).
    ///
    /// `x` must be valid for 32 elements, `to` for a unit.
    unsafe fn round_unit(x: *const f32, to: *mut f32);

    /// Products of `M` tokens with sixteen rows side by side, in a function of its own: codes of 8
    /// bits if `WIDE`, else of 4, which stand for what is in a table if `TABLE`; with offsets if
    /// `OFFSET`.
    ///
    /// What the tile asks for holds for `M` tokens.
    unsafe fn beside_tile<const M: usize, const WIDE: bool, const OFFSET: bool, const TABLE: bool>(
        tile: BesideTile,
    );
}

/// Rows of a tile: of tokens, or of the matrix.
pub const TILE_ROWS: usize = 16;

/// A vector whose processor multiplies tiles of halves.
///
/// # Safety
/// As [`Vector`]; and all between [`Tiles::begin`] and [`Tiles::end`].
pub unsafe trait Tiles: Vector {
    /// 32 floats, each as the sum of two of bf16.
    ///
    /// `x` must be valid for 32 elements, `high` and `low` for as many.
    unsafe fn split(x: *const f32, high: *mut u16, low: *mut u16);

    /// 64 codes less their bias, times the scale of their 16, as two signed bytes each: `256 · high
    /// + low`.
    ///
    /// `high` and `low` must each be valid for 64 bytes; products fit 16 bits.
    unsafe fn scaled_bytes(
        codes: Self::Codes,
        bias: i16,
        scales: &[i16; 4],
        high: *mut u8,
        low: *mut u8,
    );

    /// The two bytes of 64 codes of 4 bits, looked up: of the first 32 in one pair of tables, of
    /// the others in another.
    ///
    /// `high` and `low` must each be valid for 64 bytes.
    unsafe fn looked_up(
        codes: Self::Codes,
        tables: [&[[u8; 16]; 2]; 2],
        high: *mut u8,
        low: *mut u8,
    );

    /// Two rows of 32 halves, one behind the other, as 32 pairs.
    ///
    /// `from` and `to` must be valid for 64 halves.
    unsafe fn interleave(from: *const u16, to: *mut u16);

    /// Sets this thread's tiles up.
    unsafe fn begin();

    /// Gives them back.
    unsafe fn end();

    /// Adds the products of 32 rows with 16 or 32 tokens.
    unsafe fn tile_block(block: TileBlock);

    /// Adds the products of 32 rows with 32 tokens in a block of 256 columns.
    unsafe fn byte_block(block: ByteBlock);

    /// Asks for the line of memory at this place, which need not be there.
    fn soon(line: *const u8);

    /// Asks for a line that will be written: other threads have it, who read what it was.
    fn soon_written(line: *mut u8);
}

/// Columns of a [`TileBlock`]'s unit: two tiles.
pub const TILE_UNIT: usize = 64;

/// `c[r][t] += Σ_k w₁ x₁ + w₂ x₁ + w₁ x₂` for 32 rows and 32 tokens. Lengths are in floats, in
/// which halves are two.
#[derive(Clone, Copy)]
pub struct TileBlock {
    /// Columns by 64; not 0.
    pub units: usize,
    /// Four tiles for each unit: 16 rows of 32 first halves, of 32 second ones, and the same of the
    /// next 32 columns.
    pub w: *const f32,
    /// To the next 16 rows.
    pub w_next: usize,
    /// For each unit, by pairs of columns, 32 tokens' first halves, and then the second ones.
    pub x: *const f32,
    /// Of the block that follows; only a hint.
    pub x_soon: *const f32,
    /// Only the first 16 tokens are wanted; the others' sums are anything then.
    pub half: bool,
    /// Sums: 32 rows of 32 tokens.
    pub c: *mut f32,
}

/// `c[r][t] += s[r] d[t] (256 Σ a h + Σ (a l + b h))` of signed bytes, for 32 rows and 32 tokens of
/// 256 columns.
#[derive(Clone, Copy)]
pub struct ByteBlock {
    /// For each 16 rows, by 64 columns: a tile of `a`, and one of `b`.
    pub w: *const f32,
    /// Of 32 rows.
    pub w_scales: *const f32,
    /// By 128 columns, in words of four: 32 words of 32 tokens of `h`, and as many of `l`.
    pub x: *const f32,
    /// Of 32 tokens.
    pub x_scales: *const f32,
    /// Of the block that follows, null if it is the same; only a hint.
    pub x_soon: *const f32,
    /// Only the first 16 tokens are wanted; the others' sums are anything then.
    pub half: bool,
    /// Four tiles, on whole lines.
    pub room: *mut f32,
    /// Sums: 32 rows of 32 tokens.
    pub c: *mut f32,
}

/// A kernel that needs [`Tiles`].
pub trait TileJob {
    /// Does the work.
    ///
    /// # Safety
    /// The processor has `V`'s instruction set, and whatever the job itself asks of its fields
    /// holds.
    unsafe fn run<V: Tiles>(self);
}

/// How a format's codes become unsigned bytes `u`, so that one instruction can multiply them with
/// signed ones: the value before scaling is `u − bias`.
#[derive(Clone, Copy)]
pub struct Unsigned {
    /// Subtracted.
    pub bias: u8,
    /// `u = code ^ flip`.
    pub flip: u8,
    /// `u = code << up`.
    pub up: u32,
    /// `u = table[code]`, if the format has a table.
    pub table: Option<[u8; 16]>,
}

/// [`Unsigned`] of a format.
pub const fn unsigned(value: Value) -> Unsigned {
    let u = made_unsigned(value);
    // What AVX-512 does with a bias is right for these alone.
    assert!(u.bias == 0 || u.bias.is_power_of_two(), "a bias is a power of two or 0");
    u
}

const fn made_unsigned(value: Value) -> Unsigned {
    match value {
        Value::Biased(bias) => Unsigned { bias: bias as u8, flip: 0, up: 0, table: None },
        Value::Signed => Unsigned { bias: 128, flip: 128, up: 0, table: None },
        Value::Doubled(bias) => Unsigned { bias: bias as u8, flip: 0, up: 1, table: None },
        Value::Ternary => Unsigned { bias: 1, flip: 0, up: 0, table: None },
        Value::Codebook(book) => match book.bias() {
            0 => Unsigned { bias: 128, flip: 128, up: 0, table: None },
            bias => Unsigned { bias, flip: 0, up: 0, table: None },
        },
        Value::Table(signed) => {
            let mut table = [0; 16];
            let mut i = 0;
            while i < 16 {
                table[i] = (signed[i] as i16 + 128) as u8;
                i += 1;
            }
            Unsigned { bias: 128, flip: 0, up: 0, table: Some(table) }
        }
    }
}

/// Where 16 codes of a plane whose runs are at least 16 long begin: in the second block instead of
/// the first, byte and shift.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub second: bool,
    pub at: usize,
    pub shift: u32,
}

/// The four pieces of chunk `c` of a plane.
pub const fn pieces(f: &BlockFormat, plane: &Plane, c: usize) -> [Piece; 4] {
    let mut pieces = [Piece { second: false, at: 0, shift: 0 }; 4];
    let mut j = 0;
    while j < 4 {
        let code = if f.elems == 32 { j % 2 * 16 } else { c * CHUNK + j * 16 };
        let (at, shift) = plane.locate(code);
        pieces[j] = Piece { second: f.elems == 32 && j >= 2, at, shift };
        j += 1;
    }
    pieces
}

/// The pieces of chunk `c` of plane `p` of a format; of its first plane, where there is no such
/// one.
pub const fn plane_pieces(f: &BlockFormat, p: usize, c: usize) -> [Piece; 4] {
    pieces(f, &f.planes[if p < f.planes.len() { p } else { 0 }], c)
}

/// [`Vector::Scales`] and what is done with them, for a vector that has nothing better than an
/// array.
macro_rules! scales_in_an_array {
    () => {
        type Scales = [f32; 8];

        #[inline(always)]
        unsafe fn scales(p: *const u8, step: usize) -> [f32; 8] {
            // SAFETY: eight halves, says the caller.
            std::array::from_fn(|i| unsafe {
                Self::half(u16::from_le_bytes(p.add(i * step).cast::<[u8; 2]>().read()))
            })
        }

        #[inline(always)]
        unsafe fn scales_of(bytes: u64, by: f32) -> [f32; 8] {
            bytes.to_le_bytes().map(|b| by * f32::from(b))
        }

        #[inline(always)]
        unsafe fn scaled(scales: [f32; 8], by: *const f32) -> [f32; 8] {
            // SAFETY: eight floats, says the caller.
            let by = unsafe { by.cast::<[f32; 8]>().read() };
            std::array::from_fn(|i| scales[i] * by[i])
        }

        #[inline(always)]
        unsafe fn add_scaled(self, scales: [f32; 8], by: *const f32) -> Self {
            // SAFETY: the caller's promise; a vector has 32 lanes.
            unsafe {
                let mut products = [0.0; $crate::simd::LANES];
                products[..8].copy_from_slice(&Self::scaled(scales, by));
                self.add(Self::load(products.as_ptr()))
            }
        }

        #[inline(always)]
        unsafe fn add_chunk<const C: usize>(
            self,
            codes: Self::Codes,
            bias: u8,
            q: *const u8,
            scales: [f32; 8],
        ) -> Self {
            let (a, b) = (scales[2 * C], scales[2 * C + 1]);
            // SAFETY: the caller's promise.
            unsafe { self.add_dot(codes, bias, q, [a, a, b, b]) }
        }
    };
}

use scales_in_an_array;

/// A kernel: what it works on, and how with any vector.
pub trait Job {
    /// What it gives back.
    type Out;

    /// Does the work.
    ///
    /// # Safety
    /// The processor has `V`'s instruction set, and whatever the job itself asks of its fields
    /// holds.
    unsafe fn run<V: Vector>(self) -> Self::Out;
}

/// A kernel that needs [`Words`].
pub trait WordJob {
    /// Does the work.
    ///
    /// # Safety
    /// The processor has `V`'s instruction set, and whatever the job itself asks of its fields
    /// holds.
    unsafe fn run<V: Words>(self);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// [`Kind::Avx512`] and tiles.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Tiles as their instructions are described, for the tests.
    #[cfg(test)]
    PlainTiles,
}

/// An instruction set that this processor has. It can be had only from [`Isa::available`] and
/// [`Isa::best`], which ask the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

impl Isa {
    /// All that this processor has, the plain one first, the best one last.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "other processors have the plain one alone")]
        let mut all = vec![Isa(Kind::Plain)];
        #[cfg(target_arch = "x86_64")]
        {
            if avx2::present() {
                all.push(Isa(Kind::Avx2));
            }
            if avx512::present() {
                all.push(Isa(Kind::Avx512));
            }
            #[cfg(target_os = "linux")]
            if amx_probe::present() {
                all.push(Isa(Kind::Amx));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if neon::present() {
            all.push(Isa(Kind::Neon));
        }
        all
    }

    /// Those that have tiles: described, and this processor's, if it has them.
    #[cfg(test)]
    pub fn with_tiles() -> Vec<Isa> {
        let here = Isa::available().into_iter().filter(|isa| isa.has_tiles());
        std::iter::once(Isa(Kind::PlainTiles)).chain(here).collect()
    }

    /// The best that this processor has.
    pub fn best() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa(Kind::Plain))
    }

    /// `plain`, `avx2`, `avx512`, `amx` or `neon`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Plain => "plain",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(test)]
            Kind::PlainTiles => "plain tiles",
        }
    }

    /// How many bytes before it reads them a product with few tokens asks for its weights; 0: that
    /// is left to the processor.
    ///
    /// A core of a Xeon (Sapphire Rapids, rented, 2026-11-24) reads what its loads wait for at 5.5
    /// to 6 GB/s and, asked 4 KB before, at 10, which is all that it has: 64 weights of Q4_1 take
    /// 7.2 and 4.1 ns, of Q4_K 6.3 and 3.6, 8 KB no less. An EPYC sees the stream by itself: 3.2
    /// ns, and 4.1 if it is asked.
    pub fn ahead(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => avx512::ahead(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => avx512::ahead(),
            _ => 0,
        }
    }

    /// Whether [`Isa::run_words`] does anything.
    pub fn has_words(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512 || self.has_tiles();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether [`Isa::run_tiles`] does anything.
    pub fn has_tiles(self) -> bool {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => true,
            #[cfg(test)]
            Kind::PlainTiles => true,
            _ => false,
        }
    }

    /// Runs a kernel of tiles, where [`Isa::has_tiles`].
    ///
    /// # Safety
    /// What the job asks of its fields holds.
    #[inline]
    pub unsafe fn run_tiles<J: TileJob>(self, job: J) {
        match self.0 {
            // SAFETY: an `Isa` of this kind exists only where `present` said so; the rest is the
            // caller's promise.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { amx::enter(job) },
            // SAFETY: as of the plain vector.
            #[cfg(test)]
            Kind::PlainTiles => unsafe { job.run::<plain::Plain>() },
            _ => drop(job),
        }
    }

    /// Runs a kernel of integers of 16 bits, where [`Isa::has_words`].
    ///
    /// # Safety
    /// What the job asks of its fields holds.
    #[inline]
    pub unsafe fn run_words<J: WordJob>(self, job: J) {
        match self.0 {
            // SAFETY: an `Isa` of this kind exists only where `present` said so; the rest is the
            // caller's promise.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::enter_words(job) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { avx512::enter_words(job) },
            _ => drop(job),
        }
    }

    /// Runs a kernel with this instruction set.
    ///
    /// # Safety
    /// What the job asks of its fields holds.
    #[inline]
    pub unsafe fn run<J: Job>(self, job: J) -> J::Out {
        match self.0 {
            // SAFETY: the plain vector asks nothing of the processor; the rest is the caller's
            // promise.
            Kind::Plain => unsafe { plain::enter(job) },
            // SAFETY: as above.
            #[cfg(test)]
            Kind::PlainTiles => unsafe { plain::enter(job) },
            // SAFETY: an `Isa` of this kind exists only where `present` said so; the rest is the
            // caller's promise.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::enter(job) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::enter(job) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { avx512::enter(job) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::enter(job) },
        }
    }
}
