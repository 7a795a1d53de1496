//! The operands of the matrix kernels, by address.

/// `c[i][0..32] += Σ_k a[i][k] · b[k][0..32]` for some rows and `n` values of k. Pointers to first
/// elements, and strides in elements.
#[derive(Clone, Copy)]
pub struct Tile {
    pub n: usize,
    pub a: *const f32,
    pub a_stride: usize,
    pub b: *const f32,
    pub b_stride: usize,
    pub c: *mut f32,
    pub c_stride: usize,
}

/// One group of interleaved rows times some tokens, as pointers to the first elements.
#[derive(Clone, Copy)]
pub struct InterleavedTile {
    pub blocks: usize,
    /// First element of the group.
    pub w: *const f32,
    /// Number of floats of a block.
    pub w_len: usize,
    /// Bias that is subtracted from each code.
    pub bias: u8,
    /// The table of code values, 16 bytes, if the format has one.
    pub table: *const u8,
    /// Units of the first token, and the distance to the units of the next token.
    pub x: *const f32,
    pub x_stride: usize,
    /// The sums, 16 for each token.
    pub c: *mut f32,
    /// See [`Isa::ahead`](super::simd::Isa::ahead).
    pub ahead: usize,
}

/// Adds the products of some tokens with a panel. Pointers to first elements, and strides in floats
/// from one token to the next.
#[derive(Clone, Copy)]
pub struct WordTile {
    /// Groups of columns.
    pub groups: usize,
    /// The tokens, two integers per float.
    pub x: *const f32,
    /// Scales of the tokens, one per 32 columns.
    pub x_scales: *const f32,
    pub x_stride: usize,
    /// Two codes per float, by pairs of columns, 32 rows.
    pub w: *const f32,
    /// Scales by groups, 32 rows.
    pub scales: *const f32,
    pub c: *mut f32,
    pub c_stride: usize,
}
