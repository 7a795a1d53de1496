//! Products of few tokens with a matrix in an interleaved copy: groups of sixteen rows.
//!
//! A file stores a matrix row by row. A kernel for this layout multiplies 64 codes of one row in
//! one operation, looks up a scale for each half of them, and must add across the lanes at the end.
//! In the interleaved copy each lane is a row: four codes of each row are multiplied with the same
//! four activations, sixteen scales are one load, and no addition across lanes is needed. A group
//! is 16 rows, a block is 32 columns of a group:
//!
//! ```text
//! of each group, of each block:  16 scales | 16 offsets, if the format has any | codes
//! codes of 4 bits:   16 rows' bytes 0..4 of the block's 16, 16 rows' bytes 4..8, …
//! codes of 8 bits:   16 rows' codes 0..4, 16 rows' codes 4..8, …
//! ```
//!
//! Activations are rounded to 16 bits as in [`dot`](super::dot). The sums of a block are exact.

use super::pool::Pool;
use super::product::{Matrix, Part};
use super::shared_mut::SharedMut;
use super::simd::{InterleavedTile, LANES, WordJob, WordKernel, unsigned};
use kjit_formats::format::{BlockScale, Encoding, Format, GroupScale, Offset};

/// Rows of a group.
pub const ROWS: usize = 16;

/// Tokens that share the unpacked codes of a block.
const TOKENS: usize = 4;

/// Floats of a unit (32 rounded activations): the high bytes, the low bytes, the scale, the scaled
/// sum of the integers, and the integer sum times −[`START`].
pub const UNIT: usize = 20;

/// The factor in the last field of a unit: Q4_0's bias, so that products can start from that field.
pub const START: i32 = 8;

/// Number of floats for a row of `cols` rounded activations.
pub fn row_len(cols: usize) -> usize {
    cols / 32 * UNIT
}

/// The properties of a format that can be interleaved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InterleavedForm {
    /// Size of a block in the file in bytes, and the offsets of scale, bias and codes in it.
    size: usize,
    scale: usize,
    offset: Option<usize>,
    codes: usize,
    /// Number of u32 for a row's codes in a block: 4 for codes of 4 bits, otherwise 8.
    words: usize,
    /// See [`unsigned`].
    bias: u8,
    flip: u8,
    table: Option<[u8; 16]>,
}

impl InterleavedForm {
    fn of(format: &Format) -> Option<InterleavedForm> {
        let Encoding::Blocks(f) = format.encoding else { return None };
        let (BlockScale::F16(scale), GroupScale::One, [plane], 32) =
            (f.scale, f.group_scale, f.planes, f.elems)
        else {
            return None;
        };
        let words = match (plane.bits, plane.run) {
            (4, 16) => 4,
            (8, 32) => 8,
            _ => return None,
        };
        let offset = match f.offset {
            Offset::None => None,
            Offset::Plus(at) => Some(usize::from(at)),
            Offset::MinusScaled(_) => return None,
        };
        let u = unsigned(f.value);
        let (scale, codes) = (usize::from(scale), usize::from(plane.at));
        let form = InterleavedForm {
            size: f.bytes,
            scale,
            offset,
            codes,
            words,
            bias: u.bias,
            flip: u.flip,
            table: u.table,
        };
        (u.up == 0 && (words == 4 || u.table.is_none())).then_some(form)
    }

    /// Number of floats of a block of 16 rows.
    fn len(&self) -> usize {
        (if self.offset.is_some() { ROWS } else { ROWS / 2 }) + ROWS * self.words
    }
}

/// An interleaved copy of a matrix.
pub struct Interleaved {
    form: InterleavedForm,
    /// Number of blocks in a row.
    blocks: usize,
    /// The groups in order. The first group begins at element `begin`, which is aligned to a cache
    /// line.
    data: Vec<f32>,
    begin: usize,
}

impl Interleaved {
    /// Whether a matrix of this format can be interleaved.
    pub fn suits(format: &Format) -> bool {
        InterleavedForm::of(format).is_some()
    }

    /// Creates the copy on all threads. `None` if the format is not supported or there is not
    /// enough memory.
    pub fn of(w: Matrix<'_>, pool: &mut Pool) -> Option<Interleaved> {
        let form = InterleavedForm::of(w.format)?;
        let (blocks, groups) = (w.cols / 32, w.rows.div_ceil(ROWS));
        let len = blocks * form.len();
        let mut data = Vec::new();
        data.try_reserve_exact(groups * len + ROWS).ok()?;
        // Missing rows have scales of zero.
        data.resize(groups * len + ROWS, 0.0);
        let begin = data.as_ptr().align_offset(64).min(ROWS);
        let to = SharedMut::new(&mut data);
        pool.run(groups, &|g| {
            // SAFETY: each task writes another group.
            let to = unsafe { to.part(begin + g * len, len) };
            for r in 0..ROWS.min(w.rows - g * ROWS) {
                let row = w.part(g * ROWS + r, 0, w.cols);
                for (block, to) in row.chunks_exact(form.size).zip(to.chunks_exact_mut(form.len()))
                {
                    put(&form, block, r, to);
                }
            }
        });
        Some(Interleaved { form, blocks, data, begin })
    }

    /// Size of the copy in bytes.
    pub fn bytes(&self) -> usize {
        4 * self.data.len()
    }
}

/// Writes a block of row `r` of a group in interleaved form.
fn put(form: &InterleavedForm, block: &[u8], r: usize, to: &mut [f32]) {
    let (factors, codes) = to.split_at_mut(form.len() - ROWS * form.words);
    for (at, to) in std::iter::once(form.scale)
        .chain(form.offset)
        .zip(factors.as_chunks_mut::<{ ROWS / 2 }>().0)
    {
        let (half, shift) = (u32::from(u16::from_le_bytes([block[at], block[at + 1]])), r % 2 * 16);
        to[r / 2] = f32::from_bits(to[r / 2].to_bits() & !(0xffff << shift) | half << shift);
    }
    let flip = u32::from_ne_bytes([form.flip; 4]);
    let words = block[form.codes..].as_chunks::<4>().0;
    for (word, to) in words.iter().zip(codes.as_chunks_mut::<ROWS>().0) {
        to[r] = f32::from_bits(u32::from_le_bytes(*word) ^ flip);
    }
}

/// A job that rounds rows of `cols` elements to units; `cols` is a multiple of 32.
pub struct RoundUnits<'a> {
    pub x: &'a [f32],
    /// Rows of [`row_len`].
    pub to: &'a mut [f32],
}

impl WordJob for RoundUnits<'_> {
    #[inline(always)]
    unsafe fn run<V: WordKernel>(self) {
        for (x, to) in self.x.as_chunks::<LANES>().0.iter().zip(self.to.as_chunks_mut::<UNIT>().0) {
            // SAFETY: the caller guarantees the instruction set; `x` has 32 elements and `to` is a
            // unit.
            unsafe { V::round_unit(x.as_ptr(), to.as_mut_ptr()) };
        }
    }
}

/// A task: rows of an interleaved matrix, from the first row of a group on. The input is rows of
/// [`row_len`].
pub struct InterleavedProduct<'a> {
    pub part: Part<'a>,
    pub w: &'a Interleaved,
    pub ahead: usize,
}

impl WordJob for InterleavedProduct<'_> {
    /// In addition, `out + t · stride + row ..` must be valid for `rows` elements for each token
    /// `t`, and no other thread uses them.
    #[inline(always)]
    unsafe fn run<V: WordKernel>(self) {
        let InterleavedProduct { part, w, ahead } = self;
        let (x_stride, len) = (row_len(part.w.cols), w.blocks * w.form.len());
        assert!(
            part.x.len() >= part.tokens * x_stride
                && part.row.is_multiple_of(ROWS)
                && w.blocks == part.w.cols / 32
        );
        let mut sums = [[0.0f32; ROWS]; TOKENS];
        let table = w.form.table.unwrap_or_default();
        for row in (part.row..part.row + part.rows).step_by(ROWS) {
            let group = &w.data[w.begin + row / ROWS * len..][..len];
            let here = ROWS.min(part.row + part.rows - row);
            for t in (0..part.tokens).step_by(TOKENS) {
                let tokens = TOKENS.min(part.tokens - t);
                let tile = InterleavedTile {
                    blocks: w.blocks,
                    w: group.as_ptr(),
                    w_len: w.form.len(),
                    bias: w.form.bias,
                    table: table.as_ptr(),
                    x: part.x[t * x_stride..].as_ptr(),
                    x_stride,
                    c: sums.as_mut_ptr().cast(),
                    ahead: if t == 0 { ahead } else { 0 },
                };
                // SAFETY: the caller guarantees the instruction set. The assertion above covers the
                // group's blocks and the tokens' units, and `sums` has space for four tokens.
                unsafe {
                    match tokens {
                        1 => tile_of::<V, 1>(&w.form, tile),
                        2 => tile_of::<V, 2>(&w.form, tile),
                        3 => tile_of::<V, 3>(&w.form, tile),
                        _ => tile_of::<V, TOKENS>(&w.form, tile),
                    }
                }
                for (t, sums) in (t..t + tokens).zip(&sums) {
                    // SAFETY: the caller guarantees that these results are valid and unshared.
                    let to = unsafe {
                        std::slice::from_raw_parts_mut(part.out.add(t * part.stride + row), here)
                    };
                    match part.bias {
                        Some(bias) => to
                            .iter_mut()
                            .zip(sums)
                            .zip(&bias[row..])
                            .for_each(|((to, s), b)| *to = s + b),
                        None => to.copy_from_slice(&sums[..here]),
                    }
                }
            }
        }
    }
}

/// Calls the kernel of a format.
///
/// # Safety
/// The requirements of [`WordKernel::beside_tile`].
#[inline(always)]
unsafe fn tile_of<V: WordKernel, const M: usize>(form: &InterleavedForm, tile: InterleavedTile) {
    // SAFETY: this function's safety contract, which the caller upholds, covers the call.
    unsafe {
        match (form.words, form.offset, form.table) {
            (4, None, None) => V::interleaved_tile::<M, false, false, false>(tile),
            (4, Some(_), None) => V::interleaved_tile::<M, false, true, false>(tile),
            (4, None, Some(_)) => V::interleaved_tile::<M, false, false, true>(tile),
            (4, Some(_), Some(_)) => V::interleaved_tile::<M, false, true, true>(tile),
            (_, None, _) => V::interleaved_tile::<M, true, false, false>(tile),
            (_, Some(_), _) => V::interleaved_tile::<M, true, true, false>(tile),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::multiply::{Product, multiply};
    use super::super::quantise::Quantised;
    use super::super::simd::Isa;
    use super::super::testing::{Rng, weights};
    use super::*;
    use kjit_formats::format::ALL;

    fn isas() -> Vec<Isa> {
        let isas: Vec<Isa> = Isa::available().into_iter().filter(|isa| isa.has_words()).collect();
        if isas.is_empty() {
            eprintln!(
                "SKIPPED: this processor has no instruction for products of bytes in 512 bits"
            );
        }
        isas
    }

    /// Multiplies rows `row .. row + n` of an interleaved matrix with tokens. Elements that are not
    /// written are NaN.
    fn product(
        isa: Isa,
        w: (Matrix<'_>, &Interleaved),
        x: &[f32],
        bias: Option<&[f32]>,
        row: usize,
        n: usize,
    ) -> Vec<f32> {
        let (w, interleaved) = w;
        let tokens = x.len() / w.cols;
        let mut units = vec![f32::NAN; tokens * row_len(w.cols)];
        // SAFETY: this job has no requirement on its fields.
        unsafe { isa.run_words(RoundUnits { x, to: &mut units }) };
        let mut out = vec![f32::NAN; tokens * w.rows];
        let part = Part {
            w,
            row,
            rows: n,
            x: &units[..],
            tokens,
            bias,
            out: out.as_mut_ptr(),
            stride: w.rows,
        };
        // SAFETY: the result has a row for each token, and only this thread runs.
        unsafe { isa.run_words(InterleavedProduct { part, w: interleaved, ahead: isa.ahead() }) };
        out
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn interleaved_gemm_matches_f64_for_odd_sizes() {
        let mut rng = Rng::new();
        let (mut pool, mut formats) = (Pool::new(2), 0);
        for format in ALL.iter().filter(|f| InterleavedForm::of(f).is_some()) {
            formats += 1;
            let shapes = [
                (1, 32, 1),
                (16, 64, 2),
                (31, 96, 3),
                (33, 288, 4),
                (65, 608, 5),
                (17, 1056, 7),
                (97, 576, 1),
            ];
            for (rows, cols, tokens) in shapes {
                let bytes = weights(&mut rng, format, rows, cols);
                let w = Matrix { bytes: &bytes, format, rows, cols };
                let mut decoded = vec![0.0; rows * cols];
                format.decode(&bytes, &mut decoded).unwrap();
                let (x, bias) = (rng.reals(tokens * cols), rng.reals(rows));
                let interleaved = Interleaved::of(w, &mut pool).unwrap();
                for isa in isas() {
                    let out = product(isa, (w, &interleaved), &x, Some(&bias), 0, rows);
                    for (i, got) in out.iter().enumerate() {
                        let (x, w) =
                            (&x[i / rows * cols..][..cols], &decoded[i % rows * cols..][..cols]);
                        let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let want = terms().sum::<f64>() + f64::from(bias[i % rows]);
                        // Blocks are exact except for the rounding of activations to 16 bits, which
                        // is half a step of 1/32512 each. Blocks and offsets are added in f32.
                        let sums = (cols as f64 / 16.0).sqrt()
                            * 1.2e-7
                            * terms().map(f64::abs).sum::<f64>()
                            + 1e-6;
                        let rounding =
                            w.iter().map(|w| f64::from(w.abs())).sum::<f64>() * 0.6 / 32512.0;
                        let off = (f64::from(*got) - want).abs();
                        assert!(
                            off <= sums + rounding,
                            "{format} {rows}×{cols}, {tokens} tokens: \
                             got {got}, expected {want}; {rng}"
                        );
                    }
                    // The results are bit for bit equal with other tokens in the step, and in tasks
                    // of single groups.
                    let alone = x
                        .chunks(cols)
                        .flat_map(|x| product(isa, (w, &interleaved), x, Some(&bias), 0, rows));
                    assert_eq!(
                        bits(&alone.collect::<Vec<_>>()),
                        bits(&out),
                        "{format} {rows}×{cols}; {rng}"
                    );
                    for row in (0..rows).step_by(ROWS) {
                        let n = ROWS.min(rows - row);
                        let part = product(isa, (w, &interleaved), &x, Some(&bias), row, n);
                        for (i, (part, all)) in part.iter().zip(&out).enumerate() {
                            let here = (row..row + n).contains(&(i % rows));
                            assert!(
                                if here { part.to_bits() == all.to_bits() } else { part.is_nan() },
                                "{format}; {rng}"
                            );
                        }
                    }
                }
            }
        }
        assert!(formats >= 4, "{formats}");
    }

    #[test]
    fn interleaved_nan_stays_in_its_row() {
        let mut rng = Rng::new();
        let (rows, cols) = (19, 96);
        for format in ALL.iter().filter(|f| InterleavedForm::of(f).is_some()) {
            for wrong in [f32::NAN, f32::INFINITY] {
                let mut bytes = weights(&mut rng, format, rows, cols);
                let row_bytes = bytes.len() / rows;
                let nan = half::f16::from_f32(wrong).to_le_bytes();
                bytes[17 * row_bytes + format.block_bytes()..][..2].copy_from_slice(&nan);
                let w = Matrix { bytes: &bytes, format, rows, cols };
                let interleaved = Interleaved::of(w, &mut Pool::new(1)).unwrap();
                let mut x = rng.reals(3 * cols);
                x[cols + 40] = wrong;
                for isa in isas() {
                    for (i, y) in
                        product(isa, (w, &interleaved), &x, None, 0, rows).into_iter().enumerate()
                    {
                        let right = i / rows != 1 && i % rows != 17;
                        assert_eq!(
                            y.is_finite(),
                            right,
                            "{format}: token {}, row {}; {rng}",
                            i / rows,
                            i % rows
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn threads_share_interleaved_and_plain_matrices() {
        let mut rng = Rng::new();
        let cols = 96;
        for (isa, threads) in isas().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            for tokens in [1, 3] {
                let x = rng.reals(tokens * cols);
                let matrices =
                    [("Q4_0", 37), ("Q8_0", 40), ("F16", 9), ("Q4_1", 70)].map(|(name, rows)| {
                        let format = Format::by_name(name).unwrap();
                        (format, rows, weights(&mut rng, format, rows, cols))
                    });
                let matrix = |i: usize| {
                    let (format, rows, bytes) = &matrices[i];
                    Matrix { bytes, format, rows: *rows, cols }
                };
                // The second format has no interleaved copy.
                let lay = |i: usize| {
                    (i != 1).then(|| Interleaved::of(matrix(i), &mut Pool::new(threads))).flatten()
                };
                let interleaved = [0, 1, 2, 3].map(lay);
                assert_eq!(interleaved.each_ref().map(Option::is_some), [true, false, false, true]);
                let mut outs =
                    matrices.each_ref().map(|(_, rows, _)| vec![f32::NAN; rows * tokens]);
                let mut results = outs.iter_mut();
                let products = [0, 1, 2, 3].map(|i| Product {
                    w: matrix(i),
                    interleaved: interleaved[i].as_ref(),
                    bias: None,
                    out: SharedMut::new(results.next().unwrap()),
                });
                multiply(
                    &mut Pool::new(threads),
                    isa,
                    &x,
                    tokens,
                    &products,
                    Some(&mut Quantised::default()),
                    false,
                );
                for (i, out) in outs.iter().enumerate() {
                    let w = matrix(i);
                    if let Some(interleaved) = &interleaved[i] {
                        assert_eq!(
                            bits(out),
                            bits(&product(isa, (w, interleaved), &x, None, 0, w.rows)),
                            "{}; {rng}",
                            w.format
                        );
                    }
                    let mut decoded = vec![0.0; w.rows * cols];
                    w.format.decode(w.bytes, &mut decoded).unwrap();
                    for (j, got) in out.iter().enumerate() {
                        let (x, w) = (
                            &x[j / w.rows * cols..][..cols],
                            &decoded[j % w.rows * cols..][..cols],
                        );
                        let want: f64 =
                            x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                        // Bound of the rounding: a row has 96 elements and weights are below 4.
                        assert!(
                            (f64::from(*got) - want).abs() < 96.0 * 4.0 / 32512.0,
                            "got {got}, expected {want}; {rng}"
                        );
                    }
                }
            }
        }
    }
}
