//! Products and threads for encoders that are plain code and no graph.

use super::multiply::{Product, multiply};
use super::pool::Pool;
use super::product::Matrix;
use super::shared_mut::SharedMut;
use super::simd::Isa;
use kjit_formats::format::Format;

/// A matrix in the encoding of its file: rows of `cols` elements.
#[derive(Debug, Clone, Copy)]
pub struct DenseMatrix<'a>(Matrix<'a>);

impl<'a> DenseMatrix<'a> {
    /// A matrix of `rows` × `cols` elements. `None` if the bytes do not have this size.
    pub fn new(
        bytes: &'a [u8],
        format: &'static Format,
        rows: usize,
        cols: usize,
    ) -> Option<DenseMatrix<'a>> {
        let blocks = cols.checked_div(format.block_elems())?;
        let fits = cols > 0
            && cols.is_multiple_of(format.block_elems())
            && blocks.checked_mul(format.block_bytes())?.checked_mul(rows)? == bytes.len();
        fits.then_some(DenseMatrix(Matrix { bytes, format, rows, cols }))
    }

    /// Number of rows: elements of a result.
    pub fn rows(&self) -> usize {
        self.0.rows
    }

    /// Number of columns: elements of an input.
    pub fn cols(&self) -> usize {
        self.0.cols
    }
}

/// Threads and the instruction set for products in f32.
pub struct Dense {
    pool: Pool,
    isa: Isa,
}

impl Dense {
    /// Starts `threads − 1` threads.
    pub fn new(threads: usize) -> Dense {
        Dense { pool: Pool::new(threads), isa: Isa::best() }
    }

    /// `out[t][r] = bias[r] + Σ_k x[t][k] · w[r][k]` for each of the rows of `x`, in f32.
    ///
    /// # Panics
    /// If `x` is not a whole number of rows, or the bias and the matrix have different numbers of
    /// rows.
    pub fn linear(&mut self, w: DenseMatrix<'_>, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
        assert!(x.len().is_multiple_of(w.cols()) && bias.is_none_or(|b| b.len() == w.rows()));
        let tokens = x.len() / w.cols();
        let mut out = vec![0.0; tokens * w.rows()];
        if tokens > 0 {
            let product =
                Product { w: w.0, interleaved: None, bias, out: SharedMut::new(&mut out) };
            multiply(&mut self.pool, self.isa, x, tokens, &[product], None, false);
        }
        out
    }

    /// `out[t][r] = Σ_k x[t][k] · w[r][k]` with a matrix in memory: rows of `cols` elements.
    ///
    /// # Panics
    /// If `x` or `w` is not a whole number of rows.
    pub fn product(&mut self, w: &[f32], cols: usize, x: &[f32]) -> Vec<f32> {
        assert!(cols > 0 && w.len().is_multiple_of(cols));
        let Some(format) = Format::by_id(0) else {
            return vec![];
        };
        let bytes: Vec<u8> = w.iter().flat_map(|x| x.to_le_bytes()).collect();
        match DenseMatrix::new(&bytes, format, w.len() / cols, cols) {
            Some(matrix) => self.linear(matrix, None, x),
            None => vec![],
        }
    }

    /// Calls `f` with the index and the elements of each row of `width` elements, on all threads.
    pub fn rows(&mut self, out: &mut [f32], width: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let rows = out.len().checked_div(width).unwrap_or(0);
        let out = SharedMut::new(out);
        let each = rows.div_ceil(4 * self.pool.threads()).max(1);
        self.pool.run(rows.div_ceil(each), &|task| {
            for row in task * each..(task * each + each).min(rows) {
                // SAFETY: tasks have different rows, so no two use the same elements.
                f(row, unsafe { out.part(row * width, width) });
            }
        });
    }
}
