//! Products with few tokens, in f32: rows are decoded one at a time and multiplied as they are.

use super::gemm::Matrix;
use super::scratch::Scratch;
use super::simd::{Job, LANES, Vector};
use super::unpack;

/// Computes rows `row .. row + rows` of the matrix for all tokens of `x`.
pub struct RowProduct<'a> {
    /// The matrix.
    pub w: Matrix<'a>,
    /// First row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// `tokens` rows of `w.cols` elements.
    pub x: &'a [f32],
    /// Tokens.
    pub tokens: usize,
    /// Added to each result; as long as the matrix has rows.
    pub bias: Option<&'a [f32]>,
    /// Result of the first token and first row of the *matrix*.
    pub out: *mut f32,
    /// Elements from one token's results to the next's.
    pub stride: usize,
}

impl Job for RowProduct<'_> {
    type Out = ();

    /// Also asks: `out + t · stride + row ..` is valid for `rows` elements for each token `t`, and nobody else uses them.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let cols = self.w.cols;
        assert!(self.x.len() >= self.tokens * cols);
        let mut scratch = Scratch::take();
        let [w] = scratch.parts([cols]);
        for r in self.row..self.row + self.rows {
            // SAFETY: the instructions are there.
            unsafe { unpack::decode::<V>(self.w.format, self.w.part(r, 0, cols), w) };
            let bias = self.bias.map_or(0.0, |b| b[r]);
            for t in 0..self.tokens {
                // SAFETY: the instructions are there; the place of this result is the caller's promise.
                unsafe { *self.out.add(t * self.stride + r) = dot::<V>(w, &self.x[t * cols..][..cols]) + bias };
            }
        }
    }
}

/// Inner product.
///
/// # Safety
/// As [`Job::run`] asks of the processor.
#[inline(always)]
pub unsafe fn dot<V: Vector>(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let whole = n / LANES * LANES;
    // SAFETY: 32 elements from each multiple of 32 below `whole` are in both.
    let mut sum = unsafe {
        let mut acc = V::splat(0.0);
        for i in (0..whole).step_by(LANES) {
            acc = V::load(a.as_ptr().add(i)).fma(V::load(b.as_ptr().add(i)), acc);
        }
        acc.sum()
    };
    for i in whole..n {
        sum += a[i] * b[i];
    }
    sum
}
