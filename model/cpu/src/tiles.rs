//! Products of a block of tokens with a matrix in any encoding. They use the CPU's bf16 tiles
//! (AMX).
//!
//! ```text
//! x = x₁ + x₂, w = w₁ + w₂:    c[r][t] = Σ_k w₁ x₁ + w₂ x₁ + w₁ x₂
//! ```
//!
//! Each f32 is split into two bf16 numbers: the rounded number and the rounded remainder. Their sum
//! is within 2^-16 of the f32. The product of the two remainders is omitted: it is below 2^-16 of
//! the whole product. So every encoding needs three products of tiles, no scales, and sums in f32.
//!
//! Products of bytes (int8) are twice as fast. But with float scales a group of 32 columns fills
//! half a tile, and its sums must leave the tile to be scaled. On one core of a Xeon, two int8
//! products reach 167 G products/s, codes in bf16 348, three bf16 products 479. Integer scales can
//! be multiplied into the bytes: see [`byte_tiles`](super::byte_tiles).
//!
//! A task is some rows of the matrix and some tokens. `KC` columns of its rows are decoded and
//! split in place, in the layout of the first factor of a tile product. The second factor is the
//! tokens, by pairs of columns. The tokens are transposed once for all rows. The sums are
//! transposed as well, and are transposed back when they are complete. This is cheaper, because a
//! matrix usually has more columns than tokens. The columns of 32 rows stay in the L1 cache for all
//! tokens.
//!
//! Every element sums over `k` in the same order, so results do not depend on the split into tasks.

use super::product::Part;
use super::scratch::Scratch;
use super::simd::{LANES, TILE_ROWS, TILE_UNIT, TileBlock, TileJob, Tiles};
use super::unpack;
use kjit_formats::format::{Encoding, Format};

/// Columns of a pass. A multiple of every block's length, and of [`TILE_UNIT`].
const KC: usize = 256;
const _: () = assert!(KC.is_multiple_of(256), "a pass has whole blocks, whose longest is 256");

/// Maximum number of rows of a task. Tasks of 256 and 448 rows read the tokens from the L3 cache
/// less often. But then there are fewer tasks, and threads differ in speed: with 16 threads of a
/// Xeon, layers took 10 % (256) and 18 % (448) longer.
pub const ROWS: usize = 128;

/// Maximum number of tokens of a task. Their sums and the columns of a pass stay in the L2 cache.
pub const TOKENS: usize = 512;

/// Columns of one tile.
const STEP: usize = 32;

/// Floats in a tile.
const TILE: usize = TILE_ROWS * STEP / 2;

/// Floats for rows of `cols` elements, two bf16 numbers each; rows padded to 32, columns to 64.
pub fn len(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(LANES) * cols.next_multiple_of(TILE_UNIT)
}

/// Minimum number of tokens if the alternative is the int16 kernel. GFLOP/s of tiles and of int16,
/// 16 threads of a Xeon, Q4_K: 64 tokens 1,506 and 1,747; 128 tokens 2,146 and 1,987.
const MIN_TOKENS: usize = 128;

/// Minimum number of tokens if the alternative is the f32 kernel. GFLOP/s of tiles and of f32 for
/// F16: 32 tokens 1,407 and 1,323 with one matrix, 1,137 and 1,249 with another; 64 tokens 1,826
/// and 1,515.
const MIN_TOKENS_FLOATS: usize = 64;

/// Whether to use this kernel for a format, a row length (`cols`) and a number of tokens.
pub fn has(format: &Format, cols: usize, tokens: usize) -> bool {
    let least = match format.encoding {
        // f32 matrices stay exact: routers are f32, and rounding could change the choice of
        // experts.
        Encoding::F32 => return false,
        Encoding::F16 | Encoding::BF16 => MIN_TOKENS_FLOATS,
        Encoding::Blocks(_) => MIN_TOKENS,
    };
    tokens >= least && cols.is_multiple_of(STEP)
}

/// A job that splits some units. A unit is up to 32 rows of 64 columns; `cols` is a multiple of 32.
/// It holds first the high bf16 parts of all rows, by pairs of columns, then the low parts. The
/// parts of missing rows are undefined.
pub struct SplitRows<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    /// Index of the first unit.
    pub first: usize,
    /// Whole units, [`UNIT`] floats each.
    pub to: &'a mut [f32],
}

/// Number of floats in a unit of 32 rows.
pub const UNIT: usize = LANES * TILE_UNIT;

impl TileJob for SplitRows<'_> {
    #[inline(always)]
    unsafe fn run<V: Tiles>(self) {
        let SplitRows { x, cols, first, to } = self;
        assert!(x.len() / cols <= LANES && (first + to.len() / UNIT - 1) * TILE_UNIT < cols);
        let mut scratch = Scratch::take();
        // 32 rows of 64 bf16 numbers.
        let [high, low] = scratch.parts([LANES * TILE_UNIT / 2, LANES * TILE_UNIT / 2]);
        let end = to.as_mut_ptr_range().end.cast::<u8>();
        for (unit, to) in (first..).zip(to.as_chunks_mut::<UNIT>().0) {
            // All threads have read the old contents. So the lines of the next unit are prefetched
            // for writing.
            let next = to.as_mut_ptr_range().end.cast::<u8>();
            if next < end {
                for line in (0..size_of::<[f32; UNIT]>()).step_by(64) {
                    V::prefetch_written(next.wrapping_add(line));
                }
            }
            // SAFETY: the caller guarantees the instruction set.
            unsafe { split_unit::<V>(x, cols, unit, to, high, low) };
        }
    }
}

/// Splits one unit of [`SplitRows`]. `high` and `low` are scratch space for 32 rows of 64 bf16
/// numbers.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`TileJob::run`].
#[inline(always)]
pub(super) unsafe fn split_unit<V: Tiles>(
    x: &[f32],
    cols: usize,
    unit: usize,
    to: &mut [f32; UNIT],
    high: &mut [f32],
    low: &mut [f32],
) {
    assert!(high.len() >= UNIT / 2 && low.len() >= UNIT / 2);
    for (r, x) in x.chunks_exact(cols).enumerate() {
        let x = &x[unit * TILE_UNIT..][..TILE_UNIT.min(cols - unit * TILE_UNIT)];
        let (high, low) =
            (&mut high[r * TILE_UNIT / 2..][..TILE_UNIT / 2], &mut low[r * TILE_UNIT / 2..]);
        for (i, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
            let (high, low) =
                (&mut high[i * STEP / 2..][..STEP / 2], &mut low[i * STEP / 2..][..STEP / 2]);
            // SAFETY: the caller guarantees the instruction set. `x` has 32 elements, and both
            // buffers have space for 32 bf16 numbers.
            unsafe { V::split(x.as_ptr(), high.as_mut_ptr().cast(), low.as_mut_ptr().cast()) };
        }
        high[x.len() / 2..].fill(0.0);
        low[x.len() / 2..TILE_UNIT / 2].fill(0.0);
    }
    let to = to.as_mut_ptr();
    // SAFETY: the caller guarantees the instruction set. The buffers have 32 rows of 32 u32, and
    // `to` is a unit of 2 × 1024 u32.
    unsafe {
        V::transpose(high.as_ptr(), TILE_UNIT / 2, to);
        V::transpose(low.as_ptr(), TILE_UNIT / 2, to.add(UNIT / 2));
    }
}

/// A task: at most [`ROWS`] rows of a matrix. The input was split by [`SplitRows`]: blocks of 32
/// tokens in order.
pub struct TileProduct<'a>(pub Part<'a>);

impl TileJob for TileProduct<'_> {
    /// In addition, `out + t · stride + row ..` must be valid for `rows` elements for each token
    /// `t`, and no other thread uses them.
    #[inline(always)]
    unsafe fn run<V: Tiles>(self) {
        let Part { w, row, rows, x, tokens, .. } = self.0;
        let cols = w.cols;
        assert!(
            x.len() >= len(tokens, cols) && (1..=ROWS).contains(&rows) && cols.is_multiple_of(STEP)
        );
        let mut scratch = Scratch::take();
        let kc = KC.min(cols.next_multiple_of(TILE_UNIT));
        let (panels, blocks) = (rows.div_ceil(LANES), tokens.div_ceil(LANES));
        let [floats, panel, sums, transposed] =
            scratch.parts([kc, LANES * kc, panels * blocks * LANES * LANES, LANES * LANES]);
        sums.fill(0.0);
        // SAFETY: the caller guarantees the instruction set. Tiles are not in use yet on this
        // thread.
        unsafe { V::begin() };
        for k0 in (0..cols).step_by(KC) {
            let n = KC.min(cols - k0);
            let units = n.div_ceil(TILE_UNIT);
            for p in 0..panels {
                for r in 0..LANES.min(rows - p * LANES) {
                    prefetch_next::<V>(&self.0, (p, panels), (k0, KC), r);
                    // SAFETY: the caller guarantees the instruction set.
                    unsafe {
                        unpack::decode::<V>(
                            w.format,
                            w.part(row + p * LANES + r, k0, n),
                            &mut floats[..n],
                        );
                        put::<V>(&floats[..n], r, panel);
                    }
                }
                let sums = &mut sums[p * blocks * LANES * LANES..][..blocks * LANES * LANES];
                for (b, c) in sums.as_chunks_mut::<{ LANES * LANES }>().0.iter_mut().enumerate() {
                    let at = |b: usize| x.as_ptr().wrapping_add(b * len(LANES, cols) + k0 * LANES);
                    // SAFETY: `x` has `n` elements from `k0` on for each block of 32 tokens. They
                    // are padded to whole units, as the panel is. There are 32 × 32 sums.
                    unsafe {
                        V::tile_block(TileBlock {
                            units,
                            w: panel.as_ptr(),
                            w_next: units * 4 * TILE,
                            x: at(b),
                            prefetch_x: at((b + 1) % blocks),
                            half: tokens - b * LANES <= TILE_ROWS,
                            c: c.as_mut_ptr(),
                        });
                    }
                }
            }
        }
        // SAFETY: the caller guarantees the instruction set, and that the results are valid and
        // unshared.
        unsafe {
            V::end();
            TaskSums { part: &self.0, sums, blocks }.run::<V>(transposed);
        }
    }
}

/// Prefetches row `r` of the next panel, in this pass of `pass` columns from `k0` on. After the
/// last panel it prefetches the first panel of the next pass. The bytes of a row in a pass are few,
/// and far from the bytes of the next row. So they are prefetched 32 rows ahead (saves 14 % of
/// Q4_K's products with 128 tokens).
#[inline(always)]
pub(super) fn prefetch_next<V: Tiles>(
    part: &Part<'_>,
    (p, panels): (usize, usize),
    (k0, pass): (usize, usize),
    r: usize,
) {
    let (next, k) = if p + 1 < panels { (p + 1, k0) } else { (0, k0 + pass) };
    if k < part.w.cols && next * LANES + r < part.rows {
        let bytes = part.w.part(part.row + next * LANES + r, k, pass.min(part.w.cols - k));
        for line in (0..bytes.len()).step_by(64) {
            V::prefetch_read(bytes.as_ptr().wrapping_add(line));
        }
    }
}

/// Complete sums of a task, transposed, in blocks of 32 rows by 32 tokens. All blocks of a panel
/// come before the next panel.
pub struct TaskSums<'a> {
    pub part: &'a Part<'a>,
    pub sums: &'a [f32],
    /// Number of blocks of 32 tokens.
    pub blocks: usize,
}

impl TaskSums<'_> {
    /// Writes the sums to the result.
    ///
    /// # Safety
    /// The requirements of [`TileProduct`]'s job hold; `transposed` has space for a block.
    #[inline(always)]
    pub unsafe fn run<V: Tiles>(self, transposed: &mut [f32]) {
        let TaskSums { part: &Part { row, rows, tokens, bias, out, stride, .. }, sums, blocks } =
            self;
        let panels = rows.div_ceil(LANES);
        assert!(transposed.len() >= LANES * LANES);
        for (i, c) in sums.as_chunks::<{ LANES * LANES }>().0.iter().enumerate() {
            let (first, t) = (i / blocks * LANES, i % blocks * LANES);
            let here = LANES.min(rows - first);
            // Other threads have read the old contents. So the lines of the next block are
            // prefetched for writing. Without this prefetch, writing the results took a third of a
            // product's time (one thread of a Xeon, SmolLM2, 512 tokens).
            if i + 1 < panels * blocks {
                let (first, t) = ((i + 1) / blocks * LANES, (i + 1) % blocks * LANES);
                for t in t..tokens.min(t + LANES) {
                    let line = out.wrapping_add(t * stride + row + first);
                    V::prefetch_written(line.cast());
                    V::prefetch_written(line.wrapping_add(LANES.min(rows - first) - 1).cast());
                }
            }
            // SAFETY: the caller guarantees the instruction set; `c` and `transposed` have
            // 32 rows of 32.
            unsafe { V::transpose(c.as_ptr(), LANES, transposed.as_mut_ptr()) };
            let bias = bias.map(|b| &b[row + first..][..here]);
            for (t, sums) in (t..tokens).zip(transposed.as_chunks::<LANES>().0) {
                // SAFETY: the caller guarantees that the results are valid and unshared.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(out.add(t * stride + row + first), here)
                };
                match bias {
                    Some(bias) => to
                        .iter_mut()
                        .zip(sums)
                        .zip(bias)
                        .for_each(|((to, sum), bias)| *to = sum + bias),
                    None => to.copy_from_slice(&sums[..here]),
                }
            }
        }
    }
}

/// Writes row `r` of 32 to a panel. Units alternate tiles of high and low parts, for each 16 rows.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`TileJob::run`].
#[inline(always)]
pub(super) unsafe fn put<V: Tiles>(row: &[f32], r: usize, panel: &mut [f32]) {
    let tiles = row.len().div_ceil(TILE_UNIT) * 4;
    assert!(r < LANES && panel.len() >= 2 * tiles * TILE);
    // SAFETY: the caller guarantees the instruction set. The assertion shows that the tiles of two
    // blocks of 16 rows are in the panel. Each 32 elements fill 16 floats in two of these tiles.
    unsafe {
        let to =
            panel.as_mut_ptr().add((r / TILE_ROWS * tiles) * TILE + r % TILE_ROWS * (STEP / 2));
        let steps = row.len() / STEP;
        for i in 0..steps {
            let high = to.add(2 * i * TILE);
            V::split(row.as_ptr().add(i * STEP), high.cast(), high.add(TILE).cast());
        }
        for i in 2 * steps..tiles {
            to.add(i * TILE).write_bytes(0, STEP / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::byte_tiles;
    use super::super::multiply::{Product, multiply};
    use super::super::pool::Pool;
    use super::super::product::Matrix;
    use super::super::quantise::Quantised;
    use super::super::shared_mut::SharedMut;
    use super::super::simd::Isa;
    use super::super::testing::{Rng, weights};
    use super::*;
    use kjit_formats::format::ALL;

    /// Splits rows of `cols` elements into tiles. Elements that are not written are NaN.
    fn split(isa: Isa, x: &[f32], cols: usize) -> Vec<f32> {
        let mut to = vec![f32::NAN; len(x.len() / cols, cols)];
        for (x, to) in x.chunks(LANES * cols).zip(to.chunks_mut(len(LANES, cols))) {
            let (one, rest) = to.split_at_mut(UNIT);
            // SAFETY: this job has no requirement on its fields.
            unsafe { isa.run_tiles(SplitRows { x, cols, first: 0, to: one }) };
            if !rest.is_empty() {
                // SAFETY: the job has no requirement on its fields.
                unsafe { isa.run_tiles(SplitRows { x, cols, first: 1, to: rest }) };
            }
        }
        to
    }

    #[test]
    fn tiles_match_f64_for_every_format_and_task_split() {
        let mut rng = Rng::new();
        let isas = Isa::with_tiles();
        if isas.len() == 1 {
            eprintln!("this processor has no tiles: only their layout is tested");
        }
        for format in ALL {
            // The sizes leave rows after the last whole panel, tokens after the last whole tile,
            // and columns after the last whole pass.
            let shapes =
                [(1, 256, 1), (37, 768, 17), (128, 256, 33), (100, 512, 50), (64, 256, 64)];
            let odd = [(3, 32, 16), (33, 288, 5), (70, 96, 31), (65, 544, 48)];
            for (rows, cols, tokens) in shapes
                .into_iter()
                .chain(odd)
                .filter(|(_, cols, _)| cols % format.block_elems() == 0)
            {
                if !has(format, cols, MIN_TOKENS) {
                    continue;
                }
                let bytes = weights(&mut rng, format, rows, cols);
                let w = Matrix { bytes: &bytes, format, rows, cols };
                let mut decoded = vec![0.0; rows * cols];
                format.decode(&bytes, &mut decoded).unwrap();
                let (x, bias) = (rng.reals(tokens * cols), rng.reals(rows));
                for &isa in &isas {
                    let x_split = split(isa, &x, cols);
                    let product =
                        |first: usize, rows_here: usize, tokens: usize, out: &mut [f32]| {
                            let (bias, out) = (Some(&bias[..]), out.as_mut_ptr());
                            let x = &x_split[..];
                            let part = Part {
                                w,
                                row: first,
                                rows: rows_here,
                                x,
                                tokens,
                                bias,
                                out,
                                stride: rows,
                            };
                            // SAFETY: the result has a row of `rows` for each token, and only this
                            // thread runs.
                            unsafe { isa.run_tiles(TileProduct(part)) };
                        };
                    let mut out = vec![f32::NAN; tokens * rows];
                    product(0, rows, tokens, &mut out);
                    for (i, got) in out.iter().enumerate() {
                        let (t, r) = (i / rows, i % rows);
                        let terms = || {
                            (0..cols).map(|k| {
                                f64::from(x[t * cols + k]) * f64::from(decoded[r * cols + k])
                            })
                        };
                        let want = terms().sum::<f64>() + f64::from(bias[r]);
                        let size = terms().map(f64::abs).sum::<f64>();
                        // f32 sums are typically off by √n steps. Each factor of a product is off
                        // by 2^-16, and the omitted product adds 2^-16.
                        let bound = (((cols as f64).sqrt() * 2.0 + 2.0) * 6e-8 + 3.0 / 65_536.0)
                            * size
                            + 1e-6;
                        let off = (f64::from(*got) - want).abs();
                        assert!(
                            off <= bound,
                            "{format} {rows}×{cols}, {tokens} tokens, {}: \
                             got {got}, expected {want}; {rng}",
                            isa.name()
                        );
                    }
                    // Other tasks (single panels, fewer tokens) give bit-for-bit equal results.
                    let fewer = tokens.min(32);
                    let mut parts = vec![f32::NAN; tokens * rows];
                    for first in (0..rows).step_by(LANES) {
                        product(first, LANES.min(rows - first), fewer, &mut parts);
                    }
                    for (i, (a, b)) in parts.iter().zip(&out).take(fewer * rows).enumerate() {
                        assert_eq!(
                            a.to_bits(),
                            b.to_bits(),
                            "{format} {}: element {i}; {rng}",
                            isa.name()
                        );
                    }
                    assert!(
                        parts[fewer * rows..].iter().all(|x| x.is_nan()),
                        "{format}: rows of no token were written"
                    );
                }
            }
        }
    }

    /// Formats use tiles (bf16 or int8) from this number of tokens on.
    #[test]
    fn profitable_formats_use_tiles_for_shorter_prompts() {
        let least = |name: &str| {
            let format = Format::by_name(name).unwrap();
            (1..=MIN_TOKENS)
                .find(|&tokens| has(format, 256, tokens) || byte_tiles::has(format, tokens))
        };
        for (name, from) in [("Q4_K", 32), ("Q5_K", 32), ("Q6_K", 32), ("Q4_0", 128), ("F16", 64)] {
            assert_eq!(least(name), Some(from), "{name}");
        }
        assert_eq!(least("F32"), None);
    }

    #[test]
    fn threads_share_tiled_and_untiled_products() {
        let mut rng = Rng::new();
        let (cols, tokens) = (64, MIN_TOKENS + 22);
        let x = rng.reals(tokens * cols);
        let find =
            |name: &str| ALL.iter().find(|f| f.to_string().eq_ignore_ascii_case(name)).unwrap();
        for (isa, threads) in Isa::with_tiles().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let matrices = [("q4_0", 300), ("f16", 40), ("f32", 33)].map(|(name, rows)| {
                let format = find(name);
                let bytes = weights(&mut rng, format, rows, cols);
                (format, rows, bytes, vec![f32::NAN; rows * tokens], rng.reals(rows))
            });
            let mut outs = matrices.clone().map(|(.., out, _)| out);
            let mut results = outs.iter_mut();
            let products = matrices.each_ref().map(|(format, rows, bytes, _, bias)| Product {
                w: Matrix { bytes, format, rows: *rows, cols },
                interleaved: None,
                bias: Some(bias),
                out: SharedMut::new(results.next().unwrap()),
            });
            let mut rounded = Quantised::default();
            multiply(
                &mut Pool::new(threads),
                isa,
                &x,
                tokens,
                &products,
                Some(&mut rounded),
                false,
            );
            assert!(!rounded.tiles.is_empty(), "no product used tiles");
            for ((format, rows, bytes, _, bias), out) in matrices.iter().zip(&outs) {
                let mut decoded = vec![0.0; rows * cols];
                format.decode(bytes, &mut decoded).unwrap();
                for (i, got) in out.iter().enumerate() {
                    let (x, w) =
                        (&x[i / rows * cols..][..cols], &decoded[i % rows * cols..][..cols]);
                    let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let want = terms().sum::<f64>() + f64::from(bias[i % rows]);
                    // The tolerance of the test above, for rows of 64.
                    let bound =
                        (18.0 * 6e-8 + 3.0 / 65_536.0) * terms().map(f64::abs).sum::<f64>() + 1e-6;
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= bound,
                        "{format}, {}, {threads} threads: got {got}, expected {want}; {rng}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn bf16_halves_sum_to_input_and_keep_nan() {
        let mut rng = Rng::new();
        for isa in Isa::with_tiles() {
            let mut x = rng.reals(64 * LANES);
            x.iter_mut().for_each(|x| *x *= (rng.real() * 40.0).exp2());
            (x[3], x[64 + 5], x[65]) = (f32::NAN, f32::INFINITY, 0.0);
            let to = split(isa, &x, 64);
            let half = |i: usize| {
                f32::from_bits(if i.is_multiple_of(2) {
                    to[i / 2].to_bits() << 16
                } else {
                    to[i / 2].to_bits() & 0xffff_0000
                })
            };
            for (i, x) in x.iter().enumerate() {
                let (r, k) = (i / 64, i % 64);
                // All 32 rows by pairs of columns. The low parts follow the high parts.
                let at = (k / 2 * LANES + r) * 2 + k % 2;
                let sum = f64::from(half(at)) + f64::from(half(at + 64 * LANES));
                if x.is_finite() {
                    let off = (sum - f64::from(*x)).abs();
                    assert!(
                        off <= f64::from(x.abs()) / 65_536.0,
                        "{}: {x:e} is off by {off:e}; {rng}",
                        isa.name()
                    );
                } else {
                    assert!(!sum.is_finite(), "{}: {x} became {sum}", isa.name());
                }
            }
        }
    }
}
