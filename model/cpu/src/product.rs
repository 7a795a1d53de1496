//! A matrix as its file has it, and what every way to multiply with it is asked for.

use kjit_formats::format::Format;

/// A matrix in its file's encoding.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// All rows.
    pub bytes: &'a [u8],
    /// How they are encoded.
    pub format: &'static Format,
    /// Rows.
    pub rows: usize,
    /// Elements of a row; whole blocks.
    pub cols: usize,
}

impl Matrix<'_> {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.format.block_elems() * self.format.block_bytes()
    }

    /// The bytes of `n` elements of a row from element `at`; both whole blocks.
    #[inline(always)]
    pub fn part(&self, row: usize, at: usize, n: usize) -> &[u8] {
        let (elems, bytes) = (self.format.block_elems(), self.format.block_bytes());
        &self.bytes[row * self.row_bytes() + at / elems * bytes..][..n / elems * bytes]
    }
}

/// Rows `row .. row + rows` of a matrix, times all tokens of an input: one task of a product.
#[derive(Clone, Copy)]
pub struct Part<'a, X = &'a [f32]> {
    /// The matrix.
    pub w: Matrix<'a>,
    /// First row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// `tokens` rows of `w.cols` elements.
    pub x: X,
    /// Tokens.
    pub tokens: usize,
    /// Added to each result; as long as the matrix has rows.
    pub bias: Option<&'a [f32]>,
    /// Result of the first token and first row of the *matrix*.
    pub out: *mut f32,
    /// Elements from one token's results to the next's.
    pub stride: usize,
}

impl<'a, X> Part<'a, X> {
    /// The same of another form of the input.
    pub fn with<Y>(self, x: Y) -> Part<'a, Y> {
        let Part { w, row, rows, x: _, tokens, bias, out, stride } = self;
        Part { w, row, rows, x, tokens, bias, out, stride }
    }
}
