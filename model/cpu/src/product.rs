//! A matrix in its file's encoding, and the description of a task that all product kernels take.

use kjit_formats::format::Format;

/// A matrix in its file's encoding.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// The bytes of all rows.
    pub bytes: &'a [u8],
    /// Their encoding.
    pub format: &'static Format,
    /// Rows.
    pub rows: usize,
    /// Elements of a row, whole blocks.
    pub cols: usize,
}

impl Matrix<'_> {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.format.block_elems() * self.format.block_bytes()
    }

    /// The bytes of `n` elements of a row from element `at`, both whole blocks.
    #[inline(always)]
    pub fn part(&self, row: usize, at: usize, n: usize) -> &[u8] {
        let (elems, bytes) = (self.format.block_elems(), self.format.block_bytes());
        &self.bytes[row * self.row_bytes() + at / elems * bytes..][..n / elems * bytes]
    }
}

/// One task of a product: rows `row .. row + rows` of a matrix, times all tokens of an input.
#[derive(Clone, Copy)]
pub struct Part<'a, X = &'a [f32]> {
    /// The matrix.
    pub w: Matrix<'a>,
    /// First row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// The input: `tokens` rows of `w.cols` elements.
    pub x: X,
    /// Tokens.
    pub tokens: usize,
    /// Added to each result; one element per row of the matrix.
    pub bias: Option<&'a [f32]>,
    /// Pointer to the result of the first token and the first row of the whole *matrix*.
    pub out: *mut f32,
    /// Elements from one token's results to the next.
    pub stride: usize,
}

impl<'a, X> Part<'a, X> {
    /// The task with another form of the input.
    pub fn with<Y>(self, x: Y) -> Part<'a, Y> {
        let Part { w, row, rows, x: _, tokens, bias, out, stride } = self;
        Part { w, row, rows, x, tokens, bias, out, stride }
    }
}
