//! All products of one input, split into tasks for the threads.

use super::byte_tiles::{self, ByteProduct, RoundTiles};
use super::dot::{DotProduct, Input};
use super::gemm::PanelProduct;
use super::int16_products::{self, RoundRows, WordProduct};
use super::interleaved::{self, Interleaved, InterleavedProduct, RoundUnits};
use super::matvec::RowProduct;
use super::pool::Pool;
use super::product::{Matrix, Part};
use super::quantise::{Quantise, Quantised, RoundedRows};
use super::shared_mut::SharedMut;
use super::simd::{Isa, LANES};
use super::tiles::{self, SplitRows, TileProduct};
use kjit_formats::format::Encoding;

/// Minimum number of tokens for which panels of weights are decoded.
pub(super) const PANEL_TOKENS: usize = 8;

/// Tokens of a task if there are fewer panels than the threads need. Decoding a panel costs about
/// as much as 32 tokens (an estimate).
const TOKENS: usize = 128;

/// Cost of decoding and splitting a panel of tiles, in tokens: 2.3 µs for 32 rows of 576 in Q8_0; a
/// token takes 0.04 µs.
const PANEL_COST: usize = 48;

/// Cost of fetching a token's row that another thread wrote, in tokens of a panel.
const TOKEN_COST: usize = 2;

/// Minimum bytes of weights per task if there are few tokens: about 0.5 µs of a thread. Each thread
/// has two to eight tasks, so that a thread that loses its core causes little delay.
const MIN_TASK_BYTES: usize = 8 << 10;

/// Minimum number of tokens for which several threads round them.
const MIN_PARALLEL_ROWS: usize = 32;

/// One product of a step.
pub struct Product<'a> {
    /// The matrix.
    pub w: Matrix<'a>,
    /// An interleaved copy for few tokens, if there is one.
    pub interleaved: Option<&'a Interleaved>,
    /// The bias, which is added to the result of each row.
    pub bias: Option<&'a [f32]>,
    /// The result: `tokens` rows, each as wide as the matrix has rows.
    pub out: SharedMut<'a>,
}

/// Computes all products of one input. If `reproducible`, the results of a token do not depend on
/// the number of tokens: each row uses the kernel for few tokens, which has one order of sums.
pub fn multiply(
    pool: &mut Pool,
    isa: Isa,
    x: &[f32],
    tokens: usize,
    products: &[Product],
    rounded: Option<&mut Quantised>,
    reproducible: bool,
) {
    let (panels, rounds) = (tokens >= PANEL_TOKENS && !reproducible, rounded.is_some());
    let tiled = isa.has_tiles() && !reproducible;
    let laid_out = |p: &Product| p.interleaved.is_some() && rounds && !panels && isa.has_words();
    let cols = products.first().map_or(0, |p| p.w.cols);
    let in_bytes = |p: &Product| tiled && byte_tiles::has(p.w.format, tokens);
    let in_halves = |p: &Product| tiled && tiles::has(p.w.format, cols, tokens) && !in_bytes(p);
    let in_tiles = |p: &Product| in_bytes(p) || in_halves(p);
    let in_words =
        |p: &Product| panels && isa.has_words() && int16_products::has(p.w.format) && !in_tiles(p);
    let split = rounded.is_some() && products.iter().any(in_tiles);
    let rounded = rounded.map(|to| {
        if products.iter().any(in_bytes) {
            round_tiles(pool, isa, &x[..tokens * cols], cols, &mut to.bytes);
        }
        if products.iter().any(in_halves) {
            split_rows(pool, isa, &x[..tokens * cols], cols, &mut to.tiles);
        }
        if products.iter().any(in_words) {
            round(pool, isa, &x[..tokens * cols], cols, &mut to.words);
        }
        let in_blocks = |p: &Product| matches!(p.w.format.encoding, Encoding::Blocks(_));
        if products.iter().any(laid_out) {
            round_units(pool, isa, &x[..tokens * cols], cols, &mut to.units);
        }
        if !panels && products.iter().any(|p| in_blocks(p) && !laid_out(p)) {
            round_blocks(pool, isa, &x[..tokens * cols], cols, to);
        }
        &*to
    });
    let all: usize = products.iter().map(|p| p.w.rows).sum();
    // Computes rows `row ..` of a product for tokens `first ..`.
    let one = |p: &Product, row: usize, rows: usize, first: usize, tokens: usize| {
        let (w, bias, x, stride) = (p.w, p.bias, &x[first * cols..], p.w.rows);
        // SAFETY: the result has a row for each token, so the pointer stays inside.
        let out = unsafe { p.out.start().add(first * stride) };
        let part = Part { w, row, rows, x, tokens, bias, out, stride };
        // SAFETY: `out` is followed by `tokens` rows as wide as the matrix has rows, and no other
        // task has this part of them.
        unsafe {
            match rounded {
                Some(rounded) if in_bytes(p) => {
                    let x = &rounded.bytes[first / LANES * byte_tiles::len(cols)..];
                    isa.run_tiles(ByteProduct(part.with(x)));
                }
                Some(rounded) if in_halves(p) => {
                    isa.run_tiles(TileProduct(
                        part.with(&rounded.tiles[tiles::len(first, cols)..]),
                    ));
                }
                Some(rounded) if in_words(p) => {
                    isa.run_words(WordProduct(
                        part.with(&rounded.words[first * int16_products::row_len(cols)..]),
                    ));
                }
                _ if panels => isa.run(PanelProduct(part)),
                None => isa.run(RowProduct(part)),
                Some(rounded) => match p.interleaved.filter(|_| laid_out(p)) {
                    Some(w) => {
                        isa.run_words(InterleavedProduct {
                            part: part.with(&rounded.units[..]),
                            w,
                            ahead: isa.ahead(),
                        });
                    }
                    None => {
                        DotProduct(part.with(Input { x, rounded, ahead: isa.ahead() })).run(isa)
                    }
                },
            }
        }
    };
    if !panels {
        // Few tokens: tasks are ranges of rows of equal length, of one product or of two, so that
        // all threads finish together.
        let bytes: usize = products.iter().map(|p| p.w.bytes.len()).sum();
        let tasks = (pool.threads() * (bytes / pool.threads() / MIN_TASK_BYTES).clamp(2, 8))
            .min(all.div_ceil(8));
        return pool.run(tasks, &|task| {
            let (mut begin, mut end) = (task * all / tasks, (task + 1) * all / tasks);
            for p in products {
                let rows = p.w.rows;
                // Tasks do not split a group of interleaved rows.
                let cut = |at: usize| {
                    if laid_out(p) {
                        at.next_multiple_of(interleaved::ROWS).min(rows)
                    } else {
                        at.min(rows)
                    }
                };
                if cut(begin) < cut(end) {
                    one(p, cut(begin), cut(end) - cut(begin), 0, tokens);
                }
                (begin, end) = (begin.saturating_sub(rows), end.saturating_sub(rows));
            }
        });
    }
    // Many tokens: tasks are panels of rows. With tiles, a task has several panels if there is
    // enough work. If there are fewer panels than the threads need (a matrix of 576 rows has 18),
    // tokens are split as well, unless decoding a panel again costs more than it saves.
    let wanted = 4 * pool.threads();
    let fits = |height: &usize| products.iter().map(|p| p.w.rows / height).sum::<usize>() >= wanted;
    let most = [tiles::ROWS, tiles::ROWS / 2].into_iter().find(fits).unwrap_or(LANES);
    let height = |p: &Product| if split && in_tiles(p) { most } else { LANES };
    let by_rows: usize = products.iter().map(|p| p.w.rows.div_ceil(height(p))).sum();
    let least = if split { tokens.div_ceil(tiles::TOKENS) } else { 1 };
    let each_of =
        |parts: usize| tokens.div_ceil(parts).next_multiple_of(if split { LANES } else { 1 });
    // The time of the last thread, in tokens of a panel. With fewer parts, fewer panels are decoded
    // twice. With fewer tokens per thread, less of the input is fetched from the caches of other
    // threads.
    let longest = |parts: &usize| {
        let each = each_of(*parts);
        let tasks = (by_rows * tokens.div_ceil(each)).div_ceil(pool.threads());
        tasks * (most / LANES) * (each + PANEL_COST) + tasks.div_ceil(by_rows) * each * TOKEN_COST
    };
    let parts = match split {
        true => (least..=tokens.div_ceil(LANES).max(least)).min_by_key(longest).unwrap_or(least),
        false => wanted.div_ceil(by_rows.max(1)).min(tokens.div_ceil(TOKENS)).max(least),
    };
    let each = each_of(parts);
    // Adjacent tasks, which one thread takes, have the same tokens of tiles. So a thread fetches
    // less of the input that other threads split.
    pool.run(by_rows * parts, &|task| {
        let (mut task, part) =
            if split { (task % by_rows, task / by_rows) } else { (task / parts, task % parts) };
        let first = part * each;
        // The last part may be short or empty.
        if first >= tokens {
            return;
        }
        for p in products {
            let height = height(p);
            let here = p.w.rows.div_ceil(height);
            if task < here {
                let row = task * height;
                return one(p, row, height.min(p.w.rows - row), first, each.min(tokens - first));
            }
            task -= here;
        }
    });
}

/// Runs `f` on ranges of rows of an input (first row, number of rows). Many rows are divided among
/// all threads.
fn by_runs(pool: &mut Pool, rows: usize, f: &(dyn Fn(usize, usize) + Sync)) {
    if rows < MIN_PARALLEL_ROWS {
        return f(0, rows);
    }
    let each = rows.div_ceil(4 * pool.threads());
    pool.run(rows.div_ceil(each), &|task| f(task * each, each.min(rows - task * each)));
}

/// Rounds rows of an input for interleaved matrices.
fn round_units(pool: &mut Pool, isa: Isa, x: &[f32], cols: usize, to: &mut Vec<f32>) {
    let (rows, len) = (x.len() / cols, interleaved::row_len(cols));
    to.resize(to.len().max(rows * len), 0.0);
    let to = SharedMut::new(to);
    by_runs(pool, rows, &|first, n| {
        // SAFETY: runs have different rows.
        let to = unsafe { to.part(first * len, n * len) };
        // SAFETY: this job has no requirement on its fields; rows of block formats are multiples of
        // 32 long.
        unsafe { isa.run_words(RoundUnits { x: &x[first * cols..][..n * cols], to }) };
    });
}

/// Rounds rows of an input for the row kernel.
fn round_blocks(pool: &mut Pool, isa: Isa, x: &[f32], cols: usize, to: &mut Quantised) {
    let rows = x.len() / cols;
    let RoundedRows { q, scales, sums, pairs } = to.fit(rows, cols);
    let (chunks, q) = (q.len() / rows, SharedMut::new(q));
    let [scales, sums, pairs] = [scales, sums, pairs].map(SharedMut::new);
    by_runs(pool, rows, &|first, n| {
        let (at, n_chunks) = (first * chunks, n * chunks);
        // SAFETY: runs have different rows.
        let to = unsafe {
            RoundedRows {
                q: q.part(at, n_chunks),
                scales: scales.part(2 * at, 2 * n_chunks),
                sums: sums.part(4 * at, 4 * n_chunks),
                pairs: pairs.part(2 * at, 2 * n_chunks),
            }
        };
        // SAFETY: this job has no requirement on its fields; rows of block formats are multiples of
        // 32 long.
        unsafe { isa.run(Quantise { x: &x[first * cols..][..n * cols], cols, to }) };
    });
}

/// Splits rows of an input into bf16 tiles, on all threads.
fn split_rows(pool: &mut Pool, isa: Isa, x: &[f32], cols: usize, to: &mut Vec<f32>) {
    let (rows, units) = (x.len() / cols, tiles::len(LANES, cols) / tiles::UNIT);
    let blocks = rows.div_ceil(LANES);
    to.resize(to.len().max(blocks * units * tiles::UNIT), 0.0);
    let to = SharedMut::new(to);
    // Columns are divided as well: a prompt of 128 tokens has 4 blocks, but there may be 16
    // threads.
    let each = (blocks * units).div_ceil(4 * pool.threads()).max(4);
    let parts = units.div_ceil(each);
    pool.run(blocks * parts, &|task| {
        let (block, unit) = (task / parts, task % parts * each);
        let first = block * LANES;
        let x = &x[first * cols..][..LANES.min(rows - first) * cols];
        // SAFETY: tasks have different rows or different columns.
        let to = unsafe {
            to.part((block * units + unit) * tiles::UNIT, each.min(units - unit) * tiles::UNIT)
        };
        // SAFETY: this job has no requirement on its fields.
        unsafe { isa.run_tiles(SplitRows { x, cols, first: unit, to }) };
    });
}

/// Rounds rows of an input to int8 tiles, on all threads.
fn round_tiles(pool: &mut Pool, isa: Isa, x: &[f32], cols: usize, to: &mut Vec<f32>) {
    let (rows, each) = (x.len() / cols, byte_tiles::len(cols));
    let (blocks, chunks) = (rows.div_ceil(LANES), cols.div_ceil(byte_tiles::CHUNK));
    to.resize(to.len().max(blocks * each), 0.0);
    let to = SharedMut::new(to);
    pool.run(blocks * chunks, &|task| {
        let (block, chunk) = (task / chunks, task % chunks);
        let first = block * LANES;
        let x = &x[first * cols..][..LANES.min(rows - first) * cols];
        let places = byte_tiles::chunk_ranges(cols, chunk);
        // SAFETY: tasks have different rows or different columns, and the ranges of a task do not
        // overlap.
        let to = places.map(|(at, len)| unsafe { to.part(block * each + at, len) });
        // SAFETY: this job has no requirement on its fields.
        unsafe { isa.run_tiles(RoundTiles { x, cols, chunk, to }) };
    });
}

/// Rounds rows of an input for int16 products, on all threads.
fn round(pool: &mut Pool, isa: Isa, x: &[f32], cols: usize, to: &mut Vec<f32>) {
    let (rows, len) = (x.len() / cols, int16_products::row_len(cols));
    to.resize(to.len().max(rows * len), 0.0);
    let each = rows.div_ceil(4 * pool.threads());
    let to = SharedMut::new(to);
    pool.run(rows.div_ceil(each), &|task| {
        let (first, rows) = (task * each, each.min(rows - task * each));
        // SAFETY: tasks have different rows.
        let to = unsafe { to.part(first * len, rows * len) };
        // SAFETY: this job has no requirement on its fields.
        unsafe { isa.run(RoundRows { x: &x[first * cols..][..rows * cols], cols, to }) };
    });
}
