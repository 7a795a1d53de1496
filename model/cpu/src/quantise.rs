//! Activations rounded to 16 bits, for products with integer codes.
//!
//! Blocks of 32 share a scale, `max |x| / 32512`; so an element is off by at most 1.5e-5 of its
//! block's largest, and a product with a matrix by some 1e-5 of its size: 200 times nearer than 8
//! bits, at the cost of one more instruction for 64 weights.

use super::simd::{CHUNK, CHUNK_BYTES, Job, LANES, Vector};

/// The largest integer: its high byte, rounded, must fit in a signed byte.
pub const LARGEST: f32 = 32512.0;

/// 64 integers in the instruction set's own order. None of its thirds lies across two lines of the
/// cache: four tokens take 7.3 ns for 64 weights in rows of 1536, where they took 8.4.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Chunk(pub [u8; CHUNK_BYTES]);

/// Rows of activations, rounded.
#[derive(Default)]
pub struct Quantised {
    /// The integers.
    pub q: Vec<Chunk>,
    /// Per 32: the scale.
    pub scales: Vec<f32>,
    /// Per 16: the sum of the rounded elements.
    pub sums: Vec<f32>,
    /// Per 32: the same.
    pub pairs: Vec<f32>,
    /// Chunks in a row.
    pub chunks: usize,
    /// Of many tokens, for products of integers of 16 bits: see [`words`](super::words).
    pub words: Vec<f32>,
    /// For matrices with rows side by side: see [`beside`](super::beside).
    pub units: Vec<f32>,
    /// Of many tokens, for tiles: see [`tiles`](super::tiles).
    pub tiles: Vec<f32>,
    /// The same for tiles of bytes: see [`byte_tiles`](super::byte_tiles).
    pub bytes: Vec<f32>,
}

impl Quantised {
    /// Room for so many rows of `cols` elements, and where they go.
    pub fn fit(&mut self, rows: usize, cols: usize) -> RoundedRows<'_> {
        let chunks = cols.div_ceil(CHUNK);
        self.chunks = chunks;
        self.q.resize(rows * chunks, Chunk([0; CHUNK_BYTES]));
        self.scales.resize(rows * chunks * 2, 0.0);
        self.sums.resize(rows * chunks * 4, 0.0);
        self.pairs.resize(rows * chunks * 2, 0.0);
        RoundedRows {
            q: &mut self.q,
            scales: &mut self.scales,
            sums: &mut self.sums,
            pairs: &mut self.pairs,
        }
    }

    /// Row `t`.
    pub fn row(&self, t: usize) -> Rounded<'_> {
        let n = self.chunks;
        Rounded {
            q: &self.q[t * n..][..n],
            scales: &self.scales[t * n * 2..][..n * 2],
            sums: &self.sums[t * n * 4..][..n * 4],
            pairs: &self.pairs[t * n * 2..][..n * 2],
        }
    }
}

/// One row of [`Quantised`].
#[derive(Clone, Copy)]
pub struct Rounded<'a> {
    pub q: &'a [Chunk],
    pub scales: &'a [f32],
    pub sums: &'a [f32],
    pub pairs: &'a [f32],
}

/// Where some rows go.
pub struct RoundedRows<'a> {
    pub q: &'a mut [Chunk],
    pub scales: &'a mut [f32],
    pub sums: &'a mut [f32],
    pub pairs: &'a mut [f32],
}

/// Rounds rows of `cols` elements, a multiple of 32; a last half chunk is filled up with zeros.
pub struct Quantise<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    /// Room for as many ([`Quantised::fit`]).
    pub to: RoundedRows<'a>,
}

impl Job for Quantise<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Quantise { x, cols, to } = self;
        let chunks = cols.div_ceil(CHUNK);
        assert!(to.q.len() <= x.len() / cols * chunks);
        let zeros = [0.0; LANES];
        for (i, ((q, scales), sums)) in
            to.q.iter_mut()
                .zip(to.scales.as_chunks_mut::<2>().0)
                .zip(to.sums.as_chunks_mut::<4>().0)
                .enumerate()
        {
            let (row, at) = (i / chunks, i % chunks * CHUNK);
            for part in 0..2 {
                let at = at + part * LANES;
                let x = if at < cols { &x[row * cols + at..][..LANES] } else { &zeros };
                // SAFETY: 32 elements; a whole chunk.
                let (scale, both) = unsafe { V::round_chunk(x.as_ptr(), part, q.0.as_mut_ptr()) };
                scales[part] = scale;
                sums[2 * part..][..2].copy_from_slice(&both);
            }
        }
        to.pairs.iter_mut().zip(to.sums.as_chunks::<2>().0).for_each(|(to, [a, b])| *to = a + b);
    }
}

/// 32 elements as integers and their scale, by any vector.
///
/// # Safety
/// As [`Job::run`]; `x` has 32 elements.
#[inline(always)]
pub unsafe fn round<V: Vector>(x: *const f32) -> (f32, [i32; LANES]) {
    let mut rounded = [0.0f32; LANES];
    // SAFETY: 32 elements each.
    unsafe {
        let v = V::load(x);
        let largest = v.max(V::splat(0.0).sub(v)).largest();
        // NaN if any element is infinite or NaN, else 0: what is wrong must not be rounded away.
        let poison = v.mul(V::splat(0.0)).sum();
        v.mul(V::splat(inverse(largest))).round().store(rounded.as_mut_ptr());
        (largest / LARGEST + poison, rounded.map(|r| r as i32))
    }
}

/// What makes the largest element the largest integer.
#[inline(always)]
pub fn inverse(largest: f32) -> f32 {
    let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
    // Of a block of subnormals the inverse is infinite: it is zero then.
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Sums of each half.
#[inline(always)]
pub fn sums(q: &[i32; LANES], scale: f32) -> [f32; 2] {
    let (first, second) = q.split_at(LANES / 2);
    [first.iter().sum::<i32>() as f32 * scale, second.iter().sum::<i32>() as f32 * scale]
}
