//! Vectors on CPUs with tile instructions.

use super::vector::Vector;

/// Rows of a hardware tile, of tokens or of the matrix.
pub const TILE_ROWS: usize = 16;

/// A vector on a CPU with tile instructions (AMX).
///
/// # Safety
/// The requirements of [`Vector`]. Calls on tiles must be between [`Tiles::begin`] and
/// [`Tiles::end`].
pub unsafe trait Tiles: Vector {
    /// Splits 32 floats into the sum of two bf16 numbers each.
    ///
    /// `x` must be valid for 32 elements, `high` and `low` for 32 bf16 numbers.
    unsafe fn split(x: *const f32, high: *mut u16, low: *mut u16);

    /// Multiplies 64 codes minus their bias by the scale of each 16. Writes two signed bytes each:
    /// `256 · high + low`.
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
    /// another pair.
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
    fn prefetch_read(line: *const u8);

    /// Prefetches a line for writing, because other threads have read copies of it.
    fn prefetch_written(line: *mut u8);
}

/// Columns of a [`TileBlock`]'s unit: the columns of two tiles.
pub const TILE_UNIT: usize = 64;

/// `c[r][t] += Σ_k w₁ x₁ + w₂ x₁ + w₁ x₂` for 32 rows and 32 tokens. Lengths are in floats; a float
/// holds two bf16 numbers.
#[derive(Clone, Copy)]
pub struct TileBlock {
    /// Columns / 64; not 0.
    pub units: usize,
    /// Four tiles per unit: the high parts of 16 rows of 32 columns, their low parts, and both for
    /// the next 32 columns.
    pub w: *const f32,
    /// Distance to the next 16 rows.
    pub w_next: usize,
    /// Per unit, by pairs of columns: the high parts of 32 tokens, then the low parts.
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
    /// By 128 columns, in u32 of four bytes: 32 u32 of 32 tokens of `h`, then of `l`.
    pub x: *const f32,
    /// Scales of 32 tokens.
    pub x_scales: *const f32,
    /// `x` of the next block, or null if it does not change; a prefetch hint.
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
