//! Attention of a block of queries over the KV cache, with bf16 tiles (AMX).
//!
//! Works like [`Attend`], with both products computed as in [`tiles`](super::tiles). Queries, keys,
//! softmax weights and values are each the sum of two bf16 numbers, and three products are added. A
//! block of 128 positions is split once for all rows of the task. Sums are stored as groups of 32
//! elements of 32 rows.

use super::scratch::Scratch;
use super::simd::{LANES, TILE_ROWS, TILE_UNIT, TileBlock, TileJob, Tiles};
use super::tiles::{self, UNIT, put, split_unit};
use crate::attend::{Attend, BLOCK_POSITIONS, RowLayout, STATE};

/// Tile units in a block of positions.
const BLOCK: usize = BLOCK_POSITIONS / TILE_UNIT;

/// An attention task that uses tiles.
pub struct AttendTiles<'a>(pub Attend<'a>);

impl TileJob for AttendTiles<'_> {
    /// In addition, the requirements of [`Attend`] must hold.
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
            BLOCK_POSITIONS * dim.max(padded),
            tiles::len(BLOCK_POSITIONS, dim),
            runs * BLOCK * UNIT,
            blocks * LANES * BLOCK_POSITIONS,
            LANES * BLOCK_POSITIONS,
            blocks * LANES * padded,
            m * STATE,
            LANES * TILE_UNIT,
        ]);
        let (high, low) = halves.split_at_mut(LANES * TILE_UNIT / 2);
        let query = &mut rows[..dim];
        query.fill(0.0);
        for i in 0..m {
            task.query(i, query);
            // SAFETY: the caller guarantees the instruction set.
            unsafe {
                put::<V>(query, i % LANES, &mut queries[i / LANES * tiles::len(LANES, dim)..])
            };
        }
        sums.fill(0.0);
        task.begin(state);
        let [score_lie, sum_lie] =
            [BLOCK_POSITIONS, padded].map(|width| RowLayout { together: LANES, width });
        let end = task.visible_end(task.token + task.tokens - 1);
        let mut at = task.first_visible(task.token);
        // SAFETY: the caller guarantees the instruction set. Tiles are not in use yet on this
        // thread.
        unsafe { V::begin() };
        while at < end {
            let n = BLOCK_POSITIONS.min(end - at);
            let here = n.div_ceil(TILE_UNIT);
            // Missing rows and elements are zero.
            let rows = &mut rows[..BLOCK_POSITIONS * dim.max(padded)];
            rows[n * dim..here * TILE_UNIT * dim].fill(0.0);
            if dim > task.layer.dim {
                rows[..n * dim].fill(0.0);
            }
            // SAFETY: the caller guarantees the instruction set; each unit is split from 32 rows.
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
            // SAFETY: the caller guarantees the instruction set; each unit has 64 rows of values.
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
            for (block, s) in scores.chunks_exact_mut(LANES * BLOCK_POSITIONS).enumerate() {
                for (run, c) in
                    s[..here * TILE_UNIT * LANES].chunks_exact_mut(LANES * LANES).enumerate()
                {
                    c.fill(0.0);
                    let w = &queries[block * tiles::len(LANES, dim)..][..tiles::len(LANES, dim)];
                    let x = &keys[run * tiles::len(LANES, dim)..][..tiles::len(LANES, dim)];
                    // SAFETY: this is between `begin` and `end`; both factors have 32 rows of
                    // `units` units, and `c` has 32 × 32 sums.
                    unsafe { multiply::<V>(w, x, units, c) };
                }
            }
            // SAFETY: the caller guarantees the instruction set.
            unsafe { task.softmax_block::<V>(at, n, (scores, score_lie), (sums, sum_lie), state) };
            for (block, s) in scores.chunks_exact(LANES * BLOCK_POSITIONS).enumerate() {
                let panel = &mut weights[..here * TILE_UNIT * LANES];
                // SAFETY: the caller guarantees the instruction set; the weights of 32 rows fill
                // the panel.
                unsafe { put_runs::<V>(s, here, panel) };
                let of = &mut sums[block * LANES * padded..][..LANES * padded];
                for (run, c) in of.chunks_exact_mut(LANES * LANES).enumerate() {
                    let x = &values[run * BLOCK * UNIT..][..here * UNIT];
                    // SAFETY: this is between `begin` and `end`; both factors have `here` units,
                    // and `c` has 32 × 32 sums.
                    unsafe { multiply::<V>(panel, x, here, c) };
                }
            }
            at += n;
        }
        // SAFETY: the caller guarantees the instruction set, and that `layer.out` has space for
        // these results and no other thread writes them.
        unsafe {
            V::end();
            task.scatter(sums, sum_lie, state);
        }
    }
}

/// Adds the products of 32 rows of a panel with 32 columns of the other factor to 32 × 32 sums.
///
/// # Safety
/// Called between [`Tiles::begin`] and [`Tiles::end`]; `w` and `x` have `units` units, `c` has 32 ×
/// 32 sums.
#[inline(always)]
unsafe fn multiply<V: Tiles>(w: &[f32], x: &[f32], units: usize, c: &mut [f32]) {
    debug_assert!(w.len() >= units * UNIT && x.len() >= units * UNIT && c.len() >= LANES * LANES);
    let (w_next, x) = (units * UNIT / 2, x.as_ptr());
    let (w, c) = (w.as_ptr(), c.as_mut_ptr());
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe { V::tile_block(TileBlock { units, w, w_next, x, prefetch_x: x, half: false, c }) };
}

/// Splits 64 rows of a matrix, 32 elements each, into the layout of the second factor. These rows
/// are the columns of that factor. For each pair of rows the high parts of all elements come first,
/// then the low parts.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`TileJob::run`]; `x` has 64 rows, `width` apart, of
/// 32 elements each.
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
        // SAFETY: the caller guarantees the instruction set and two rows of 32 elements. The
        // buffers have space for the high and low parts of each.
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

/// Splits rows that are stored as groups of 32 elements into a panel of `units` units.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`TileJob::run`].
#[inline(always)]
unsafe fn put_runs<V: Tiles>(rows: &[f32], units: usize, panel: &mut [f32]) {
    assert!(rows.len() >= units * UNIT && panel.len() >= units * UNIT);
    /// Floats in a tile: 16 rows of 32 bf16 numbers.
    const TILE: usize = TILE_ROWS * LANES / 2;
    for r in 0..LANES {
        for run in 0..2 * units {
            // SAFETY: the caller guarantees the instruction set; the assertion covers 32 rows of
            // two runs per unit, and the tiles of the panel.
            unsafe {
                let to = panel.as_mut_ptr().add((r / TILE_ROWS * 4 * units + 2 * run) * TILE);
                let high = to.add(r % TILE_ROWS * (LANES / 2));
                let from = rows.as_ptr().add((run * LANES + r) * LANES);
                V::split(from, high.cast(), high.add(TILE).cast());
            }
        }
    }
}
