//! A vector of 32 floats on every CPU: two AVX-512 registers, four AVX2, eight NEON, or an array.
//! Kernels are written once over [`Vector`] and compiled for each instruction set; [`Isa::best`]
//! chooses at run time.
//!
//! A kernel is a [`Job`] whose `run` is inlined into a function with the `target_feature`
//! attribute, so that its intrinsics become instructions instead of calls. 32 lanes are a row of
//! registers in the matrix kernel's tile, and the block length of most weight formats.

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
mod avx512_codes;
#[cfg(target_arch = "x86_64")]
mod avx512_interleaved;
#[cfg(target_arch = "x86_64")]
mod eight;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_codes;
mod plain;
#[cfg(test)]
mod tests;

use super::gemm::Tile;
use super::interleaved::InterleavedTile;
use super::quantise::{round, sums};
use super::unpack::Described;
use super::words::WordTile;
use kjit_formats::format::{BlockFormat, Plane, Value};

/// Floats in a [`Vector`].
pub const LANES: usize = 32;

/// Codes that are unpacked and multiplied at once: two blocks of 32, or a quarter of a block of
/// 256.
pub const CHUNK: usize = 64;

/// Bytes of a chunk: 64 activations rounded to 16 bits, in the order of the instruction set, and
/// sums that it needs.
pub const CHUNK_BYTES: usize = 3 * CHUNK;

/// A vector of 32 floats.
///
/// # Safety
/// Every function requires that the CPU has the instruction set of the implementing type.
/// [`Isa::run`] checks that and then enters [`Job::run`]. Pointers must be valid for [`LANES`]
/// elements; any alignment is allowed.
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
    /// The larger lane; that of `b` if one is NaN.
    unsafe fn max(self, b: Self) -> Self;
    /// The smaller lane; that of `b` if one is NaN.
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

    /// [`Tile::run`] in a function of its own: inlined into a larger one, the compiler spills its
    /// registers.
    ///
    /// The tile's requirements hold for `M` rows.
    unsafe fn tile<const M: usize>(tile: Tile);

    /// 64 codes, each in a byte.
    type Codes: Copy;

    /// Converts an f16 number.
    unsafe fn half(bits: u16) -> f32;

    /// Unpacks 64 codes in order, made unsigned as [`Unsigned`] describes. For formats with blocks
    /// of 32: all codes of `first`, then all of `second`. For blocks of 256: chunk `C` of `first`.
    ///
    /// Each pointer must be valid for a block.
    unsafe fn codes<F: Described, const C: usize>(
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
    /// of `self`; only the sum of all lanes is defined. The bias is that of the codes' format, a
    /// power of two or 0.
    ///
    /// `q` must be valid for a chunk that [`Vector::place`] wrote.
    unsafe fn add_dot(self, codes: Self::Codes, bias: u8, q: *const u8, scales: [f32; 4]) -> Self;

    /// Prefetches the cache line at `p`, which may be any address.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    /// Scales of eight successive blocks of 32 codes, which are four chunks.
    type Scales: Copy;

    /// Loads eight f16 numbers, `step` bytes apart, as scales.
    ///
    /// The two bytes after each must be readable, too.
    unsafe fn scales(p: *const u8, step: usize) -> Self::Scales;

    /// Eight bytes, the lowest first, times `by`, as scales.
    unsafe fn scales_of(bytes: u64, by: f32) -> Self::Scales;

    /// Products of scales and eight floats.
    unsafe fn scaled(scales: Self::Scales, by: *const f32) -> Self::Scales;

    /// Adds products of scales and eight floats to some lanes of `self`.
    unsafe fn add_scaled(self, scales: Self::Scales, by: *const f32) -> Self;

    /// [`Vector::add_dot`] of chunk `C` of four, with the chunk's two scales.
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
    /// scale and the sums of each sixteen.
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

    /// [`Vector::round_chunk`], but the integers are written in plain order.
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

/// A vector on a CPU that multiplies 16-bit integers and adds them in pairs with one instruction.
///
/// # Safety
/// The requirements of [`Vector`].
pub unsafe trait Words: Vector {
    /// Writes `code − bias` of 64 codes as 16-bit integers.
    ///
    /// `to` must be valid for 64 integers, which are 32 floats.
    unsafe fn store_words(codes: Self::Codes, bias: u8, to: *mut f32);

    /// Products of `M` tokens with a panel, in groups of `G` columns, in a function of its own.
    ///
    /// The tile's requirements hold for `M` tokens.
    unsafe fn word_tile<const M: usize, const G: usize>(tile: WordTile);

    /// Rounds 32 elements as [`Vector::round_chunk`] does, into a unit of
    /// [`interleaved`](super::interleaved).
    ///
    /// `x` must be valid for 32 elements, `to` for a unit.
    unsafe fn round_unit(x: *const f32, to: *mut f32);

    /// Products of `M` tokens with sixteen interleaved rows, in a function of its own. Codes have 8
    /// bits if `WIDE`, else 4; they are table indices if `TABLE`; there are offsets if `OFFSET`.
    ///
    /// The tile's requirements hold for `M` tokens.
    unsafe fn beside_tile<const M: usize, const WIDE: bool, const OFFSET: bool, const TABLE: bool>(
        tile: InterleavedTile,
    );
}

/// Rows of a hardware tile, of tokens or of the matrix.
pub const TILE_ROWS: usize = 16;

/// A vector on a CPU that multiplies tiles (AMX).
///
/// # Safety
/// The requirements of [`Vector`]. Calls on tiles must be between [`Tiles::begin`] and
/// [`Tiles::end`].
pub unsafe trait Tiles: Vector {
    /// Splits 32 floats into the sum of two bf16 numbers each.
    ///
    /// `x` must be valid for 32 elements, `high` and `low` for as many.
    unsafe fn split(x: *const f32, high: *mut u16, low: *mut u16);

    /// 64 codes minus their bias, times the scale of their 16, as two signed bytes each: `256 ·
    /// high + low`.
    ///
    /// `high` and `low` must each be valid for 64 bytes. The products must fit 16 bits.
    unsafe fn scaled_bytes(
        codes: Self::Codes,
        bias: i16,
        scales: &[i16; 4],
        high: *mut u8,
        low: *mut u8,
    );

    /// Looks up the two bytes of 64 4-bit codes: the first 32 in one pair of tables, the others in
    /// another.
    ///
    /// `high` and `low` must each be valid for 64 bytes.
    unsafe fn looked_up(
        codes: Self::Codes,
        tables: [&[[u8; 16]; 2]; 2],
        high: *mut u8,
        low: *mut u8,
    );

    /// Interleaves two rows of 32 bf16 numbers to 32 pairs.
    ///
    /// `from` and `to` must be valid for 64 numbers.
    unsafe fn interleave(from: *const u16, to: *mut u16);

    /// Sets up this thread's tiles.
    unsafe fn begin();

    /// Releases this thread's tiles.
    unsafe fn end();

    /// Adds the products of 32 rows with 16 or 32 tokens.
    unsafe fn tile_block(block: TileBlock);

    /// Adds the products of 32 rows with 32 tokens in a block of 256 columns.
    unsafe fn byte_block(block: ByteBlock);

    /// Prefetches a cache line for reading, at any address.
    fn soon(line: *const u8);

    /// Prefetches a line for writing, since other threads have read copies of it.
    fn prefetch_written(line: *mut u8);
}

/// Columns of a [`TileBlock`]'s unit: two tiles.
pub const TILE_UNIT: usize = 64;

/// `c[r][t] += Σ_k w₁ x₁ + w₂ x₁ + w₁ x₂` for 32 rows and 32 tokens. Lengths are in floats; a float
/// holds two bf16 numbers.
#[derive(Clone, Copy)]
pub struct TileBlock {
    /// Columns / 64; not 0.
    pub units: usize,
    /// Four tiles per unit: 16 rows of 32 high halves, of 32 low halves, and both for the next 32
    /// columns.
    pub w: *const f32,
    /// Distance to the next 16 rows.
    pub w_next: usize,
    /// Per unit, by pairs of columns: the high halves of 32 tokens, then the low halves.
    pub x: *const f32,
    /// `x` of the next block; a prefetch hint.
    pub prefetch_x: *const f32,
    /// Whether only the first 16 tokens are needed. The sums of the others are then undefined.
    pub half: bool,
    /// Sums: 32 rows of 32 tokens.
    pub c: *mut f32,
}

/// `c[r][t] += s[r] d[t] (256 Σ a h + Σ (a l + b h))` of signed bytes, for 32 rows, 32 tokens and
/// 256 columns.
#[derive(Clone, Copy)]
pub struct ByteBlock {
    /// For each 16 rows, by 64 columns: a tile of `a` and a tile of `b`.
    pub w: *const f32,
    /// Scales of 32 rows.
    pub w_scales: *const f32,
    /// By 128 columns, in words of four bytes: 32 words of 32 tokens of `h`, then of `l`.
    pub x: *const f32,
    /// Scales of 32 tokens.
    pub x_scales: *const f32,
    /// `x` of the next block, or null if it is the same; a prefetch hint.
    pub prefetch_x: *const f32,
    /// Whether only the first 16 tokens are needed. The sums of the others are then undefined.
    pub half: bool,
    /// Scratch space for four tiles, aligned to cache lines.
    pub room: *mut f32,
    /// Sums: 32 rows of 32 tokens.
    pub c: *mut f32,
}

/// A kernel that needs [`Tiles`].
pub trait TileJob {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, and the job's requirements on its fields hold.
    unsafe fn run<V: Tiles>(self);
}

/// The mapping of a format's codes to unsigned bytes `u`, so that one instruction can multiply them
/// with signed bytes. The value before scaling is `u − bias`.
#[derive(Clone, Copy)]
pub struct Unsigned {
    /// Subtracted from `u`.
    pub bias: u8,
    /// `u = code ^ flip`.
    pub flip: u8,
    /// `u = code << up`.
    pub up: u32,
    /// `u = table[code]`, if the format has a table.
    pub table: Option<[u8; 16]>,
}

/// The [`Unsigned`] of a format.
pub const fn unsigned(value: Value) -> Unsigned {
    let u = made_unsigned(value);
    // The AVX-512 code requires this.
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

/// The place of 16 codes of a plane with runs of at least 16: whether they are in the second block,
/// the byte, and the shift.
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

/// The pieces of chunk `c` of plane `p` of a format, or of its first plane if it has no plane `p`.
pub const fn plane_pieces(f: &BlockFormat, p: usize, c: usize) -> [Piece; 4] {
    pieces(f, &f.planes[if p < f.planes.len() { p } else { 0 }], c)
}

/// [`Vector::Scales`] as an array, for vectors without a faster form.
macro_rules! scales_in_an_array {
    () => {
        type Scales = [f32; 8];

        #[inline(always)]
        unsafe fn scales(p: *const u8, step: usize) -> [f32; 8] {
            // SAFETY: the caller guarantees eight f16 numbers.
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
            // SAFETY: the caller guarantees eight floats.
            let by = unsafe { by.cast::<[f32; 8]>().read() };
            std::array::from_fn(|i| scales[i] * by[i])
        }

        #[inline(always)]
        unsafe fn add_scaled(self, scales: [f32; 8], by: *const f32) -> Self {
            // SAFETY: the caller guarantees eight floats; `products` has 32 lanes.
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
            // SAFETY: this function's safety contract, which the caller upholds, covers the call.
            unsafe { self.add_dot(codes, bias, q, [a, a, b, b]) }
        }
    };
}

use scales_in_an_array;

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

/// A kernel that needs [`Words`].
pub trait WordJob {
    /// Does the work.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, and the job's requirements on its fields hold.
    unsafe fn run<V: Words>(self);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// [`Kind::Avx512`] with tiles.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// An emulation of tiles, for tests.
    #[cfg(test)]
    PlainTiles,
}

/// An instruction set that this CPU has. Only [`Isa::available`] and [`Isa::best`] create it, after
/// querying the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Kind);

impl Isa {
    /// All instruction sets of this CPU, the plain one first, the best one last.
    pub fn available() -> Vec<Isa> {
        #[allow(unused_mut, reason = "other CPUs have only the plain one")]
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

    /// Instruction sets with tiles: the emulated one, and this CPU's if it has tiles.
    #[cfg(test)]
    pub fn with_tiles() -> Vec<Isa> {
        let here = Isa::available().into_iter().filter(|isa| isa.has_tiles());
        std::iter::once(Isa(Kind::PlainTiles)).chain(here).collect()
    }

    /// The best instruction set of this CPU.
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

    /// The prefetch distance of products with few tokens, in bytes; 0: no software prefetch.
    ///
    /// A core of a Xeon (Sapphire Rapids, rented, 2026-11-24) reads at 5.5 to 6 GB/s by plain loads
    /// and at 10 GB/s, its limit, with a prefetch 4 KB ahead: 64 weights of Q4_1 take 7.2 and 4.1
    /// ns, of Q4_K 6.3 and 3.6 ns; 8 KB is no faster. An EPYC's hardware prefetcher suffices: 3.2
    /// ns, and 4.1 ns with software prefetch.
    pub fn ahead(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => avx512::ahead(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => avx512::ahead(),
            _ => 0,
        }
    }

    /// Whether [`Isa::run_words`] runs jobs.
    pub fn has_words(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Avx512 || self.has_tiles();
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether [`Isa::run_tiles`] runs jobs.
    pub fn has_tiles(self) -> bool {
        match self.0 {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => true,
            #[cfg(test)]
            Kind::PlainTiles => true,
            _ => false,
        }
    }

    /// Runs a kernel of tiles, if [`Isa::has_tiles`].
    ///
    /// # Safety
    /// The job's requirements on its fields hold.
    #[inline]
    pub unsafe fn run_tiles<J: TileJob>(self, job: J) {
        match self.0 {
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { amx::enter(job) },
            // SAFETY: the plain vector needs no instruction set; the caller guarantees the job's
            // requirements.
            #[cfg(test)]
            Kind::PlainTiles => unsafe { job.run::<plain::Plain>() },
            _ => drop(job),
        }
    }

    /// Runs an int16 kernel, if [`Isa::has_words`].
    ///
    /// # Safety
    /// The job's requirements on its fields hold.
    #[inline]
    pub unsafe fn run_words<J: WordJob>(self, job: J) {
        match self.0 {
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::enter_words(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { avx512::enter_words(job) },
            _ => drop(job),
        }
    }

    /// Runs a kernel with this instruction set.
    ///
    /// # Safety
    /// The job's requirements on its fields hold.
    #[inline]
    pub unsafe fn run<J: Job>(self, job: J) -> J::Out {
        match self.0 {
            // SAFETY: the plain vector needs no instruction set; the caller guarantees the job's
            // requirements.
            Kind::Plain => unsafe { plain::enter(job) },
            // SAFETY: the plain vector needs no instruction set; the caller guarantees the job's
            // requirements.
            #[cfg(test)]
            Kind::PlainTiles => unsafe { plain::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Kind::Amx => unsafe { avx512::enter(job) },
            // SAFETY: an `Isa` of this kind exists only after `present` returned true; the caller
            // guarantees the job's requirements.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { neon::enter(job) },
        }
    }
}
