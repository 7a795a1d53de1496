//! Products with few tokens, the default kernel: integer codes times activations of 16 bits.
//! Weights that are plain floats are multiplied as floats.
//!
//! With `w = s (u − bias) + m` in a group of weights (`u` the code made unsigned) and `x ≈ d q`,
//!
//! ```text
//! Σ w x = s d Σ (u − bias) q + m · d Σ q
//! ```
//!
//! One loop serves all block formats. It unpacks 64 codes, multiplies and adds them as integers,
//! scales the sum, and adds the offsets, if any, times precomputed sums. Rows are processed one by
//! one. Four rows together were three times slower (34 instead of 105 tokens/s for a 135M model in
//! Q4_1): the hardware prefetcher does not follow four streams a kilobyte apart. Some CPUs do not
//! even follow one stream well. On these CPUs the kernel prefetches weights, see
//! [`Isa::ahead`](super::simd::Isa::ahead).
//!
//! Up to four tokens share the unpacked codes and scales of a row. On one core, 64 weights of Q4_1
//! take 2.9 ns for one token, 5.0 for two and 8.4 for four (11.5 one after the other). The
//! operations of a token and their order do not depend on the other tokens, so its results do not
//! depend on them either. Transposing sixteen rows, so that their sums stay in lanes, took 0.65 ns
//! for each further token but at least 6 ns to unpack and transpose: no gain for four tokens.

#![allow(
    clippy::needless_range_loop,
    reason = "one index for several arrays; closures lose the instruction set"
)]

use super::format_type::{FormatType, with_format};
use super::product::Part;
use super::quantise::{Quantised, Rounded};
use super::scattered::Scattered;
use super::simd::{CHUNK, Isa, Job, LANES, Vector, unsigned};
use super::unpack::{block_factors, sixteens};
use kjit_formats::format::{BlockScale, Encoding, Format, GroupFactors, GroupScale, Offset};

/// Chunks in a block of 256.
const CHUNKS: usize = 256 / CHUNK;

/// The input, as floats and rounded.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Rows of floats for float weights.
    pub x: &'a [f32],
    /// The rows, rounded for block formats.
    pub rounded: &'a Quantised,
    /// See [`Isa::ahead`](super::simd::Isa::ahead).
    pub ahead: usize,
}

/// A task: rows multiplied in their encoded form.
pub struct DotProduct<'a>(pub Part<'a, Input<'a>>);

impl DotProduct<'_> {
    /// Computes the products. Each format is a separate [`Job`]: if one function contains all of
    /// them (680 KB of code), the compiler takes minutes.
    ///
    /// # Safety
    /// `out + t · stride + row ..` is valid for `rows` elements for each token `t`, and no other
    /// thread uses them.
    pub unsafe fn run(self, isa: Isa) {
        let DotProduct(part) = self;
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            match part.w.format.encoding {
                Encoding::F32 => isa.run(Rows(part, Floats::<4>)),
                Encoding::F16 => isa.run(Rows(part, Floats::<2>)),
                Encoding::BF16 => isa.run(Rows(part, Floats::<0>)),
                Encoding::Blocks(_) => {
                    with_format!(part.w.format, F => isa.run(Rows(part, Blocks::<F>(std::marker::PhantomData))),
                    else match Scattered::find(part.w.format) {
                        Some(s) => isa.run(Rows(part, s)),
                        None => unknown(part.w.format),
                    })
                }
            }
        }
    }
}

/// A block format that is missing in [`with_format`]. A test shows that none is missing.
#[cold]
#[expect(
    clippy::unreachable,
    reason = "a format without its code is a bug of this crate, whatever the file"
)]
fn unknown(format: &Format) {
    unreachable!("format {format} has no kernel")
}

/// [`DotProduct`] for one kind of row.
struct Rows<'a, R>(Part<'a, Input<'a>>, R);

impl<R: Row> Job for Rows<'_, R> {
    type Out = ();

    /// In addition, the requirements of [`DotProduct::run`] must hold. A row is unpacked once for
    /// up to four tokens.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let mut t = 0;
        while t < self.0.tokens {
            // SAFETY: this function's safety contract, which the caller upholds, covers the call.
            unsafe {
                t += match self.0.tokens - t {
                    1 => self.multiply_tokens::<V, 1>(t),
                    2 => self.multiply_tokens::<V, 2>(t),
                    3 => self.multiply_tokens::<V, 3>(t),
                    _ => self.multiply_tokens::<V, 4>(t),
                };
            }
        }
    }
}

impl<R: Row> Rows<'_, R> {
    /// Computes `M` tokens from `t` on and returns `M`.
    ///
    /// # Safety
    /// The requirements of [`Job::run`].
    #[inline(always)]
    unsafe fn multiply_tokens<V: Vector, const M: usize>(&self, t: usize) -> usize {
        let (stride, cols) = (self.0.w.row_bytes(), self.0.w.cols);
        let x = std::array::from_fn(|i| R::Input::of(self.0.x, cols, t + i));
        let rows =
            self.0.w.bytes[self.0.row * stride..][..self.0.rows * stride].chunks_exact(stride);
        for (r, row) in (self.0.row..).zip(rows) {
            let bias = self.0.bias.map_or(0.0, |b| b[r]);
            // SAFETY: the caller guarantees the instruction set, and that the results are valid and
            // unshared.
            unsafe {
                for (i, sum) in
                    self.1.dot::<V, M>(row, cols, x, self.0.x.ahead).into_iter().enumerate()
                {
                    *self.0.out.add((t + i) * self.0.stride + r) = sum + bias;
                }
            }
        }
        M
    }
}

/// The inner products of an encoded row with tokens.
trait Row {
    /// One token's input.
    type Input<'a>: TokenInput<'a>;

    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`Job::run`]; the row holds `cols` weights, and
    /// each input as many elements.
    unsafe fn dot<V: Vector, const M: usize>(
        &self,
        row: &[u8],
        cols: usize,
        x: [Self::Input<'_>; M],
        ahead: usize,
    ) -> [f32; M];
}

/// Prefetches `len` bytes at `at + ahead`, unless `ahead` is 0. A prefetch never faults, so the
/// address may be past the end of the matrix.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`].
#[inline(always)]
pub(super) unsafe fn prefetch_ahead<V: Vector>(at: *const u8, len: usize, ahead: usize) {
    if ahead > 0 {
        for line in (0..len).step_by(64) {
            // SAFETY: this function's safety contract, which the caller upholds, covers the call.
            unsafe { V::prefetch(at.wrapping_add(ahead + line)) }
        }
    }
}

/// The input of one token, as a kind of row needs it.
trait TokenInput<'a>: Copy {
    /// The input of token `t`, `cols` elements.
    fn of(x: Input<'a>, cols: usize, t: usize) -> Self;
}

impl<'a> TokenInput<'a> for &'a [f32] {
    #[inline(always)]
    fn of(x: Input<'a>, cols: usize, t: usize) -> Self {
        &x.x[t * cols..][..cols]
    }
}

impl<'a> TokenInput<'a> for Rounded<'a> {
    #[inline(always)]
    fn of(x: Input<'a>, _: usize, t: usize) -> Self {
        x.rounded.row(t)
    }
}

/// Plain floats. `KIND` 4: f32, 2: f16, 0: bf16.
struct Floats<const KIND: usize>;

impl<const KIND: usize> Floats<KIND> {
    const BYTES: usize = if KIND == 4 { 4 } else { 2 };

    /// # Safety
    /// The requirements of [`Job::run`]; the row has 32 elements from `at` on.
    #[inline(always)]
    unsafe fn load<V: Vector>(row: &[u8], at: usize) -> V {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
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
    unsafe fn dot<V: Vector, const M: usize>(
        &self,
        row: &[u8],
        cols: usize,
        x: [&[f32]; M],
        ahead: usize,
    ) -> [f32; M] {
        let (twice, whole) = (cols / (2 * LANES) * 2 * LANES, cols / LANES * LANES);
        let mut sums = [0.0; M];
        // SAFETY: runs of 32 below `whole` are in the row and in `x`; the last, short run goes
        // through arrays of 32.
        unsafe {
            // Two sums per token, so that a product does not wait for the previous one.
            let (mut even, mut odd) = ([V::splat(0.0); M], [V::splat(0.0); M]);
            for at in (0..twice).step_by(2 * LANES) {
                prefetch_ahead::<V>(
                    row.as_ptr().add(at * Self::BYTES),
                    2 * LANES * Self::BYTES,
                    ahead,
                );
                let (a, b) = (Self::load::<V>(row, at), Self::load::<V>(row, at + LANES));
                for i in 0..M {
                    even[i] = a.fma(V::load(x[i].as_ptr().add(at)), even[i]);
                    odd[i] = b.fma(V::load(x[i].as_ptr().add(at + LANES)), odd[i]);
                }
            }
            if twice < whole {
                let a = Self::load::<V>(row, twice);
                for i in 0..M {
                    even[i] = a.fma(V::load(x[i].as_ptr().add(twice)), even[i]);
                }
            }
            if whole < cols {
                let mut bytes = [0u8; 4 * LANES];
                bytes[..(cols - whole) * Self::BYTES].copy_from_slice(&row[whole * Self::BYTES..]);
                for i in 0..M {
                    let mut rest = [0.0; LANES];
                    rest[..cols - whole].copy_from_slice(&x[i][whole..]);
                    odd[i] = Self::load::<V>(&bytes, 0).fma(V::load(rest.as_ptr()), odd[i]);
                }
            }
            for i in 0..M {
                sums[i] = even[i].add(odd[i]).sum();
            }
        }
        sums
    }
}

/// A block format as a kind of row.
struct Blocks<F: FormatType>(std::marker::PhantomData<F>);

impl<F: FormatType> Row for Blocks<F> {
    type Input<'a> = Rounded<'a>;

    #[inline(always)]
    unsafe fn dot<V: Vector, const M: usize>(
        &self,
        row: &[u8],
        cols: usize,
        x: [Rounded<'_>; M],
        ahead: usize,
    ) -> [f32; M] {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            match const { F::BLOCK.elems } {
                32 => small_blocks::<V, F, M>(row, cols, x, ahead),
                _ => large_blocks::<V, F, M>(row, cols, x, ahead),
            }
        }
    }
}

/// Processes blocks of 32, two at a time.
///
/// # Safety
/// The requirements of [`Row::dot`].
#[inline(always)]
unsafe fn small_blocks<V: Vector, F: FormatType, const M: usize>(
    row: &[u8],
    cols: usize,
    x: [Rounded<'_>; M],
    ahead: usize,
) -> [f32; M] {
    let f = const { F::BLOCK };
    let bias = const { unsigned(F::BLOCK.value).bias };
    let has_offset = !matches!(f.offset, Offset::None);
    let (blocks, chunks) = (cols / 32, cols.div_ceil(CHUNK));
    assert!(row.len() >= blocks * f.bytes);
    for x in &x {
        assert!(x.q.len() >= chunks && x.scales.len() >= 2 * chunks && x.pairs.len() >= 2 * chunks);
    }
    let mut result = [0.0; M];
    // SAFETY: the caller guarantees the instruction set; the checks above show that blocks and
    // chunks are in the row and in `x`.
    unsafe {
        let mut acc = [V::splat(0.0); M];
        let mut offset = [[0.0f32; 2]; M];
        let mut done = 0;
        let size = const { F::BLOCK.bytes };
        // Eight blocks at a time: their scales are loaded and multiplied together.
        if let (BlockScale::F16(scale), GroupScale::One) = (f.scale, f.group_scale) {
            let add = match f.offset {
                Offset::None => Some(None),
                Offset::Plus(at) => Some(Some(at)),
                Offset::MinusScaled(_) => None,
            };
            while let (Some(add), true) = (add, 2 * done + 8 <= blocks) {
                let at = row.as_ptr().add(2 * done * f.bytes);
                prefetch_ahead::<V>(at, 8 * f.bytes, ahead);
                let all = V::scales(at.add(usize::from(scale)), f.bytes);
                // This is a loop and not a closure: a closure that is called more than once is
                // compiled without the instruction set.
                let mut scales = [all; M];
                for i in 0..M {
                    scales[i] = V::scaled(all, x[i].scales.as_ptr().add(2 * done));
                }
                if let Some(add) = add {
                    let offsets = V::scales(at.add(usize::from(add)), f.bytes);
                    for i in 0..M {
                        acc[i] = acc[i].add_scaled(offsets, x[i].pairs.as_ptr().add(2 * done));
                    }
                }
                let codes = V::codes::<F, 0>(at, at.add(size));
                for i in 0..M {
                    let q = x[i].chunk(done);
                    acc[i] = acc[i].add_chunk::<0>(codes, bias, q, scales[i]);
                }
                let codes = V::codes::<F, 0>(at.add(2 * size), at.add(3 * size));
                for i in 0..M {
                    let q = x[i].chunk(done + 1);
                    acc[i] = acc[i].add_chunk::<1>(codes, bias, q, scales[i]);
                }
                let codes = V::codes::<F, 0>(at.add(4 * size), at.add(5 * size));
                for i in 0..M {
                    let q = x[i].chunk(done + 2);
                    acc[i] = acc[i].add_chunk::<2>(codes, bias, q, scales[i]);
                }
                let codes = V::codes::<F, 0>(at.add(6 * size), at.add(7 * size));
                for i in 0..M {
                    let q = x[i].chunk(done + 3);
                    acc[i] = acc[i].add_chunk::<3>(codes, bias, q, scales[i]);
                }
                done += 4;
            }
        }
        for c in done..chunks {
            let a = row.as_ptr().add(2 * c * f.bytes);
            prefetch_ahead::<V>(a, 2 * f.bytes, ahead);
            // A single last block is unpacked twice; the second copy is multiplied with zeros.
            let b = if 2 * c + 1 < blocks { a.add(f.bytes) } else { a };
            let (ka, kb) = (small_factors::<V, F>(a), small_factors::<V, F>(b));
            let codes = V::codes::<F, 0>(a, b);
            for i in 0..M {
                let d = x[i].scales.as_ptr().add(2 * c).cast::<[f32; 2]>().read();
                let (sa, sb) = (ka.scale * d[0], kb.scale * d[1]);
                acc[i] = acc[i].add_dot(codes, bias, x[i].chunk(c), [sa, sa, sb, sb]);
                if has_offset {
                    let sums = x[i].pairs.as_ptr().add(2 * c).cast::<[f32; 2]>().read();
                    offset[i][0] += ka.offset * sums[0];
                    offset[i][1] += kb.offset * sums[1];
                }
            }
        }
        for i in 0..M {
            result[i] = acc[i].sum() + (offset[i][0] + offset[i][1]);
        }
    }
    result
}

/// The scales and offsets of the eight groups of a block, one byte each, the first in the lowest
/// byte. They are packed in six bits each as in Q4_K.
#[inline(always)]
pub(super) fn six_bits(packed: [u8; 12]) -> (u64, u64) {
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

/// Processes blocks of 256.
///
/// # Safety
/// The requirements of [`Row::dot`].
#[inline(always)]
unsafe fn large_blocks<V: Vector, F: FormatType, const M: usize>(
    row: &[u8],
    cols: usize,
    x: [Rounded<'_>; M],
    ahead: usize,
) -> [f32; M] {
    let f = const { F::BLOCK };
    let bias = const { unsigned(F::BLOCK.value).bias };
    let has_offset = !matches!(f.offset, Offset::None);
    let blocks = cols / f.elems;
    assert!(row.len() >= blocks * f.bytes);
    for x in &x {
        assert!(x.q.len() >= blocks * CHUNKS && x.scales.len() >= 2 * CHUNKS * blocks);
        assert!(x.pairs.len() >= 2 * CHUNKS * blocks && x.sums.len() >= 4 * CHUNKS * blocks);
    }
    let mut result = [0.0; M];
    // SAFETY: the caller guarantees the instruction set; the checks above show that blocks and
    // chunks are in the row and in `x`.
    unsafe {
        let mut acc = [V::splat(0.0); M];
        let mut offset = [[0.0f32; 4]; M];
        for b in 0..blocks {
            let block = row.as_ptr().add(b * f.bytes);
            prefetch_ahead::<V>(block, f.bytes, ahead);
            if let (
                GroupScale::SixBitPairs(at),
                BlockScale::F16(scale),
                Offset::MinusScaled(offset),
            ) = const { (F::BLOCK.group_scale, F::BLOCK.scale, F::BLOCK.offset) }
            {
                let scale = V::half(block.add(usize::from(scale)).cast::<u16>().read_unaligned());
                let offset = V::half(block.add(usize::from(offset)).cast::<u16>().read_unaligned());
                let (s, o) = six_bits(block.add(usize::from(at)).cast::<[u8; 12]>().read());
                let (all, offsets) = (V::scales_of(s, scale), V::scales_of(o, -offset));
                let mut scales = [all; M];
                for i in 0..M {
                    scales[i] = V::scaled(all, x[i].scales.as_ptr().add(2 * CHUNKS * b));
                    acc[i] = acc[i].add_scaled(offsets, x[i].pairs.as_ptr().add(2 * CHUNKS * b));
                }
                let codes = V::codes::<F, 0>(block, block);
                for i in 0..M {
                    acc[i] = acc[i].add_chunk::<0>(codes, bias, x[i].chunk(b * CHUNKS), scales[i]);
                }
                let codes = V::codes::<F, 1>(block, block);
                for i in 0..M {
                    acc[i] =
                        acc[i].add_chunk::<1>(codes, bias, x[i].chunk(b * CHUNKS + 1), scales[i]);
                }
                let codes = V::codes::<F, 2>(block, block);
                for i in 0..M {
                    acc[i] =
                        acc[i].add_chunk::<2>(codes, bias, x[i].chunk(b * CHUNKS + 2), scales[i]);
                }
                let codes = V::codes::<F, 3>(block, block);
                for i in 0..M {
                    acc[i] =
                        acc[i].add_chunk::<3>(codes, bias, x[i].chunk(b * CHUNKS + 3), scales[i]);
                }
                continue;
            }
            let (all, o) = sixteens::<V, F>(std::slice::from_raw_parts(block, f.bytes));
            let mut scales = [all; M];
            for i in 0..M {
                let d = x[i].scales.as_ptr().add(2 * CHUNKS * b).cast::<[f32; 2 * CHUNKS]>().read();
                let sums =
                    x[i].sums.as_ptr().add(4 * CHUNKS * b).cast::<[f32; 4 * CHUNKS]>().read();
                for g in 0..4 * CHUNKS {
                    if has_offset {
                        offset[i][g % 4] += o[g] * sums[g];
                    }
                    scales[i][g] *= d[g / 2];
                }
            }
            let codes = V::codes::<F, 0>(block, block);
            for i in 0..M {
                let s = scales[i].as_chunks::<4>().0[0];
                acc[i] = acc[i].add_dot(codes, bias, x[i].chunk(b * CHUNKS), s);
            }
            let codes = V::codes::<F, 1>(block, block);
            for i in 0..M {
                let s = scales[i].as_chunks::<4>().0[1];
                acc[i] = acc[i].add_dot(codes, bias, x[i].chunk(b * CHUNKS + 1), s);
            }
            let codes = V::codes::<F, 2>(block, block);
            for i in 0..M {
                let s = scales[i].as_chunks::<4>().0[2];
                acc[i] = acc[i].add_dot(codes, bias, x[i].chunk(b * CHUNKS + 2), s);
            }
            let codes = V::codes::<F, 3>(block, block);
            for i in 0..M {
                let s = scales[i].as_chunks::<4>().0[3];
                acc[i] = acc[i].add_dot(codes, bias, x[i].chunk(b * CHUNKS + 3), s);
            }
        }
        for i in 0..M {
            result[i] =
                acc[i].sum() + (offset[i][0] + offset[i][1]) + (offset[i][2] + offset[i][3]);
        }
    }
    result
}

impl Rounded<'_> {
    /// Pointer to chunk `at`. The caller checks that it exists.
    #[inline(always)]
    fn chunk(&self, at: usize) -> *const u8 {
        self.q.as_ptr().wrapping_add(at).cast()
    }
}

/// Formats that [`Scattered`] unpacks. None of them has offsets.
impl Row for Scattered {
    type Input<'a> = Rounded<'a>;

    #[inline(always)]
    unsafe fn dot<V: Vector, const M: usize>(
        &self,
        row: &[u8],
        cols: usize,
        x: [Rounded<'_>; M],
        ahead: usize,
    ) -> [f32; M] {
        let (blocks, chunks) = (cols / self.block.elems, self.block.elems / CHUNK);
        for x in &x {
            assert!(x.q.len() >= blocks * chunks && x.scales.len() >= 2 * blocks * chunks);
        }
        let mut result = [0.0; M];
        // SAFETY: the caller guarantees the instruction set; the check above shows that the chunks
        // are in `q`.
        unsafe {
            let mut acc = [V::splat(0.0); M];
            for (b, block) in row.chunks_exact(self.block.bytes).enumerate().take(blocks) {
                prefetch_ahead::<V>(block.as_ptr(), self.block.bytes, ahead);
                let scales = (self.scales)(block);
                for c in 0..chunks {
                    let at = b * chunks + c;
                    let (k, codes) =
                        (&scales[4 * c..][..4], V::load_codes(&(self.codes)(block, c)));
                    for i in 0..M {
                        let d = &x[i].scales[2 * at..][..2];
                        let scales = [k[0] * d[0], k[1] * d[0], k[2] * d[1], k[3] * d[1]];
                        acc[i] = acc[i].add_dot(codes, self.bias, x[i].chunk(at), scales);
                    }
                }
            }
            for i in 0..M {
                result[i] = acc[i].sum();
            }
        }
        result
    }
}

/// Scale and offset of a block of 32.
///
/// # Safety
/// The requirements of [`Job::run`]; a block is readable.
#[inline(always)]
unsafe fn small_factors<V: Vector, F: FormatType>(block: *const u8) -> GroupFactors {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { block_factors::<V, F>(std::slice::from_raw_parts(block, const { F::BLOCK.bytes }), 0) }
}
