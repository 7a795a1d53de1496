//! Products with few tokens in f32: each row is decoded to floats and multiplied.

use super::product::Part;
use super::scratch::Scratch;
use super::simd::{Job, LANES, Vector};
use super::unpack;

/// A task: rows decoded one at a time.
pub struct RowProduct<'a>(pub Part<'a>);

impl Job for RowProduct<'_> {
    type Out = ();

    /// In addition, `out + t · stride + row ..` must be valid for `rows` elements for each token
    /// `t`, and no other thread uses them.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let cols = self.0.w.cols;
        assert!(self.0.x.len() >= self.0.tokens * cols);
        let mut scratch = Scratch::take();
        let [w] = scratch.parts([cols]);
        for r in self.0.row..self.0.row + self.0.rows {
            // SAFETY: the caller guarantees the instruction set.
            unsafe { unpack::decode::<V>(self.0.w.format, self.0.w.part(r, 0, cols), w) };
            let bias = self.0.bias.map_or(0.0, |b| b[r]);
            for t in 0..self.0.tokens {
                // SAFETY: the caller guarantees the instruction set, and that this result is valid
                // and unshared.
                unsafe {
                    *self.0.out.add(t * self.0.stride + r) =
                        dot::<V>(w, &self.0.x[t * cols..][..cols]) + bias
                };
            }
        }
    }
}

/// Inner product of two vectors.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
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
