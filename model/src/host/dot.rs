//! Products with few tokens, by default: integer codes times activations of 16 bits; plain floats as they
//! are.
//!
//! With `w = s (u − bias) + m` in a group of weights (`u` the code made unsigned) and `x ≈ d q`,
//!
//! ```text
//! Σ w x = s d Σ (u − bias) q + m · d Σ q
//! ```
//!
//! so that one loop serves all block formats: unpack 64 codes, multiply and add as integers, scale, and add
//! the offsets, where there are any, times sums that are known beforehand. Rows go one after the other: four
//! at a time were three times slower (34 instead of 105 tokens a second for a 135M model in Q4_1), because
//! four streams a kilobyte apart are not what the prefetcher follows; prefetching by hand gained nothing.

use super::product::Part;
use super::quantise::{Quantised, Rounded};
use super::scattered::Scattered;
use super::simd::{CHUNK, CHUNK_BYTES, Job, LANES, Vector, unsigned};
use super::unpack::{Described, block_factors, sixteens, with_format};
use kjit_kernels::format::{BlockScale, Encoding, GroupFactors, GroupScale, Offset};

/// Chunks in a block of 256.
const CHUNKS: usize = 256 / CHUNK;

/// The input: rounded for integer codes, as it is for floats.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Rows of floats.
    pub x: &'a [f32],
    /// The same, rounded; used for block formats.
    pub rounded: &'a Quantised,
}

/// Rows multiplied as they are encoded.
pub struct DotProduct<'a>(pub Part<'a, Input<'a>>);

impl Job for DotProduct<'_> {
    type Out = ();

    /// Also asks: `out + t · stride + row ..` is valid for `rows` elements for each token `t`, and nobody
    /// else uses them.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.0.w.format.encoding {
                Encoding::F32 => self.all::<V, Floats<4>>(),
                Encoding::F16 => self.all::<V, Floats<2>>(),
                Encoding::BF16 => self.all::<V, Floats<0>>(),
                Encoding::Blocks(_) => {
                    with_format!(self.0.w.format, F => self.all::<V, Blocks<F>>(),
                    else match Scattered::find(self.0.w.format) {
                        Some(s) => self.each(|t| self.0.x.rounded.row(t), |row, cols, x| scattered_blocks::<V>(&s, row, cols, x)),
                        None => self.unknown(),
                    })
                }
            }
        }
    }
}

impl DotProduct<'_> {
    /// # Safety
    /// As [`Job::run`].
    #[inline(always)]
    unsafe fn all<V: Vector, R: Row>(&self) {
        // SAFETY: the instructions are there.
        unsafe { self.each(|t| R::input(self.0.x, self.0.w.cols, t), |row, cols, x| R::dot::<V>(row, cols, x)) }
    }

    /// The product of each row with each token's input, as `dot` makes it of a row, its length and what `input` finds of
    /// the token.
    ///
    /// # Safety
    /// As [`Job::run`].
    #[inline(always)]
    unsafe fn each<X: Copy>(&self, input: impl Fn(usize) -> X, dot: impl Fn(&[u8], usize, X) -> f32) {
        let (stride, cols) = (self.0.w.row_bytes(), self.0.w.cols);
        for t in 0..self.0.tokens {
            let x = input(t);
            let rows = self.0.w.bytes[self.0.row * stride..][..self.0.rows * stride].chunks_exact(stride);
            for (r, row) in (self.0.row..).zip(rows) {
                let bias = self.0.bias.map_or(0.0, |b| b[r]);
                // SAFETY: the results' place is the caller's promise.
                unsafe { *self.0.out.add(t * self.0.stride + r) = dot(row, cols, x) + bias };
            }
        }
    }

    /// A block format that [`with_format`] has not: a test says that there is none.
    #[cold]
    #[expect(clippy::unreachable, reason = "a format without its code is a bug of this crate, whatever the file")]
    fn unknown(&self) {
        unreachable!("format {} has no kernel", self.0.w.format)
    }
}

/// The inner product of a row.
trait Row {
    /// A token's input.
    type Input<'a>: Copy;

    fn input<'a>(x: Input<'a>, cols: usize, t: usize) -> Self::Input<'a>;

    /// # Safety
    /// As [`Job::run`] asks of the processor; the row holds `cols` weights, and the input as many elements.
    unsafe fn dot<V: Vector>(row: &[u8], cols: usize, x: Self::Input<'_>) -> f32;
}

/// Plain floats: of 4 bytes, of 2 (half), or, called 0, of 2 (upper half of a single).
struct Floats<const KIND: usize>;

impl<const KIND: usize> Floats<KIND> {
    const BYTES: usize = if KIND == 4 { 4 } else { 2 };

    /// # Safety
    /// As [`Job::run`]; 32 elements from `at` on are in the row.
    #[inline(always)]
    unsafe fn load<V: Vector>(row: &[u8], at: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let p = row.as_ptr().add(Self::BYTES * at);
            match KIND {
                4 => V::load(p.cast()),
                2 => V::load_f16(p.cast()),
                _ => V::load_bf16(p.cast()),
            }
        }
    }
}

impl<const KIND: usize> Row for Floats<KIND> {
    type Input<'a> = &'a [f32];

    #[inline(always)]
    fn input<'a>(x: Input<'a>, cols: usize, t: usize) -> &'a [f32] {
        &x.x[t * cols..][..cols]
    }

    #[inline(always)]
    unsafe fn dot<V: Vector>(row: &[u8], cols: usize, x: &[f32]) -> f32 {
        let (twice, whole) = (cols / (2 * LANES) * 2 * LANES, cols / LANES * LANES);
        // SAFETY: runs of 32 below `whole` are in the row and in x; the last, short run goes through arrays
        // of 32.
        unsafe {
            // Two sums: one alone would wait for its own last product.
            let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
            for at in (0..twice).step_by(2 * LANES) {
                even = Self::load::<V>(row, at).fma(V::load(x.as_ptr().add(at)), even);
                odd = Self::load::<V>(row, at + LANES).fma(V::load(x.as_ptr().add(at + LANES)), odd);
            }
            if twice < whole {
                even = Self::load::<V>(row, twice).fma(V::load(x.as_ptr().add(twice)), even);
            }
            if whole < cols {
                let (mut rest, mut bytes) = ([0.0; LANES], [0u8; 4 * LANES]);
                rest[..cols - whole].copy_from_slice(&x[whole..]);
                bytes[..(cols - whole) * Self::BYTES].copy_from_slice(&row[whole * Self::BYTES..]);
                odd = Self::load::<V>(&bytes, 0).fma(V::load(rest.as_ptr()), odd);
            }
            even.add(odd).sum()
        }
    }
}

/// A block format.
struct Blocks<F: Described>(std::marker::PhantomData<F>);

impl<F: Described> Row for Blocks<F> {
    type Input<'a> = Rounded<'a>;

    #[inline(always)]
    fn input<'a>(x: Input<'a>, _: usize, t: usize) -> Rounded<'a> {
        x.rounded.row(t)
    }

    #[inline(always)]
    unsafe fn dot<V: Vector>(row: &[u8], cols: usize, x: Rounded<'_>) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            match const { F::BLOCK.elems } {
                32 => small_blocks::<V, F>(row, cols, x),
                _ => large_blocks::<V, F>(row, cols, x),
            }
        }
    }
}

/// Blocks of 32, two at a time.
///
/// # Safety
/// As [`Row::dot`].
#[inline(always)]
unsafe fn small_blocks<V: Vector, F: Described>(row: &[u8], cols: usize, x: Rounded) -> f32 {
    let f = const { F::BLOCK };
    let bias = const { unsigned(F::BLOCK.value).bias };
    let has_offset = !matches!(f.offset, Offset::None);
    let (blocks, chunks) = (cols / 32, cols.div_ceil(CHUNK));
    assert!(row.len() >= blocks * f.bytes && x.q.len() >= chunks * CHUNK_BYTES);
    assert!(x.scales.len() >= 2 * chunks && x.pairs.len() >= 2 * chunks);
    // SAFETY: the instructions are there; blocks and chunks are in the row and in x, as was checked.
    unsafe {
        let mut acc = V::splat(0.0);
        let mut offset = [0.0f32; 2];
        let mut done = 0;
        let size = const { F::BLOCK.bytes };
        // Eight blocks at a time: their scales are found and multiplied together.
        if let (BlockScale::F16(scale), GroupScale::One) = (f.scale, f.group_scale) {
            let add = match f.offset {
                Offset::None => Some(None),
                Offset::Plus(at) => Some(Some(at)),
                Offset::MinusScaled(_) => None,
            };
            while let (Some(add), true) = (add, 2 * done + 8 <= blocks) {
                let at = row.as_ptr().add(2 * done * f.bytes);
                let scales = V::scales(at.add(usize::from(scale)), f.bytes);
                let scales = V::scaled(scales, x.scales.as_ptr().add(2 * done));
                if let Some(add) = add {
                    let offsets = V::scales(at.add(usize::from(add)), f.bytes);
                    acc = acc.add_scaled(offsets, x.pairs.as_ptr().add(2 * done));
                }
                let q = x.q.as_ptr().add(done * CHUNK_BYTES);
                // (No closures here: called more than once, one is a function without the instruction set.)
                acc = acc
                    .add_chunk::<0>(V::codes::<F, 0>(at, at.add(size)), bias, q, scales)
                    .add_chunk::<1>(
                        V::codes::<F, 0>(at.add(2 * size), at.add(3 * size)),
                        bias,
                        q.add(CHUNK_BYTES),
                        scales,
                    )
                    .add_chunk::<2>(
                        V::codes::<F, 0>(at.add(4 * size), at.add(5 * size)),
                        bias,
                        q.add(2 * CHUNK_BYTES),
                        scales,
                    )
                    .add_chunk::<3>(
                        V::codes::<F, 0>(at.add(6 * size), at.add(7 * size)),
                        bias,
                        q.add(3 * CHUNK_BYTES),
                        scales,
                    );
                done += 4;
            }
        }
        for c in done..chunks {
            let a = row.as_ptr().add(2 * c * f.bytes);
            // A last block by itself is taken twice: what it meets the second time is zero.
            let b = if 2 * c + 1 < blocks { a.add(f.bytes) } else { a };
            let (ka, kb) = (small_factors::<V, F>(a), small_factors::<V, F>(b));
            let d = x.scales.as_ptr().add(2 * c).cast::<[f32; 2]>().read();
            let (sa, sb) = (ka.scale * d[0], kb.scale * d[1]);
            let codes = V::codes::<F, 0>(a, b);
            acc = acc.add_dot(codes, bias, x.q.as_ptr().add(c * CHUNK_BYTES), [sa, sa, sb, sb]);
            if has_offset {
                let sums = x.pairs.as_ptr().add(2 * c).cast::<[f32; 2]>().read();
                offset[0] += ka.offset * sums[0];
                offset[1] += kb.offset * sums[1];
            }
        }
        acc.sum() + (offset[0] + offset[1])
    }
}

/// The scales and the offsets of the eight groups of a block whose six bits are packed as Q4_K has them: a byte for
/// each, the first lowest.
#[inline(always)]
fn six_bits(packed: [u8; 12]) -> (u64, u64) {
    let [a, b, c] = [
        u32::from_le_bytes([packed[0], packed[1], packed[2], packed[3]]),
        u32::from_le_bytes([packed[4], packed[5], packed[6], packed[7]]),
        u32::from_le_bytes([packed[8], packed[9], packed[10], packed[11]]),
    ];
    let (low, high) = (a & 0x3f3f_3f3f, c & 0x0f0f_0f0f | a >> 2 & 0x3030_3030);
    let scales = u64::from(low) | u64::from(high) << 32;
    let (low, high) = (b & 0x3f3f_3f3f, c >> 4 & 0x0f0f_0f0f | b >> 2 & 0x3030_3030);
    (scales, u64::from(low) | u64::from(high) << 32)
}

/// Blocks of 256.
///
/// # Safety
/// As [`Row::dot`].
#[inline(always)]
unsafe fn large_blocks<V: Vector, F: Described>(row: &[u8], cols: usize, x: Rounded) -> f32 {
    let f = const { F::BLOCK };
    let bias = const { unsigned(F::BLOCK.value).bias };
    let has_offset = !matches!(f.offset, Offset::None);
    let blocks = cols / f.elems;
    assert!(row.len() >= blocks * f.bytes && x.q.len() >= blocks * CHUNKS * CHUNK_BYTES);
    assert!(x.pairs.len() >= 2 * CHUNKS * blocks);
    // SAFETY: the instructions are there; blocks and chunks are in the row and in q, as was checked.
    unsafe {
        let mut acc = V::splat(0.0);
        let mut offset = [0.0f32; 4];
        let inputs = x.scales.as_chunks::<{ 2 * CHUNKS }>().0.iter().zip(x.sums.as_chunks::<{ 4 * CHUNKS }>().0);
        for (b, (d, sums)) in inputs.enumerate().take(blocks) {
            let block = row.as_ptr().add(b * f.bytes);
            let q = x.q.as_ptr().add(b * CHUNKS * CHUNK_BYTES);
            if let (GroupScale::SixBitPairs(at), BlockScale::F16(scale), Offset::MinusScaled(offset)) =
                const { (F::BLOCK.group_scale, F::BLOCK.scale, F::BLOCK.offset) }
            {
                let scale = V::half(block.add(usize::from(scale)).cast::<u16>().read_unaligned());
                let offset = V::half(block.add(usize::from(offset)).cast::<u16>().read_unaligned());
                let (s, o) = six_bits(block.add(usize::from(at)).cast::<[u8; 12]>().read());
                let scales = V::scaled(V::scales_of(s, scale), d.as_ptr());
                acc = acc
                    .add_scaled(V::scales_of(o, -offset), x.pairs.as_ptr().add(2 * CHUNKS * b))
                    .add_chunk::<0>(V::codes::<F, 0>(block, block), bias, q, scales)
                    .add_chunk::<1>(V::codes::<F, 1>(block, block), bias, q.add(CHUNK_BYTES), scales)
                    .add_chunk::<2>(V::codes::<F, 2>(block, block), bias, q.add(2 * CHUNK_BYTES), scales)
                    .add_chunk::<3>(V::codes::<F, 3>(block, block), bias, q.add(3 * CHUNK_BYTES), scales);
                continue;
            }
            let (mut s, o) = sixteens::<V, F>(std::slice::from_raw_parts(block, f.bytes));
            for i in 0..4 * CHUNKS {
                if has_offset {
                    offset[i % 4] += o[i] * sums[i];
                }
                s[i] *= d[i / 2];
            }
            let s = s.as_chunks::<4>().0;
            acc = acc
                .add_dot(V::codes::<F, 0>(block, block), bias, q, s[0])
                .add_dot(V::codes::<F, 1>(block, block), bias, q.add(CHUNK_BYTES), s[1])
                .add_dot(V::codes::<F, 2>(block, block), bias, q.add(2 * CHUNK_BYTES), s[2])
                .add_dot(V::codes::<F, 3>(block, block), bias, q.add(3 * CHUNK_BYTES), s[3]);
        }
        acc.sum() + (offset[0] + offset[1]) + (offset[2] + offset[3])
    }
}

/// Blocks whose codes come another way; none of these formats has offsets.
///
/// # Safety
/// As [`Row::dot`].
#[inline(always)]
unsafe fn scattered_blocks<V: Vector>(s: &Scattered, row: &[u8], cols: usize, x: Rounded) -> f32 {
    let (blocks, chunks) = (cols / s.block.elems, s.block.elems / CHUNK);
    assert!(x.q.len() >= blocks * chunks * CHUNK_BYTES && x.scales.len() >= 2 * blocks * chunks);
    // SAFETY: the instructions are there; chunks are in q, as was checked.
    unsafe {
        let mut acc = V::splat(0.0);
        for (b, block) in row.chunks_exact(s.block.bytes).enumerate().take(blocks) {
            let scales = (s.scales)(block);
            for c in 0..chunks {
                let at = b * chunks + c;
                let (k, d) = (&scales[4 * c..][..4], &x.scales[2 * at..][..2]);
                let scales = [k[0] * d[0], k[1] * d[0], k[2] * d[1], k[3] * d[1]];
                let codes = V::load_codes(&(s.codes)(block, c));
                acc = acc.add_dot(codes, s.bias, x.q.as_ptr().add(at * CHUNK_BYTES), scales);
            }
        }
        acc.sum()
    }
}

/// Scale and offset of a block of 32.
///
/// # Safety
/// As [`Job::run`]; a block is readable.
#[inline(always)]
unsafe fn small_factors<V: Vector, F: Described>(block: *const u8) -> GroupFactors {
    // SAFETY: the caller's promise.
    unsafe { block_factors::<V, F>(std::slice::from_raw_parts(block, const { F::BLOCK.bytes }), 0) }
}
