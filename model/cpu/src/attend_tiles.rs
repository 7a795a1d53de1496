//! Attention of a block of queries over the cache, by tiles of halves of 16 bits.
//!
//! As [`Attend`] does it, with both products as those of [`tiles`](super::tiles): queries, keys,
//! weights of the softmax and values are each the sum of two of bf16, and three products are added.
//! A block of 128 positions has its keys and values split once for all of the task's rows. Sums are
//! runs of 32 elements of 32 rows, and stay so.

use super::attention::{Attend, KEYS, Lie, STATE};
use super::scratch::Scratch;
use super::simd::{LANES, TILE_ROWS, TILE_UNIT, TileBlock, TileJob, Tiles};
use super::tiles::{self, UNIT, put, split_unit};

/// Units of a block's positions.
const BLOCK: usize = KEYS / TILE_UNIT;

/// A task of attention.
pub struct AttendTiles<'a>(pub Attend<'a>);

impl TileJob for AttendTiles<'_> {
    /// Also asks what [`Attend`] asks.
    #[inline(always)]
    unsafe fn run<V: Tiles>(self) {
        let task = self.0;
        let (dim, value_dim) = (task.layer.dim.next_multiple_of(LANES), task.layer.value_dim);
        let (m, units, padded) =
            (task.tokens * task.heads, dim.div_ceil(TILE_UNIT), value_dim.next_multiple_of(LANES));
        let (blocks, runs) = (m.div_ceil(LANES), padded / LANES);
        let mut scratch = Scratch::take();
        let [queries, rows, keys, values, scores, weights, sums, state, halves] = scratch.parts([
            tiles::len(m, dim),
            KEYS * dim.max(padded),
            tiles::len(KEYS, dim),
            runs * BLOCK * UNIT,
            blocks * LANES * KEYS,
            LANES * KEYS,
            blocks * LANES * padded,
            m * STATE,
            LANES * TILE_UNIT,
        ]);
        let (high, low) = halves.split_at_mut(LANES * TILE_UNIT / 2);
        let query = &mut rows[..dim];
        query.fill(0.0);
        for i in 0..m {
            task.query(i, query);
            // SAFETY: the instructions are there.
            unsafe {
                put::<V>(query, i % LANES, &mut queries[i / LANES * tiles::len(LANES, dim)..])
            };
        }
        sums.fill(0.0);
        task.begin(state);
        let [score_lie, sum_lie] = [KEYS, padded].map(|width| Lie { together: LANES, width });
        let end = task.seen_to(task.token + task.tokens - 1);
        let mut at = task.seen_from(task.token);
        // SAFETY: the instructions are there.
        unsafe { V::begin() };
        while at < end {
            let n = KEYS.min(end - at);
            let here = n.div_ceil(TILE_UNIT);
            // What is not there, of rows and of elements, is zero.
            let rows = &mut rows[..KEYS * dim.max(padded)];
            rows[n * dim..here * TILE_UNIT * dim].fill(0.0);
            if dim > task.layer.dim {
                rows[..n * dim].fill(0.0);
            }
            // SAFETY: the instructions are there; 32 rows for each split of a unit.
            unsafe {
                task.layer.keys.rows(task.key_head, at, n).decode::<V>(&mut rows[..n * dim], dim);
                for (x, to) in rows[..here * TILE_UNIT * dim]
                    .chunks_exact(LANES * dim)
                    .zip(keys.chunks_exact_mut(tiles::len(LANES, dim)))
                {
                    for (unit, to) in to.as_chunks_mut::<UNIT>().0.iter_mut().enumerate() {
                        split_unit::<V>(x, dim, unit, to, high, low);
                    }
                }
            }
            rows[n * padded..here * TILE_UNIT * padded].fill(0.0);
            if padded > value_dim {
                rows[..n * padded].fill(0.0);
            }
            // SAFETY: as above; 64 rows of values for each unit.
            unsafe {
                let of = task.layer.values.rows(task.key_head, at, n).short(value_dim);
                of.decode::<V>(&mut rows[..n * padded], padded);
                for run in 0..runs {
                    for unit in 0..here {
                        let to = &mut values[(run * BLOCK + unit) * UNIT..][..UNIT];
                        pairs::<V>(
                            &rows[unit * TILE_UNIT * padded + run * LANES..],
                            padded,
                            to,
                            high,
                            low,
                        );
                    }
                }
            }
            for (block, s) in scores.chunks_exact_mut(LANES * KEYS).enumerate() {
                for (run, c) in
                    s[..here * TILE_UNIT * LANES].chunks_exact_mut(LANES * LANES).enumerate()
                {
                    c.fill(0.0);
                    let w = &queries[block * tiles::len(LANES, dim)..][..tiles::len(LANES, dim)];
                    let x = &keys[run * tiles::len(LANES, dim)..][..tiles::len(LANES, dim)];
                    // SAFETY: 32 rows of so many units of both, and as many sums.
                    unsafe { multiply::<V>(w, x, units, c) };
                }
            }
            // SAFETY: the instructions are there.
            unsafe { task.soften::<V>(at, n, (scores, score_lie), (sums, sum_lie), state) };
            for (block, s) in scores.chunks_exact(LANES * KEYS).enumerate() {
                let panel = &mut weights[..here * TILE_UNIT * LANES];
                // SAFETY: as above; the weights of 32 rows are as many elements of a panel.
                unsafe { put_runs::<V>(s, here, panel) };
                let of = &mut sums[block * LANES * padded..][..LANES * padded];
                for (run, c) in of.chunks_exact_mut(LANES * LANES).enumerate() {
                    let x = &values[run * BLOCK * UNIT..][..here * UNIT];
                    // SAFETY: as above.
                    unsafe { multiply::<V>(panel, x, here, c) };
                }
            }
            at += n;
        }
        // SAFETY: as above; the place of these results is the caller's promise.
        unsafe {
            V::end();
            task.scatter(sums, sum_lie, state);
        }
    }
}

/// Adds to 32 × 32 sums the products of 32 rows of a panel with 32 of the other factor.
///
/// # Safety
/// Between [`Tiles::begin`] and [`Tiles::end`]; both have so many units, and there are 32 × 32
/// sums.
#[inline(always)]
unsafe fn multiply<V: Tiles>(w: &[f32], x: &[f32], units: usize, c: &mut [f32]) {
    debug_assert!(w.len() >= units * UNIT && x.len() >= units * UNIT && c.len() >= LANES * LANES);
    let (w_next, x) = (units * UNIT / 2, x.as_ptr());
    let (w, c) = (w.as_ptr(), c.as_mut_ptr());
    // SAFETY: the caller's promise.
    unsafe { V::tile_block(TileBlock { units, w, w_next, x, x_soon: x, half: false, c }) };
}

/// 64 rows of a matrix, 32 elements of each, as the second factor, whose columns they are: by pairs
/// of rows all elements' first halves, then second ones.
///
/// # Safety
/// As [`TileJob::run`] asks of the processor; 64 rows, `width` apart, have 32 elements from `x`'s
/// beginning on.
#[inline(always)]
unsafe fn pairs<V: Tiles>(
    x: &[f32],
    width: usize,
    to: &mut [f32],
    high: &mut [f32],
    low: &mut [f32],
) {
    assert!(x.len() >= (TILE_UNIT - 1) * width + LANES && to.len() >= UNIT);
    assert!(high.len() >= LANES && low.len() >= LANES);
    let (first, second) = to.split_at_mut(UNIT / 2);
    for pair in 0..TILE_UNIT / 2 {
        // SAFETY: the instructions are there; two rows of 32 elements, and as many halves of each.
        unsafe {
            for i in 0..2 {
                let x = x.as_ptr().add((2 * pair + i) * width);
                V::split(
                    x,
                    high.as_mut_ptr().add(i * LANES / 2).cast(),
                    low.as_mut_ptr().add(i * LANES / 2).cast(),
                );
            }
            V::interleave(high.as_ptr().cast(), first.as_mut_ptr().add(pair * LANES).cast());
            V::interleave(low.as_ptr().cast(), second.as_mut_ptr().add(pair * LANES).cast());
        }
    }
}

/// Rows that lie together by runs of 32 elements, so many units of them, as a panel.
///
/// # Safety
/// As [`TileJob::run`] asks of the processor.
#[inline(always)]
unsafe fn put_runs<V: Tiles>(rows: &[f32], units: usize, panel: &mut [f32]) {
    assert!(rows.len() >= units * UNIT && panel.len() >= units * UNIT);
    /// Floats of a tile: 16 rows of 32 halves.
    const TILE: usize = TILE_ROWS * LANES / 2;
    for r in 0..LANES {
        for run in 0..2 * units {
            // SAFETY: the instructions are there; units have 32 rows of two runs, and a panel as
            // many tiles.
            unsafe {
                let to = panel.as_mut_ptr().add((r / TILE_ROWS * 4 * units + 2 * run) * TILE);
                let high = to.add(r % TILE_ROWS * (LANES / 2));
                let from = rows.as_ptr().add((run * LANES + r) * LANES);
                V::split(from, high.cast(), high.add(TILE).cast());
            }
        }
    }
}
