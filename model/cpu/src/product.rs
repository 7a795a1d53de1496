//! A matrix in the encoding of its file, and the description of a task for all product kernels.

use kjit_formats::format::Format;

/// A matrix in the encoding of its file.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// The bytes of all rows.
    pub bytes: &'a [u8],
    /// Encoding of the rows.
    pub format: &'static Format,
    /// Number of rows.
    pub rows: usize,
    /// Number of elements of a row, a multiple of the block length.
    pub cols: usize,
}

impl Matrix<'_> {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols / self.format.block_elems() * self.format.block_bytes()
    }

    /// The bytes of `n` elements of a row from element `at`; both are multiples of the block
    /// length.
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
    /// Number of rows.
    pub rows: usize,
    /// The input: `tokens` rows of `w.cols` elements.
    pub x: X,
    /// Number of tokens.
    pub tokens: usize,
    /// Bias that is added to each result; one element per row of the matrix.
    pub bias: Option<&'a [f32]>,
    /// Pointer to the result of the first token and the first row of the whole *matrix*.
    pub out: *mut f32,
    /// Number of elements from the results of one token to those of the next.
    pub stride: usize,
}

impl<'a, X> Part<'a, X> {
    /// The task with a different type of input.
    pub fn with<Y>(self, x: Y) -> Part<'a, Y> {
        let Part { w, row, rows, x: _, tokens, bias, out, stride } = self;
        Part { w, row, rows, x, tokens, bias, out, stride }
    }
}
