//! Products of a block of tokens with a matrix of integer codes, in int16.
//!
//! ```text
//! c[t][r] = Σ_g ( d[t][g] s[g][r] · Σ_k q[t][k] (u[r][k] − bias) + o[g][r] · Σ_k d[t][g] q[t][k] )
//! ```
//!
//! As in [`gemm`](super::gemm), a task is 32 rows and some tokens. It unpacks `KC` columns of its
//! rows into a panel and multiplies every token with it. Here the panel holds codes minus their
//! bias, with two adjacent columns in a u32 (`[k / 2][32 rows]`). It also holds the scales and
//! offsets of the rows, by groups `g` of 16 or 32 columns. Tokens are rounded to 16 bits with a
//! scale per 32 elements, as for decoding. One instruction multiplies and adds 32 numbers, while
//! f32 has 16; a group costs three or four more instructions. By instruction count that is 1.6
//! times as fast.
//!
//! Sums within a group are exact. Every element adds the groups in the same order, so results do
//! not depend on the split into tasks.

use super::format_type::{FormatType, with_format};
use super::gemm::{copy, transpose_panel};
use super::product::Part;
use super::scattered::Scattered;
use super::scratch::Scratch;
use super::simd::{CHUNK, Job, LANES, Vector, WordJob, WordKernel, unsigned};
use super::simd::{Tile, WordTile};
use super::unpack::{block_factors, sixteens};
use kjit_formats::format::{Encoding, Format, Offset};

/// Columns of a panel: 512 × 32 int16 are 32 KiB. It is a multiple of the length of every block.
const KC: usize = 512;

/// Tokens of a tile. With 32 rows, 6 tokens are 12 sums of a group and 12 total sums.
const WORD_ROWS: usize = 6;

/// Number of floats for a row of `cols` elements: two integers in each, then the scales per 32
/// elements, and the sums of the rounded elements per 16 and per 32.
pub fn row_len(cols: usize) -> usize {
    cols / 2 + cols / 32 + cols / 16 + cols / 32
}

/// Whether this kernel supports a format.
pub fn has(format: &Format) -> bool {
    matches!(format.encoding, Encoding::Blocks(_))
}

/// A job that rounds rows of `cols` elements; `cols` is a multiple of 32.
pub struct RoundRows<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    /// Rows of [`row_len`].
    pub to: &'a mut [f32],
}

impl Job for RoundRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let cols = self.cols;
        for (x, to) in self.x.chunks_exact(cols).zip(self.to.chunks_exact_mut(row_len(cols))) {
            let (q, rest) = to.split_at_mut(cols / 2);
            let (scales, rest) = rest.split_at_mut(cols / 32);
            let (sums, pairs) = rest.split_at_mut(cols / 16);
            let runs = x.as_chunks::<LANES>().0.iter().zip(q.as_chunks_mut::<{ LANES / 2 }>().0);
            for (i, (x, q)) in runs.enumerate() {
                // SAFETY: the caller guarantees the instruction set. There are 32 elements, and
                // space for 32 integers.
                let (scale, both) = unsafe { V::round_words(x.as_ptr(), q.as_mut_ptr()) };
                scales[i] = scale;
                sums[2 * i..][..2].copy_from_slice(&both);
                pairs[i] = sums[2 * i] + sums[2 * i + 1];
            }
        }
    }
}

/// A task: up to 32 rows of a matrix, unpacked into a panel that all tokens share. The input is
/// rows of [`row_len`].
pub struct WordProduct<'a>(pub Part<'a>);

impl WordJob for WordProduct<'_> {
    /// In addition, `out + t · stride + row ..` must be valid for `rows` elements for each token
    /// `t`, and no other thread uses them.
    #[inline(always)]
    unsafe fn run<V: WordKernel>(self) {
        let (w, rows, cols, stride) =
            (self.0.w, self.0.rows, self.0.w.cols, row_len(self.0.w.cols));
        assert!(
            self.0.x.len() >= self.0.tokens * stride
                && (1..=LANES).contains(&rows)
                && cols.is_multiple_of(32)
        );
        let Encoding::Blocks(f) = w.format.encoding else { return };
        let group = if f.group < 32 { 16 } else { 32 };
        let has_offset = !matches!(f.offset, Offset::None);
        let kc = KC.min(cols);
        let mut scratch = Scratch::take();
        let [unpacked, panel, scales, offsets, edge] = scratch.parts([
            kc / 2 * LANES,
            kc / 2 * LANES,
            kc / group * LANES,
            kc / group * LANES,
            LANES * WORD_ROWS,
        ]);
        if rows < LANES {
            unpacked[rows * kc / 2..].fill(0.0);
            scales.fill(0.0);
            offsets.fill(0.0);
        }
        for k0 in (0..cols).step_by(KC) {
            let n = KC.min(cols - k0);
            for r in 0..rows {
                let bytes = w.part(self.0.row + r, k0, n);
                let to = Row { words: &mut unpacked[r * n / 2..][..n / 2], scales, offsets, r };
                // SAFETY: the caller guarantees the instruction set.
                with_format!(w.format, F => unsafe { unpack::<V, F>(bytes, to) },
                else if let Some(s) = Scattered::find(w.format) {
                    // SAFETY: the caller guarantees the instruction set.
                    unsafe { unpack_scattered::<V>(&s, bytes, to) }
                });
            }
            // SAFETY: the caller guarantees the instruction set; both buffers have 32 rows of n /
            // 2.
            unsafe { transpose_panel::<V>(unpacked, n / 2, panel) };
            let mut t = 0;
            while t < self.0.tokens {
                let m = WORD_ROWS.min(self.0.tokens - t);
                let x = self.0.x[t * stride..].as_ptr();
                // SAFETY: m tokens from t on are in x, each with n elements from k0 on, their
                // scales and sums. The caller guarantees the results; `edge` holds m rows of 32.
                unsafe {
                    let out = self.0.out.add(t * self.0.stride + self.0.row);
                    if k0 == 0 {
                        self.start(out, m);
                    }
                    let sums = if group == 32 {
                        cols / 2 + cols / 32 + cols / 16
                    } else {
                        cols / 2 + cols / 32
                    };
                    let tile = WordTile {
                        groups: n / group,
                        x: x.add(k0 / 2),
                        x_scales: x.add(cols / 2 + k0 / 32),
                        x_stride: stride,
                        w: panel.as_ptr(),
                        scales: scales.as_ptr(),
                        c: out,
                        c_stride: self.0.stride,
                    };
                    // The products of offsets and sums are a small float product.
                    let rest = Tile {
                        n: if has_offset { n / group } else { 0 },
                        a: x.add(sums + k0 / group),
                        a_stride: stride,
                        b: offsets.as_ptr(),
                        b_stride: LANES,
                        c: out,
                        c_stride: self.0.stride,
                    };
                    if rows == LANES {
                        tile.rows::<V>(m, group);
                        rest.rows_unless_empty::<V>(m);
                    } else {
                        let c = edge.as_mut_ptr();
                        copy(out, self.0.stride, c, LANES, m, rows);
                        WordTile { c, c_stride: LANES, ..tile }.rows::<V>(m, group);
                        Tile { c, c_stride: LANES, ..rest }.rows_unless_empty::<V>(m);
                        copy(c, LANES, out, self.0.stride, m, rows);
                    }
                }
                t += m;
            }
        }
    }
}

impl WordProduct<'_> {
    /// Initialises the results with the bias, or zero.
    ///
    /// # Safety
    /// `out` is valid for `m` rows of `self.0.rows` elements.
    #[inline(always)]
    unsafe fn start(&self, out: *mut f32, m: usize) {
        for i in 0..m {
            for r in 0..self.0.rows {
                // SAFETY: inside the rows that the caller guarantees.
                unsafe {
                    *out.add(i * self.0.stride + r) = self.0.bias.map_or(0.0, |b| b[self.0.row + r])
                };
            }
        }
    }
}

/// The destination of the codes, scales and offsets of a row: row `r` of the panel's 32 rows.
struct Row<'a> {
    /// Two codes per float.
    words: &'a mut [f32],
    /// Scales by groups, 32 rows each.
    scales: &'a mut [f32],
    offsets: &'a mut [f32],
    r: usize,
}

impl Row<'_> {
    /// Writes the scale and the offset of a group.
    #[inline(always)]
    fn put(&mut self, group: usize, scale: f32, offset: f32) {
        self.scales[group * LANES + self.r] = scale;
        self.offsets[group * LANES + self.r] = offset;
    }
}

/// # Safety
/// The CPU has `V`'s instruction set, as for [`WordJob::run`].
#[inline(always)]
unsafe fn unpack<V: WordKernel, F: FormatType>(bytes: &[u8], mut to: Row<'_>) {
    let f = const { F::BLOCK };
    let bias = const { unsigned(F::BLOCK.value).bias };
    let blocks = bytes.len() / f.bytes;
    assert!(to.words.len() >= blocks * f.elems / 2);
    let words = to.words.as_mut_ptr();
    // SAFETY: the caller guarantees the instruction set; the assertion shows that each block's
    // elements are in the words.
    unsafe {
        if f.elems == 32 {
            for (b, block) in bytes.chunks_exact(f.bytes).enumerate() {
                let k = block_factors::<V, F>(block, 0);
                to.put(b, k.scale, k.offset);
            }
            for b in (0..blocks).step_by(2) {
                let (first, words) = (bytes.as_ptr().add(b * f.bytes), words.add(16 * b));
                if b + 1 < blocks {
                    V::store_words(V::codes::<F, 0>(first, first.add(f.bytes)), bias, words);
                } else {
                    // A single last block is unpacked twice and stored once.
                    let mut two = [0.0; CHUNK / 2];
                    V::store_words(V::codes::<F, 0>(first, first), bias, two.as_mut_ptr());
                    std::ptr::copy_nonoverlapping(two.as_ptr(), words, CHUNK / 4);
                }
            }
        } else {
            let (groups, each) = if f.group < 32 { (16, 1) } else { (8, 2) };
            for (b, block) in bytes.chunks_exact(f.bytes).enumerate() {
                let (s, o) = sixteens::<V, F>(block);
                for g in 0..groups {
                    to.put(groups * b + g, s[each * g], o[each * g]);
                }
                let (at, words) = (block.as_ptr(), words.add(128 * b));
                V::store_words(V::codes::<F, 0>(at, at), bias, words);
                V::store_words(V::codes::<F, 1>(at, at), bias, words.add(CHUNK / 2));
                V::store_words(V::codes::<F, 2>(at, at), bias, words.add(CHUNK));
                V::store_words(V::codes::<F, 3>(at, at), bias, words.add(3 * CHUNK / 2));
            }
        }
    }
}

/// Like [`unpack`], for a format that [`Scattered`] unpacks. These formats have no offsets.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`WordJob::run`].
#[inline(always)]
unsafe fn unpack_scattered<V: WordKernel>(s: &Scattered, bytes: &[u8], mut to: Row<'_>) {
    let each = if s.block.group < 32 { 1 } else { 2 };
    let groups = s.block.elems / 16 / each;
    for (b, block) in bytes.chunks_exact(s.block.bytes).enumerate() {
        let scales = (s.scales)(block);
        for g in 0..groups {
            to.put(groups * b + g, scales[each * g], 0.0);
        }
        for c in 0..s.block.elems / CHUNK {
            let words = &mut to.words[(b * s.block.elems + c * CHUNK) / 2..][..CHUNK / 2];
            // SAFETY: the caller guarantees the instruction set; 64 integers are 32 words.
            unsafe {
                V::store_words(V::load_codes(&(s.codes)(block, c)), s.bias, words.as_mut_ptr())
            };
        }
    }
}

impl WordTile {
    /// Computes `m` tokens, at most [`WORD_ROWS`].
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`WordJob::run`]. The pointers are valid for the
    /// data described; `c` is valid for `m` rows of 32 floats.
    #[inline(always)]
    unsafe fn rows<V: WordKernel>(self, m: usize, group: usize) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            match group {
                32 => self.tokens::<V, 32>(m),
                _ => self.tokens::<V, 16>(m),
            }
        }
    }

    /// # Safety
    /// The requirements of [`WordTile::rows`].
    #[inline(always)]
    unsafe fn tokens<V: WordKernel, const G: usize>(self, m: usize) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            match m {
                6 => V::word_tile::<6, G>(self),
                5 => V::word_tile::<5, G>(self),
                4 => V::word_tile::<4, G>(self),
                3 => V::word_tile::<3, G>(self),
                2 => V::word_tile::<2, G>(self),
                _ => V::word_tile::<1, G>(self),
            }
        }
    }
}
