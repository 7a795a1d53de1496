//! Products of a block of tokens with a matrix in any encoding, by tiles of halves of 16 bits.
//!
//! ```text
//! x = x₁ + x₂, w = w₁ + w₂:    c[r][t] = Σ_k w₁ x₁ + w₂ x₁ + w₁ x₂
//! ```
//!
//! Each number is the sum of two of bf16, to within 2^-16 of it: rounded, and what is left,
//! rounded. What is not added, `w₂ x₂`, is below 2^-16 of a product. So all encodings have three
//! products of a tile, no scales, and sums in f32. (Products of bytes go twice as fast, but where
//! scales are floats a group of 32 columns fills half a tile, and its sums must leave the tile to
//! be scaled: two of them 167 G products a second by one core of a Xeon, codes in bf16 348, three
//! of bf16
//! 479. Integer scales go into the bytes: [`byte_tiles`](super::byte_tiles).)
//!
//! A task takes some rows of the matrix and some tokens. `KC` columns of its rows are decoded and
//! split as they lie, which is how the first factor of a tile's product lies; tokens are the
//! second, by pairs of columns, turned once for all rows. So sums are turned too, and are turned
//! back when they are complete: a matrix has more columns than tokens, as a rule. 32 rows' columns
//! stay in the first cache while all tokens pass.
//!
//! Sums run over `k` in the same order for every element, whatever the tokens and tasks are:
//! results do not depend on the split.

use super::product::Part;
use super::scratch::Scratch;
use super::simd::{LANES, TILE_ROWS, TILE_UNIT, TileBlock, TileJob, Tiles};
use super::unpack;
use kjit_formats::format::{Encoding, Format};

/// Columns of a pass. A multiple of every block's length, and of [`TILE_UNIT`].
const KC: usize = 256;
const _: () = assert!(KC.is_multiple_of(256), "a pass has whole blocks, whose longest is 256");

/// Rows of a task at most. (Tasks of 256 and 448 read the tokens from the third cache less often,
/// but are few, and not all threads are equally fast: by 16 of a Xeon layers took 10 and 18 %
/// longer.)
pub const ROWS: usize = 128;

/// Tokens of a task at most: their sums and columns of a pass stay in the second cache.
pub const TOKENS: usize = 512;

/// Columns of a tile.
const STEP: usize = 32;

/// Floats in a tile.
const TILE: usize = TILE_ROWS * STEP / 2;

/// Floats for rows of `cols` elements: two halves of two bytes each; rows by 32, columns by 64.
pub fn len(rows: usize, cols: usize) -> usize {
    rows.next_multiple_of(LANES) * cols.next_multiple_of(TILE_UNIT)
}

/// Tokens from which decoding and splitting a matrix's rows pays, where the other way is in
/// integers of 16 bits: by 16 threads of a Xeon, Q4_K, 1,506 beside 1,747 GFLOP/s for 64 tokens and
/// 2,146 beside 1,987 for 128.
const PAYS: usize = 128;

/// The same where the other way is in f32: F16, 1,407 beside 1,323 for 32 of one matrix, 1,137
/// beside 1,249 of another, and 1,826 beside 1,515 for 64.
const PAYS_FLOATS: usize = 64;

/// Whether this many tokens are to be multiplied so with a matrix of this format and rows of `cols`
/// elements.
pub fn has(format: &Format, cols: usize, tokens: usize) -> bool {
    let least = match format.encoding {
        // Those of f32 stay exact: small ones decide which expert is taken.
        Encoding::F32 => return false,
        Encoding::F16 | Encoding::BF16 => PAYS_FLOATS,
        Encoding::Blocks(_) => PAYS,
    };
    tokens >= least && cols.is_multiple_of(STEP)
}

/// Splits some units of up to 32 rows of `cols` elements, a multiple of 32: by 64 columns the first
/// halves, by pairs of columns all rows, and as many second ones. What belongs to rows that are not
/// there is anything.
pub struct SplitRows<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    /// The first unit.
    pub first: usize,
    /// Whole units, [`UNIT`] each.
    pub to: &'a mut [f32],
}

/// Floats of a unit of 32 rows.
pub const UNIT: usize = LANES * TILE_UNIT;

impl TileJob for SplitRows<'_> {
    #[inline(always)]
    unsafe fn run<V: Tiles>(self) {
        let SplitRows { x, cols, first, to } = self;
        assert!(x.len() / cols <= LANES && (first + to.len() / UNIT - 1) * TILE_UNIT < cols);
        let mut scratch = Scratch::take();
        // 32 rows of 64 halves.
        let [high, low] = scratch.parts([LANES * TILE_UNIT / 2, LANES * TILE_UNIT / 2]);
        let end = to.as_mut_ptr_range().end.cast::<u8>();
        for (unit, to) in (first..).zip(to.as_chunks_mut::<UNIT>().0) {
            // All threads have read what was there: the next unit's lines are asked for before it
            // is written.
            let next = to.as_mut_ptr_range().end.cast::<u8>();
            if next < end {
                for line in (0..size_of::<[f32; UNIT]>()).step_by(64) {
                    V::soon_written(next.wrapping_add(line));
                }
            }
            // SAFETY: the instructions are there.
            unsafe { split_unit::<V>(x, cols, unit, to, high, low) };
        }
    }
}

/// One unit of [`SplitRows`]; 32 rows of 64 halves are room enough for the last two.
///
/// # Safety
/// As [`TileJob::run`] asks of the processor.
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
            // SAFETY: the instructions are there; 32 elements, and as many halves.
            unsafe { V::split(x.as_ptr(), high.as_mut_ptr().cast(), low.as_mut_ptr().cast()) };
        }
        high[x.len() / 2..].fill(0.0);
        low[x.len() / 2..TILE_UNIT / 2].fill(0.0);
    }
    let to = to.as_mut_ptr();
    // SAFETY: the instructions are there; 32 rows of 32 words, and a unit of 2 × 1024 of them.
    unsafe {
        V::transpose(high.as_ptr(), TILE_UNIT / 2, to);
        V::transpose(low.as_ptr(), TILE_UNIT / 2, to.add(UNIT / 2));
    }
}

/// Rows of a matrix, [`ROWS`] at most; the input is that of [`SplitRows`], one 32 tokens behind the
/// other.
pub struct TileProduct<'a>(pub Part<'a>);

impl TileJob for TileProduct<'_> {
    /// Also asks: `out + t · stride + row ..` is valid for `rows` elements for each token `t`, and
    /// nobody else uses them.
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
        let [floats, panel, sums, turned] =
            scratch.parts([kc, LANES * kc, panels * blocks * LANES * LANES, LANES * LANES]);
        sums.fill(0.0);
        // SAFETY: the instructions are there.
        unsafe { V::begin() };
        for k0 in (0..cols).step_by(KC) {
            let n = KC.min(cols - k0);
            let units = n.div_ceil(TILE_UNIT);
            for p in 0..panels {
                for r in 0..LANES.min(rows - p * LANES) {
                    ask_for_next::<V>(&self.0, (p, panels), (k0, KC), r);
                    // SAFETY: the instructions are there.
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
                    // SAFETY: each 32 tokens have n elements from k0 on in x, filled up to whole
                    // units as are the panel's; there are as many sums.
                    unsafe {
                        V::tile_block(TileBlock {
                            units,
                            w: panel.as_ptr(),
                            w_next: units * 4 * TILE,
                            x: at(b),
                            x_soon: at((b + 1) % blocks),
                            half: tokens - b * LANES <= TILE_ROWS,
                            c: c.as_mut_ptr(),
                        });
                    }
                }
            }
        }
        // SAFETY: as above; the results' place is the caller's promise.
        unsafe {
            V::end();
            Given { part: &self.0, sums, blocks }.run::<V>(turned);
        }
    }
}

/// Asks for what the panel behind number `p` has of row `r`, in this pass of so many columns from
/// `k0` on, or the next one. Each row's bytes of a pass are few and far from the next row's, so
/// they are asked for 32 rows before (14 % of Q4_K's products with 128 tokens).
#[inline(always)]
pub(super) fn ask_for_next<V: Tiles>(
    part: &Part<'_>,
    (p, panels): (usize, usize),
    (k0, pass): (usize, usize),
    r: usize,
) {
    let (next, k) = if p + 1 < panels { (p + 1, k0) } else { (0, k0 + pass) };
    if k < part.w.cols && next * LANES + r < part.rows {
        let bytes = part.w.part(part.row + next * LANES + r, k, pass.min(part.w.cols - k));
        for line in (0..bytes.len()).step_by(64) {
            V::soon(bytes.as_ptr().wrapping_add(line));
        }
    }
}

/// Complete sums of a task, 32 rows by 32 tokens in turned order, and all tokens before the next
/// rows.
pub struct Given<'a> {
    pub part: &'a Part<'a>,
    pub sums: &'a [f32],
    /// Of 32 tokens.
    pub blocks: usize,
}

impl Given<'_> {
    /// Gives them as results.
    ///
    /// # Safety
    /// As [`TileProduct`]'s job; `turned` has room for a block.
    #[inline(always)]
    pub unsafe fn run<V: Tiles>(self, turned: &mut [f32]) {
        let Given { part: &Part { row, rows, tokens, bias, out, stride, .. }, sums, blocks } = self;
        let panels = rows.div_ceil(LANES);
        assert!(turned.len() >= LANES * LANES);
        for (i, c) in sums.as_chunks::<{ LANES * LANES }>().0.iter().enumerate() {
            let (first, t) = (i / blocks * LANES, i % blocks * LANES);
            let here = LANES.min(rows - first);
            // Other threads have read what was there, so the next block's lines are asked for.
            // (Writing results was a third of a product's time by one thread of a Xeon, SmolLM2
            // with 512 tokens, before they were.)
            if i + 1 < panels * blocks {
                let (first, t) = ((i + 1) / blocks * LANES, (i + 1) % blocks * LANES);
                for t in t..tokens.min(t + LANES) {
                    let line = out.wrapping_add(t * stride + row + first);
                    V::soon_written(line.cast());
                    V::soon_written(line.wrapping_add(LANES.min(rows - first) - 1).cast());
                }
            }
            // SAFETY: 32 rows of 32.
            unsafe { V::transpose(c.as_ptr(), LANES, turned.as_mut_ptr()) };
            let bias = bias.map(|b| &b[row + first..][..here]);
            for (t, sums) in (t..tokens).zip(turned.as_chunks::<LANES>().0) {
                // SAFETY: the results' place is the caller's promise.
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

/// Puts row `r` of 32 into a panel: for each 16 rows, by units, tiles of first and of second halves
/// in turns.
///
/// # Safety
/// As [`TileJob::run`] asks of the processor.
#[inline(always)]
pub(super) unsafe fn put<V: Tiles>(row: &[f32], r: usize, panel: &mut [f32]) {
    let tiles = row.len().div_ceil(TILE_UNIT) * 4;
    assert!(r < LANES && panel.len() >= 2 * tiles * TILE);
    // SAFETY: the instructions are there; two blocks of 16 rows have their tiles in the panel, as
    // was checked, and each 32 elements have 16 floats in two of them.
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
    use super::super::share::Shared;
    use super::super::simd::Isa;
    use super::super::testing::{Rng, weights};
    use super::*;
    use kjit_formats::format::ALL;

    /// Rows of `cols` elements, as tiles; what is not written is NaN.
    fn split(isa: Isa, x: &[f32], cols: usize) -> Vec<f32> {
        let mut to = vec![f32::NAN; len(x.len() / cols, cols)];
        for (x, to) in x.chunks(LANES * cols).zip(to.chunks_mut(len(LANES, cols))) {
            let (one, rest) = to.split_at_mut(UNIT);
            // SAFETY: the job asks for nothing.
            unsafe { isa.run_tiles(SplitRows { x, cols, first: 0, to: one }) };
            if !rest.is_empty() {
                // SAFETY: as above.
                unsafe { isa.run_tiles(SplitRows { x, cols, first: 1, to: rest }) };
            }
        }
        to
    }

    #[test]
    fn tiles_multiply_every_format_as_f64_does_whatever_the_task() {
        let mut rng = Rng::new();
        let isas = Isa::with_tiles();
        if isas.len() == 1 {
            eprintln!("this processor has no tiles: only their layout is tested");
        }
        for format in ALL {
            // Rows behind the last whole panel, tokens behind the last whole tile, columns behind
            // the last whole panel.
            let shapes =
                [(1, 256, 1), (37, 768, 17), (128, 256, 33), (100, 512, 50), (64, 256, 64)];
            let odd = [(3, 32, 16), (33, 288, 5), (70, 96, 31), (65, 544, 48)];
            for (rows, cols, tokens) in shapes
                .into_iter()
                .chain(odd)
                .filter(|(_, cols, _)| cols % format.block_elems() == 0)
            {
                if !has(format, cols, PAYS) {
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
                            // SAFETY: the result has a row of `rows` for each token, and this is
                            // the only thread.
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
                        // Sums in f32, by chance √n of its steps; of each product two factors are
                        // off by 2^-16, and as much is left out.
                        let bound = (((cols as f64).sqrt() * 2.0 + 2.0) * 6e-8 + 3.0 / 65_536.0)
                            * size
                            + 1e-6;
                        let off = (f64::from(*got) - want).abs();
                        assert!(
                            off <= bound,
                            "{format} {rows}×{cols}, {tokens} tokens, {}: {got}, not {want}; {rng}",
                            isa.name()
                        );
                    }
                    // The same bits in other tasks: panels by themselves, fewer tokens.
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

    /// Tiles of halves, or of bytes, from so many tokens on.
    #[test]
    fn the_formats_that_gain_take_tiles_for_shorter_prompts() {
        let least = |name: &str| {
            let format = Format::by_name(name).unwrap();
            (1..=PAYS).find(|&tokens| has(format, 256, tokens) || byte_tiles::has(format, tokens))
        };
        for (name, from) in [("Q4_K", 32), ("Q5_K", 32), ("Q6_K", 32), ("Q4_0", 128), ("F16", 64)] {
            assert_eq!(least(name), Some(from), "{name}");
        }
        assert_eq!(least("F32"), None);
    }

    #[test]
    fn threads_share_products_of_tiles_with_what_has_none() {
        let mut rng = Rng::new();
        let (cols, tokens) = (64, PAYS + 22);
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
                beside: None,
                bias: Some(bias),
                out: Shared::new(results.next().unwrap()),
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
            assert!(!rounded.tiles.is_empty(), "nothing went through tiles");
            for ((format, rows, bytes, _, bias), out) in matrices.iter().zip(&outs) {
                let mut decoded = vec![0.0; rows * cols];
                format.decode(bytes, &mut decoded).unwrap();
                for (i, got) in out.iter().enumerate() {
                    let (x, w) =
                        (&x[i / rows * cols..][..cols], &decoded[i % rows * cols..][..cols]);
                    let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let want = terms().sum::<f64>() + f64::from(bias[i % rows]);
                    // As above, where a row is 64 long.
                    let bound =
                        (18.0 * 6e-8 + 3.0 / 65_536.0) * terms().map(f64::abs).sum::<f64>() + 1e-6;
                    let off = (f64::from(*got) - want).abs();
                    assert!(
                        off <= bound,
                        "{format}, {}, {threads} threads: {got}, not {want}; {rng}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn halves_add_up_and_what_is_not_finite_stays_so() {
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
                // By pairs of columns 32 rows; as many second halves behind them.
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
