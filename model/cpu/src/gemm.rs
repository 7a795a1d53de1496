//! Products of a block of tokens with a matrix, in f32 (GEMM).
//!
//! ```text
//! c[t][r] = Σ_k x[t][k] · w[r][k]
//! ```
//!
//! A task is 32 rows of the matrix and some tokens. It decodes its rows once, `KC` columns at a
//! time, transposed into a panel `[k][32 rows]`, and multiplies every token with it. The inner loop
//! keeps `TILE_ROWS` tokens × 32 rows in registers and broadcasts each element of `x` against a row
//! of the panel. So all tokens share the decoding, every format has the same cost, and only f32
//! sums round. On CPUs with two 256-bit FMAs per cycle, 8-bit products with a scale per 32 weights
//! would need as many instructions.
//!
//! Every element sums over `k` in order, so results do not depend on the split into tasks.

use super::product::Part;
use super::scratch::Scratch;
use super::simd::{Job, LANES, Tile, Vector};
use super::unpack;

/// Columns of a panel: 512 × 32 floats are 64 KiB, and 8 rows of x are 16 KiB. It is a multiple of
/// the length of every block.
const KC: usize = 512;

/// A task: up to 32 rows of a matrix, decoded into a panel that all tokens share.
pub struct PanelProduct<'a>(pub Part<'a>);

impl Job for PanelProduct<'_> {
    type Out = ();

    /// In addition, `out + t · stride + row ..` must be valid for `rows` elements for each token
    /// `t`, and no other thread uses them.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let cols = self.0.w.cols;
        assert!(self.0.x.len() >= self.0.tokens * cols && (1..=LANES).contains(&self.0.rows));
        let mut scratch = Scratch::take();
        let kc = KC.min(cols);
        let [panel, rows, edge] = scratch.parts([kc * LANES, kc * LANES, LANES * V::TILE_ROWS]);
        for k0 in (0..cols).step_by(KC) {
            let n = KC.min(cols - k0);
            // SAFETY: `panel` and `rows` have n · 32 elements.
            unsafe { self.fill_panel::<V>(k0, n, rows, panel) };
            let mut t = 0;
            while t < self.0.tokens {
                let m = largest_tile(self.0.tokens - t, V::TILE_ROWS);
                let a = self.0.x[t * cols + k0..].as_ptr();
                // SAFETY: m tokens from t on are in x, each with n elements from k0 on. The caller
                // guarantees the results; `edge` holds m ≤ TILE_ROWS rows of 32.
                unsafe {
                    let out = self.0.out.add(t * self.0.stride + self.0.row);
                    if k0 == 0 {
                        self.start(out, m);
                    }
                    let tile = Tile {
                        n,
                        a,
                        a_stride: cols,
                        b: panel.as_ptr(),
                        b_stride: LANES,
                        c: out,
                        c_stride: self.0.stride,
                    };
                    if self.0.rows == LANES {
                        tile.rows::<V>(m);
                    } else {
                        let c = edge.as_mut_ptr();
                        copy(out, self.0.stride, c, LANES, m, self.0.rows);
                        Tile { c, c_stride: LANES, ..tile }.rows::<V>(m);
                        copy(c, LANES, out, self.0.stride, m, self.0.rows);
                    }
                }
                t += m;
            }
        }
    }
}

impl PanelProduct<'_> {
    /// Decodes `n` columns from `k0` on, transposed.
    ///
    /// # Safety
    /// The requirements of [`Job::run`]; both buffers hold `32 · n` elements.
    #[inline(always)]
    unsafe fn fill_panel<V: Vector>(
        &self,
        k0: usize,
        n: usize,
        rows: &mut [f32],
        panel: &mut [f32],
    ) {
        for r in 0..self.0.rows {
            // SAFETY: the caller guarantees the instruction set.
            unsafe {
                unpack::decode::<V>(
                    self.0.w.format,
                    self.0.w.part(self.0.row + r, k0, n),
                    &mut rows[r * n..][..n],
                )
            };
        }
        rows[self.0.rows * n..LANES * n].fill(0.0);
        // SAFETY: 32 rows of n.
        unsafe { transpose_panel::<V>(rows, n, panel) };
    }

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

/// `panel[k][i] = rows[i][k]` for 32 rows of `n`.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`Job::run`]; both buffers hold `32 · n` elements.
#[inline(always)]
pub unsafe fn transpose_panel<V: Vector>(rows: &[f32], n: usize, panel: &mut [f32]) {
    assert!(rows.len() >= n * LANES && panel.len() >= n * LANES);
    let whole = n / LANES * LANES;
    for k in (0..whole).step_by(LANES) {
        // SAFETY: the assertion shows that columns k .. k + 32 of 32 rows, and 32 rows of the
        // panel, are in the buffers.
        unsafe { V::transpose(rows.as_ptr().add(k), n, panel.as_mut_ptr().add(k * LANES)) };
    }
    for k in whole..n {
        for i in 0..LANES {
            panel[k * LANES + i] = rows[i * n + k];
        }
    }
}

/// # Safety
/// Both pointers are valid for `m` rows of `n` elements at their strides, and do not overlap.
#[inline(always)]
pub unsafe fn copy(
    src: *const f32,
    src_stride: usize,
    dst: *mut f32,
    dst_stride: usize,
    m: usize,
    n: usize,
) {
    for i in 0..m {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            std::ptr::copy_nonoverlapping(src.add(i * src_stride), dst.add(i * dst_stride), n)
        };
    }
}

/// The largest number of tokens that one kernel call takes, if `left` tokens remain.
#[inline(always)]
fn largest_tile(left: usize, most: usize) -> usize {
    [8, 4, 3, 2, 1].into_iter().find(|&m| m <= left && m <= most).unwrap_or(1)
}

impl Tile {
    /// Computes any number of rows.
    ///
    /// # Safety
    /// The CPU has `V`'s instruction set, as for [`Job::run`]; `a` is valid for `m` rows of `n`,
    /// `b` for `n` rows of 32, `c` for `m` rows of 32.
    #[inline(always)]
    pub unsafe fn rows<V: Vector>(mut self, m: usize) {
        let mut left = m;
        while left > 0 {
            let step = largest_tile(left, V::TILE_ROWS);
            // SAFETY: the next `step` of the rows that the caller guarantees. (The comparison with
            // the constant drops kernels that do not fit in the registers.)
            unsafe {
                match step {
                    8 if V::TILE_ROWS >= 8 => V::tile::<8>(self),
                    4 if V::TILE_ROWS >= 4 => V::tile::<4>(self),
                    3 if V::TILE_ROWS >= 3 => V::tile::<3>(self),
                    2 => V::tile::<2>(self),
                    _ => V::tile::<1>(self),
                }
                self.a = self.a.add(step * self.a_stride);
                self.c = self.c.add(step * self.c_stride);
            }
            left -= step;
        }
    }

    /// [`Tile::rows`], skipped if `n` is 0.
    ///
    /// # Safety
    /// The requirements of [`Tile::rows`].
    #[inline(always)]
    pub unsafe fn rows_unless_empty<V: Vector>(self, m: usize) {
        if self.n > 0 {
            // SAFETY: this function's safety contract, which the caller upholds, covers the call.
            unsafe { self.rows::<V>(m) }
        }
    }

    /// Computes `M` rows with all sums in registers.
    ///
    /// # Safety
    /// The requirements of [`Tile::rows`], for `M` rows.
    #[inline(always)]
    pub unsafe fn run<V: Vector, const M: usize>(self) {
        let Tile { n, a, a_stride, b, b_stride, c, c_stride } = self;
        // SAFETY: all pointers stay in the rows that the caller guarantees.
        unsafe {
            let mut acc = [V::splat(0.0); M];
            for (i, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(c.add(i * c_stride));
            }
            for k in 0..n {
                let row = V::load(b.add(k * b_stride));
                for (i, acc) in acc.iter_mut().enumerate() {
                    *acc = V::splat(*a.add(i * a_stride + k)).fma(row, *acc);
                }
            }
            for (i, acc) in acc.iter().enumerate() {
                acc.store(c.add(i * c_stride));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dot::{DotProduct, Input};
    use super::super::int16_products::{RoundRows, WordProduct, row_len};
    use super::super::matvec::RowProduct;
    use super::super::product::Matrix;
    use super::super::quantise::{Quantise, Quantised};
    use super::super::simd::Isa;
    use super::super::testing::{Rng, weights};
    use super::*;
    use kjit_formats::format::ALL;

    #[test]
    fn gemm_result_is_independent_of_other_tokens() {
        let mut rng = Rng::new();
        for format in ALL {
            let (rows, cols, tokens) = (5, if format.block_elems() <= 32 { 608 } else { 512 }, 7);
            let bytes = weights(&mut rng, format, rows, cols);
            let w = Matrix { bytes: &bytes, format, rows, cols };
            let x = rng.reals(tokens * cols);
            for isa in Isa::available() {
                let run = |x: &[f32], ahead: usize| {
                    let (tokens, mut rounded) = (x.len() / cols, Quantised::default());
                    if format.block_elems() > 1 {
                        // SAFETY: this job has no requirement on its fields.
                        unsafe {
                            isa.run(Quantise { x, cols, to: rounded.fit(x.len() / cols, cols) })
                        };
                    }
                    let mut out = vec![f32::NAN; tokens * rows];
                    let x = Input { x, rounded: &rounded, ahead };
                    let part = Part {
                        w,
                        row: 0,
                        rows,
                        x,
                        tokens,
                        bias: None,
                        out: out.as_mut_ptr(),
                        stride: rows,
                    };
                    // SAFETY: the result has a row of `rows` for each token, and only this thread
                    // runs.
                    unsafe { DotProduct(part).run(isa) };
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let alone: Vec<u32> = x.chunks(cols).flat_map(|x| run(x, 0)).collect();
                for n in 2..=tokens {
                    // Prefetching does not change the results, even with addresses far past the
                    // last weight.
                    let made = run(&x[..n * cols], [0, 64, 4096][n % 3]);
                    assert_eq!(
                        made,
                        alone[..n * rows],
                        "{format}, {n} tokens, {}; {rng}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn gemm_matches_f64_for_every_format_and_odd_sizes() {
        let mut rng = Rng::new();
        for format in ALL {
            let shapes = [(1, 256, 1), (31, 768, 2), (33, 256, 7), (65, 1280, 13), (32, 512, 29)];
            // For blocks of 32, the remainders after the groups that are processed together: 1, 3,
            // 9 and 27 blocks.
            let odd = [(3, 32, 1), (5, 96, 3), (31, 288, 2), (33, 864, 11)];
            let odd = odd.into_iter().filter(|_| format.block_elems() <= 32);
            for (rows, cols, tokens) in shapes.into_iter().chain(odd) {
                let bytes = weights(&mut rng, format, rows, cols);
                let w = Matrix { bytes: &bytes, format, rows, cols };
                let mut decoded = vec![0.0; rows * cols];
                format.decode(&bytes, &mut decoded).unwrap();
                let (x, bias) = (rng.reals(tokens * cols), rng.reals(rows));
                for isa in Isa::available() {
                    let mut rounded = Quantised::default();
                    if format.block_elems() > 1 {
                        // SAFETY: this job has no requirement on its fields.
                        unsafe {
                            isa.run(Quantise { x: &x, cols, to: rounded.fit(x.len() / cols, cols) })
                        };
                    }
                    let mut words = vec![f32::NAN; tokens * row_len(cols)];
                    let in_words = isa.has_words() && super::super::int16_products::has(format);
                    if in_words {
                        // SAFETY: this job has no requirement on its fields.
                        unsafe { isa.run(RoundRows { x: &x, cols, to: &mut words }) };
                    }
                    for kernel in ["panel", "row", "dot", "words"]
                        .into_iter()
                        .filter(|k| *k != "words" || in_words)
                    {
                        let mut out = vec![f32::NAN; tokens * rows];
                        for row in (0..rows).step_by(LANES) {
                            let (n, bias, out) =
                                (LANES.min(rows - row), Some(&bias[..]), out.as_mut_ptr());
                            let product = Part {
                                w,
                                row,
                                rows: n,
                                x: &x[..],
                                tokens,
                                bias,
                                out,
                                stride: rows,
                            };
                            // SAFETY: the result has a row of `rows` for each token, and only this
                            // thread runs.
                            unsafe {
                                match kernel {
                                    "panel" => isa.run(PanelProduct(product)),
                                    "row" => isa.run(RowProduct(product)),
                                    "words" => isa.run_words(WordProduct(product.with(&words[..]))),
                                    _ => {
                                        let x =
                                            Input { x: &x, rounded: &rounded, ahead: isa.ahead() };
                                        DotProduct(product.with(x)).run(isa);
                                    }
                                }
                            }
                        }
                        for (i, got) in out.iter().enumerate() {
                            let (t, r) = (i / rows, i % rows);
                            let terms = || {
                                (0..cols).map(|k| {
                                    f64::from(x[t * cols + k]) * f64::from(decoded[r * cols + k])
                                })
                            };
                            let (want, size) = (
                                terms().sum::<f64>() + f64::from(bias[r]),
                                terms().map(f64::abs).sum::<f64>(),
                            );
                            // A sum of n terms in f32 is off by less than n · 2^-24 of the size of
                            // the terms; typically by √n.
                            let off = (f64::from(*got) - want).abs();
                            let sums = (cols as f64).sqrt() * 6e-8 * size + 1e-6;
                            // The error of rounding to 16 bits is half a step of 1/32512 per
                            // element. Integer codes are summed with their bias (up to 128 steps of
                            // the format), which is subtracted again in f32.
                            let weights =
                                || decoded[r * cols..][..cols].iter().map(|w| f64::from(w.abs()));
                            let rounding = weights().sum::<f64>() * 0.6 / 32512.0
                                + 128.0 * 6e-8 * (cols as f64).sqrt();
                            let bound = if matches!(kernel, "dot" | "words") {
                                sums + rounding
                            } else {
                                sums
                            };
                            assert!(
                                off <= bound,
                                "{format} {rows}×{cols}, {tokens} tokens, {}, {kernel}: \
                                 got {got}, not {want}; {rng}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}
