//! Activations rounded to 16 bits, for products with integer codes.
//!
//! Blocks of 32 elements share a scale, `max |x| / 32512`. An element is off by at most 1.5e-5 of
//! the largest element of its block, and a product with a matrix by about 1e-5 of its value. That
//! is 200 times more accurate than 8 bits and costs one more instruction per 64 weights.

use super::simd::{CHUNK, CHUNK_BYTES, Job, LANES, Vector};

/// 64 rounded activations in the order of the instruction set. The alignment keeps the parts within
/// cache lines: with it, four tokens take 7.3 ns instead of 8.4 for 64 weights in rows of 1536.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Chunk(pub [u8; CHUNK_BYTES]);

/// Rounded rows of activations, in the formats of all kernels.
#[derive(Default)]
pub struct Quantised {
    /// The rounded integers.
    pub q: Vec<Chunk>,
    /// The scale of each 32 elements.
    pub scales: Vec<f32>,
    /// The sum of each 16 rounded elements.
    pub sums: Vec<f32>,
    /// The sum of each 32 rounded elements.
    pub pairs: Vec<f32>,
    /// Number of chunks in a row.
    pub chunks: usize,
    /// For int16 products with many tokens: see [`int16_products`](super::int16_products).
    pub words: Vec<f32>,
    /// For interleaved matrices: see [`interleaved`](super::interleaved).
    pub units: Vec<f32>,
    /// For bf16 tiles with many tokens: see [`tiles`](super::tiles).
    pub tiles: Vec<f32>,
    /// For int8 tiles with many tokens: see [`byte_tiles`](super::byte_tiles).
    pub bytes: Vec<f32>,
}

impl Quantised {
    /// Resizes the buffers for `rows` rows of `cols` elements, and returns them.
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

    /// The rounded row `t`.
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

/// Buffers for some rounded rows.
pub struct RoundedRows<'a> {
    pub q: &'a mut [Chunk],
    pub scales: &'a mut [f32],
    pub sums: &'a mut [f32],
    pub pairs: &'a mut [f32],
}

/// A job that rounds rows of `cols` elements; `cols` is a multiple of 32. If the last chunk is half
/// full, it is padded with zeros.
pub struct Quantise<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    /// The output: the rounded rows ([`Quantised::fit`]).
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
                // SAFETY: `x` has 32 elements; `q` is a whole chunk.
                let (scale, both) = unsafe { V::round_chunk(x.as_ptr(), part, q.0.as_mut_ptr()) };
                scales[part] = scale;
                sums[2 * part..][..2].copy_from_slice(&both);
            }
        }
        to.pairs.iter_mut().zip(to.sums.as_chunks::<2>().0).for_each(|(to, [a, b])| *to = a + b);
    }
}
