//! Products of a block of tokens with a matrix whose blocks of 256 have integer group scales (Q4_K,
//! Q5_K, Q6_K), with int8 tiles (AMX).
//!
//! ```text
//! W = 2^n s[g] (u − bias) = 256 a + b,  x ≈ d[t] (256 h + l):
//! c[r][t] = Σ_blocks 2^(8−n) d[r] d[t] (256 Σ a h + Σ (a l + b h)) + Σ_g o[r][g] Σ_k x
//! ```
//!
//! A code of 4 or 6 bits times the integer scale of its group (6 or 8 bits) fits in 16 bits. The
//! product is shifted left to use all 16 bits, and stored as two signed bytes. Elements of the
//! input are two signed bytes with one scale per 256 columns. So the sums of a block stay in tiles,
//! are exact, and are scaled once. One 16-bit product converts a weight to two bytes; a code of 4
//! bits needs only a table lookup. In contrast, [`tiles`](super::tiles) must decode the weight and
//! round it twice to bf16. Three int8 products replace six, in the time of three bf16 products. The
//! omitted product `b l` is at most 2^-15 of the largest product of a block's scale, and typically
//! 2^-17. The rounding of the input has the same error.
//!
//! Offsets (one per row and 32 columns) are multiplied with sums of the input over these columns.
//! This is a float product by bf16 tiles, with 1/32 of the columns.
//!
//! Rounding to 16 bits with one scale is off by at most 2^-16 of the largest of 256 elements. A
//! block of the input with a non-finite element gives NaN.
//!
//! Every element sums the blocks in the same order, so results do not depend on the split into
//! tasks.

use super::dot::six_bits;
use super::format_type::{FormatType, Id};
use super::product::Part;
use super::scratch::Scratch;
use super::simd::{ByteBlock, LANES, TILE_ROWS, TILE_UNIT, TileBlock, TileJob, Tiles, unsigned};
use super::tiles::{self, TaskSums, UNIT, put, split_unit};
use kjit_formats::format::{BlockScale, Format, GroupScale, Offset};

/// Columns of a block, both of the matrix and of the input.
const BLOCK: usize = 256;

/// Columns of a group. The input is summed over a group for the offsets.
const GROUP: usize = 32;

/// Columns whose group sums fill one unit of the offsets' tiles.
pub const CHUNK: usize = GROUP * TILE_UNIT;

/// Size in floats of the bytes of a block for 32 tokens or 32 rows, two bytes per element.
const BYTES: usize = LANES * BLOCK * 2 / 4;

/// Floats of a tile.
const TILE: usize = TILE_ROWS * 16;

/// GGUF type ids.
const Q4_K: u32 = 12;
const Q5_K: u32 = 13;
const Q6_K: u32 = 14;

/// Minimum number of tokens for this kernel. Tokens/s of an 8B model in Q4_K_M with int16 (bf16
/// tiles from 128 tokens on) and with this kernel. 16 threads of a Xeon: 32 tokens 75 and 130, 128
/// tokens 145 and 229, 512 tokens 171 and 231. Two threads: 32 tokens 16 and 26, 128 tokens 26 and
/// 41.
const MIN_TOKENS: usize = 32;

/// Whether to use this kernel for a format and a number of tokens.
pub fn has(format: &Format, tokens: usize) -> bool {
    tokens >= MIN_TOKENS && matches!(format.ggml_id, Q4_K | Q5_K | Q6_K)
}

/// Number of floats for 32 tokens of `cols` elements: bytes and scales of each block, group sums.
pub fn len(cols: usize) -> usize {
    cols / BLOCK * (BYTES + LANES) + cols.div_ceil(CHUNK) * UNIT
}

/// The left shift of a format's products of code and scale. It is the largest shift after which
/// both bytes are signed bytes.
const fn shift<F: FormatType>() -> u32 {
    let (mut bits, mut n, planes) = (0, 0, F::BLOCK.planes);
    while n < planes.len() {
        bits += planes[n].bits as u32;
        n += 1;
    }
    let largest: i32 = match F::BLOCK.group_scale {
        GroupScale::SixBitPairs(_) => 63 * ((1 << bits) - 1),
        // A signed byte times codes from which half of their range is subtracted.
        _ => 128 << (bits - 1),
    };
    (LARGEST as i32 / largest).ilog2()
}

/// Both bytes of the product of each 6-bit scale (index) with each 4-bit code.
static BYTES_OF: [[[u8; 16]; 2]; 64] = {
    let mut all = [[[0; 16]; 2]; 64];
    let mut i = 0;
    while i < 64 * 16 {
        let w = ((i / 16 * (i % 16)) as i32) << shift::<Id<Q4_K>>();
        all[i / 16][0][i % 16] = ((w + 128) >> 8) as u8;
        all[i / 16][1][i % 16] = w as u8;
        i += 1;
    }
    all
};

/// Offset and length of the bytes, the scales and the sums of a chunk of columns, in the data of 32
/// tokens.
pub fn chunk_ranges(cols: usize, chunk: usize) -> [(usize, usize); 3] {
    let (all, first) = (cols / BLOCK, chunk * (CHUNK / BLOCK));
    let here = (CHUNK / BLOCK).min(all - first);
    let sums = all * (BYTES + LANES) + chunk * UNIT;
    [(first * BYTES, here * BYTES), (all * BYTES + first * LANES, here * LANES), (sums, UNIT)]
}

/// A job that rounds a chunk of up to 32 rows of `cols` elements. The parts of missing rows are
/// undefined.
pub struct RoundTiles<'a> {
    pub x: &'a [f32],
    pub cols: usize,
    pub chunk: usize,
    /// The slices of [`chunk_ranges`]: bytes, scales, sums.
    pub to: [&'a mut [f32]; 3],
}

impl TileJob for RoundTiles<'_> {
    #[inline(always)]
    unsafe fn run<V: Tiles>(self) {
        let RoundTiles { x, cols, chunk, to: [bytes, scales, sums] } = self;
        let rows = x.len() / cols;
        assert!(rows <= LANES && bytes.len() / BYTES == scales.len() / LANES && sums.len() == UNIT);
        let mut scratch = Scratch::take();
        const WORDS: usize = BLOCK / 4;
        let [high, low, groups, first, second] =
            scratch.parts([LANES * WORDS, LANES * WORDS, LANES * TILE_UNIT, UNIT / 2, UNIT / 2]);
        groups.fill(0.0);
        let blocks =
            bytes.as_chunks_mut::<BYTES>().0.iter_mut().zip(scales.as_chunks_mut::<LANES>().0);
        for (i, (bytes, scales)) in blocks.enumerate() {
            scales.fill(0.0);
            let at = chunk * CHUNK + i * BLOCK;
            for (r, row) in x.chunks_exact(cols).enumerate() {
                let (Some((row, _)), Some((high, _)), Some((low, _))) = (
                    row[at..].split_first_chunk::<BLOCK>(),
                    high[r * WORDS..].split_first_chunk_mut::<WORDS>(),
                    low[r * WORDS..].split_first_chunk_mut::<WORDS>(),
                ) else {
                    continue;
                };
                let sums = &mut groups[r * TILE_UNIT + i * (BLOCK / GROUP)..][..BLOCK / GROUP];
                let bytes;
                (scales[r], bytes) = round(row, sums);
                for (to, bytes) in [high, low].into_iter().zip(&bytes) {
                    let words = bytes.as_chunks::<4>().0;
                    to.iter_mut()
                        .zip(words)
                        .for_each(|(to, word)| *to = f32::from_bits(u32::from_ne_bytes(*word)));
                }
            }
            let to = bytes.as_mut_ptr();
            for pair in 0..2 {
                // SAFETY: the caller guarantees the instruction set. There are 32 rows of 32 u32
                // from `pair` on, and the output has space for twice as many.
                unsafe {
                    let to = to.add(pair * (BYTES / 2));
                    V::transpose(high.as_ptr().add(pair * 32), WORDS, to);
                    V::transpose(low.as_ptr().add(pair * 32), WORDS, to.add(BYTES / 4));
                }
            }
        }
        if let Some((sums, _)) = sums.split_first_chunk_mut::<UNIT>() {
            // SAFETY: the caller guarantees the instruction set.
            unsafe {
                split_unit::<V>(&groups[..rows * TILE_UNIT], TILE_UNIT, 0, sums, first, second)
            };
        }
    }
}

/// The largest integer whose rounded high byte is a signed byte.
const LARGEST: f32 = 32_639.0;

/// Rounds a block to two signed bytes per element. Returns the scale and the bytes. Writes the sums
/// of the groups.
#[inline(always)]
fn round(x: &[f32; BLOCK], sums: &mut [f32]) -> (f32, [[u8; BLOCK]; 2]) {
    let mut bytes = [[0; BLOCK]; 2];
    // The values are compared as integers, because float maxima ignore NaN.
    let most = x.iter().fold(0, |most: u32, x| most.max(x.to_bits() & 0x7fff_ffff));
    if most >= f32::INFINITY.to_bits() {
        sums.fill(f32::NAN);
        return (f32::NAN, bytes);
    }
    let most = f32::from_bits(most);
    let inverse = LARGEST / most;
    // The inverse is infinite for a block of subnormals. All its elements then become zero.
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let scale = most / LARGEST;
    let [high, low] = &mut bytes;
    let (high, low) = (high.as_chunks_mut::<GROUP>().0, low.as_chunks_mut::<GROUP>().0);
    for (((x, high), low), to) in x.as_chunks::<GROUP>().0.iter().zip(high).zip(low).zip(sums) {
        let mut sum = 0;
        for i in 0..GROUP {
            // SAFETY: the value is at most LARGEST in size and not NaN.
            let q: i32 = unsafe { (x[i] * inverse).round_ties_even().to_int_unchecked() };
            sum += q;
            high[i] = ((q + 128) >> 8) as u8;
            low[i] = q as u8;
        }
        *to = sum as f32 * scale;
    }
    (scale, bytes)
}

/// A task: at most [`tiles::ROWS`] rows of a matrix. The input was rounded by [`RoundTiles`]:
/// blocks of 32 tokens in order.
pub struct ByteProduct<'a>(pub Part<'a>);

impl TileJob for ByteProduct<'_> {
    /// In addition, `out + t · stride + row ..` must be valid for `rows` elements for each token
    /// `t`, and no other thread uses them.
    #[inline(always)]
    unsafe fn run<V: Tiles>(self) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            match self.0.w.format.ggml_id {
                Q4_K => multiply::<V, Id<Q4_K>>(self.0),
                Q5_K => multiply::<V, Id<Q5_K>>(self.0),
                Q6_K => multiply::<V, Id<Q6_K>>(self.0),
                _ => {}
            }
        }
    }
}

/// Whether a format has offsets.
const fn has_offsets<F: FormatType>() -> bool {
    !matches!(F::BLOCK.offset, Offset::None)
}

/// # Safety
/// The requirements of [`ByteProduct`]'s job hold.
#[inline(always)]
unsafe fn multiply<V: Tiles, F: FormatType>(part: Part<'_>) {
    let Part { w, row, rows, x, tokens, .. } = part;
    let (cols, each) = (w.cols, len(w.cols));
    let (panels, blocks) = (rows.div_ceil(LANES), tokens.div_ceil(LANES));
    assert!(
        x.len() >= blocks * each && (1..=tiles::ROWS).contains(&rows) && cols.is_multiple_of(BLOCK)
    );
    let (all, chunks) = (cols / BLOCK, cols.div_ceil(CHUNK));
    // Offsets of a row, padded to whole units.
    let padded = if const { has_offsets::<F>() } { chunks * TILE_UNIT } else { 0 };
    let mut scratch = Scratch::take();
    let [panel, scales, room, sums, offsets, halves, transposed] = scratch.parts([
        BYTES,
        LANES,
        4 * TILE,
        panels * blocks * LANES * LANES,
        panels * LANES * padded,
        chunks * UNIT,
        LANES * LANES,
    ]);
    sums.fill(0.0);
    offsets.fill(0.0);
    // SAFETY: the caller guarantees the instruction set. Tiles are not in use yet on this thread.
    unsafe { V::begin() };
    for b in 0..all {
        for p in 0..panels {
            for r in 0..LANES.min(rows - p * LANES) {
                tiles::prefetch_next::<V>(&part, (p, panels), (b * BLOCK, BLOCK), r);
                let offsets = if padded > 0 {
                    &mut offsets[(p * LANES + r) * padded + b * (BLOCK / GROUP)..][..BLOCK / GROUP]
                } else {
                    &mut []
                };
                // SAFETY: the caller guarantees the instruction set; a panel has space for 32 rows.
                unsafe {
                    let block = w.part(row + p * LANES + r, b * BLOCK, BLOCK);
                    scales[r] = fill::<V, F>(block, r, panel.as_mut_ptr(), offsets);
                }
            }
            let sums = &mut sums[p * blocks * LANES * LANES..][..blocks * LANES * LANES];
            for (t, c) in sums.as_chunks_mut::<{ LANES * LANES }>().0.iter_mut().enumerate() {
                let at = |t: usize| x.as_ptr().wrapping_add(t * each + b * BYTES);
                // Prefetches the next tokens for this panel; after the last tokens, the first
                // tokens for the next panel. With only 32 tokens they do not change, so they need
                // no prefetch.
                let prefetch_x = match (t + 1 < blocks, p + 1 < panels) {
                    (true, _) => at(t + 1),
                    (_, true) if blocks > 1 => at(0),
                    (_, true) => std::ptr::null(),
                    (_, false) => at(0).wrapping_add(BYTES),
                };
                // SAFETY: the caller guarantees the instruction set. `x` has the block's bytes and
                // scales for each 32 tokens. There are 32 × 32 sums.
                unsafe {
                    V::byte_block(ByteBlock {
                        w: panel.as_ptr(),
                        w_scales: scales.as_ptr(),
                        x: at(t),
                        x_scales: x.as_ptr().add(t * each + all * BYTES + b * LANES),
                        prefetch_x,
                        half: tokens - t * LANES <= TILE_ROWS,
                        room: room.as_mut_ptr(),
                        c: c.as_mut_ptr(),
                    });
                }
            }
        }
    }
    if padded > 0 {
        for p in 0..panels {
            for r in 0..LANES.min(rows - p * LANES) {
                // SAFETY: the caller guarantees the instruction set; `halves` has space for 32
                // rows.
                unsafe { put::<V>(&offsets[(p * LANES + r) * padded..][..padded], r, halves) };
            }
            let sums = &mut sums[p * blocks * LANES * LANES..][..blocks * LANES * LANES];
            for (t, c) in sums.as_chunks_mut::<{ LANES * LANES }>().0.iter_mut().enumerate() {
                let at = |t: usize| x.as_ptr().wrapping_add(t * each + all * (BYTES + LANES));
                // SAFETY: the caller guarantees the instruction set. `x` has group sums for each 32
                // tokens, padded to whole units as the panel is. There are 32 × 32 sums.
                unsafe {
                    V::tile_block(TileBlock {
                        units: chunks,
                        w: halves.as_ptr(),
                        w_next: chunks * UNIT / 2,
                        x: at(t),
                        prefetch_x: at((t + 1) % blocks),
                        half: tokens - t * LANES <= TILE_ROWS,
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
        TaskSums { part: &part, sums, blocks }.run::<V>(transposed);
    }
}

/// Writes row `r` (of 32) of a block to a panel: for each 16 rows and 64 columns, a tile of high
/// bytes and a tile of low bytes. Returns the row's scale (the factor of `256 Σ a h + …`), and
/// writes its offsets if the format has offsets.
///
/// # Safety
/// The CPU has `V`'s instruction set, as for [`TileJob::run`]; the panel has [`BYTES`] floats.
#[inline(always)]
unsafe fn fill<V: Tiles, F: FormatType>(
    block: &[u8],
    r: usize,
    panel: *mut f32,
    offsets: &mut [f32],
) -> f32 {
    let f = const { F::BLOCK };
    // Codes of 4 bits without a table, with group scales of 6 bits.
    let four = const {
        let six =
            matches!(F::BLOCK.group_scale, GroupScale::SixBitPairs(_)) && F::BLOCK.group == GROUP;
        six && F::BLOCK.planes.len() == 1
            && F::BLOCK.planes[0].bits == 4
            && unsigned(F::BLOCK.value).bias == 0
    };
    let bias = i16::from(const { unsigned(F::BLOCK.value).bias });
    assert!(r < LANES && block.len() >= f.bytes);
    // SAFETY: the caller guarantees the instruction set.
    let half = |at: u16| unsafe {
        V::half(u16::from_le_bytes([block[usize::from(at)], block[usize::from(at) + 1]]))
    };
    let scale = if let BlockScale::F16(at) = f.scale { half(at) } else { f.block_scale(block) };
    let at = block.as_ptr();
    // SAFETY: the row has 64 bytes in each of eight tiles, and the caller guarantees the panel.
    let to = unsafe { panel.add(r / TILE_ROWS * (BYTES / 2) + r % TILE_ROWS * 16) };
    let to = |i: usize| {
        (to.wrapping_add(2 * i * TILE).cast(), to.wrapping_add((2 * i + 1) * TILE).cast())
    };
    // The scales of each 16 columns.
    let mut scales = [[0u8; 4]; 4];
    if let GroupScale::SixBitPairs(at) = f.group_scale {
        let mut packed = [0; 12];
        packed.copy_from_slice(&block[usize::from(at)..][..12]);
        let (s, o) = six_bits(packed);
        for (to, s) in scales.iter_mut().zip(s.to_le_bytes().as_chunks::<2>().0) {
            *to = [s[0], s[0], s[1], s[1]];
        }
        if let Offset::MinusScaled(at) = f.offset {
            let offset = half(at);
            offsets
                .iter_mut()
                .zip(o.to_le_bytes())
                .for_each(|(to, o)| *to = -(offset * f32::from(o)));
        }
    } else {
        for (g, to) in scales.as_flattened_mut().iter_mut().enumerate() {
            *to = f.group_codes(block, g * 16 / f.group).0 as u8;
        }
    }
    // SAFETY: the caller guarantees the instruction set; the assertion covers the block's bytes,
    // and the row's tiles are in the panel.
    unsafe {
        if four {
            let tables =
                |i: usize| [scales[i][0], scales[i][2]].map(|s| &BYTES_OF[usize::from(s % 64)]);
            V::looked_up(V::codes::<F, 0>(at, at), tables(0), to(0).0, to(0).1);
            V::looked_up(V::codes::<F, 1>(at, at), tables(1), to(1).0, to(1).1);
            V::looked_up(V::codes::<F, 2>(at, at), tables(2), to(2).0, to(2).1);
            V::looked_up(V::codes::<F, 3>(at, at), tables(3), to(3).0, to(3).1);
        } else {
            // Scales of six bits are unsigned.
            let scales = scales
                .map(|four| four.map(|s| i16::from(s.cast_signed()) << const { shift::<F>() }));
            V::scaled_bytes(V::codes::<F, 0>(at, at), bias, &scales[0], to(0).0, to(0).1);
            V::scaled_bytes(V::codes::<F, 1>(at, at), bias, &scales[1], to(1).0, to(1).1);
            V::scaled_bytes(V::codes::<F, 2>(at, at), bias, &scales[2], to(2).0, to(2).1);
            V::scaled_bytes(V::codes::<F, 3>(at, at), bias, &scales[3], to(3).0, to(3).1);
        }
    }
    scale * const { 256.0 / (1u32 << shift::<F>()) as f32 }
}

#[cfg(test)]
mod tests {
    use super::super::product::Matrix;
    use super::super::simd::Isa;
    use super::super::testing::{Rng, weights};
    use super::*;
    use kjit_formats::format::{ALL, Encoding};

    fn shift_of(format: &Format) -> u32 {
        match format.ggml_id {
            Q4_K => shift::<Id<Q4_K>>(),
            Q5_K => shift::<Id<Q5_K>>(),
            _ => shift::<Id<Q6_K>>(),
        }
    }

    /// Rows of `cols` elements, rounded. Elements that are not written are NaN.
    fn rounded(isa: Isa, x: &[f32], cols: usize) -> Vec<f32> {
        let mut to = vec![f32::NAN; (x.len() / cols).div_ceil(LANES) * len(cols)];
        for (x, to) in x.chunks(LANES * cols).zip(to.chunks_mut(len(cols))) {
            for chunk in 0..cols.div_ceil(CHUNK) {
                let [a, b, c] = chunk_ranges(cols, chunk);
                let (bytes, rest) = to.split_at_mut(cols / BLOCK * BYTES);
                let (scales, sums) = rest.split_at_mut(cols / BLOCK * LANES);
                let before = bytes.len() + scales.len();
                let to = [
                    &mut bytes[a.0..][..a.1],
                    &mut scales[b.0 - cols / BLOCK * BYTES..][..b.1],
                    &mut sums[c.0 - before..][..c.1],
                ];
                // SAFETY: this job has no requirement on its fields.
                unsafe { isa.run_tiles(RoundTiles { x, cols, chunk, to }) };
            }
        }
        to
    }

    fn product(
        isa: Isa,
        w: Matrix<'_>,
        x: &[f32],
        tokens: usize,
        (row, rows): (usize, usize),
        out: &mut [f32],
    ) {
        let (bias, out, stride) = (None, out.as_mut_ptr(), w.rows);
        let part = Part { w, row, rows, x, tokens, bias, out, stride };
        // SAFETY: the result has a row of `stride` for each token, and only this thread runs.
        unsafe { isa.run_tiles(ByteProduct(part)) };
    }

    #[test]
    fn byte_tiles_match_f64_for_any_task_split() {
        let mut rng = Rng::new();
        for format in ALL.iter().filter(|f| has(f, MIN_TOKENS)) {
            let Encoding::Blocks(described) = format.encoding else {
                panic!("{format} has no blocks")
            };
            // The sizes leave rows after the last whole panel, tokens after the last whole tile,
            // and columns after the last whole chunk.
            for (rows, cols, tokens) in [
                (1, 256, 1),
                (37, 768, 17),
                (128, 256, 33),
                (100, 2048, 50),
                (65, 2304, 64),
                (31, 4352, 31),
            ] {
                let bytes = weights(&mut rng, format, rows, cols);
                let w = Matrix { bytes: &bytes, format, rows, cols };
                let mut decoded = vec![0.0; rows * cols];
                format.decode(&bytes, &mut decoded).unwrap();
                let mut x = rng.reals(tokens * cols);
                x.iter_mut().step_by(97).for_each(|x| *x *= 30.0);
                let offset = |r: usize, k: usize| {
                    let block = &w.part(r, k / BLOCK * BLOCK, BLOCK);
                    f64::from(described.factors(block, k % BLOCK / described.group).offset)
                };
                // The value of the lowest bit of a weight's low byte.
                let step = |r: usize, b: usize| {
                    let (block, BlockScale::F16(at)) =
                        (w.part(r, b * BLOCK, BLOCK), described.scale)
                    else {
                        panic!("{format} has another scale")
                    };
                    let bytes = [block[usize::from(at)], block[usize::from(at) + 1]];
                    let n = shift_of(format);
                    f64::from(half::f16::from_le_bytes(bytes).to_f32().abs()) / f64::from(1 << n)
                };
                for isa in Isa::with_tiles() {
                    let ready = rounded(isa, &x, cols);
                    let mut out = vec![f32::NAN; tokens * rows];
                    for first in (0..rows).step_by(tiles::ROWS) {
                        product(
                            isa,
                            w,
                            &ready,
                            tokens,
                            (first, tiles::ROWS.min(rows - first)),
                            &mut out,
                        );
                    }
                    for (i, got) in out.iter().enumerate() {
                        let (t, r) = (i / rows, i % rows);
                        let (x, w) = (&x[t * cols..][..cols], &decoded[r * cols..][..cols]);
                        let want = x
                            .iter()
                            .zip(w)
                            .map(|(x, w)| f64::from(*x) * f64::from(*w))
                            .sum::<f64>();
                        // Each element is off by half a step of its block's scale, and the product
                        // of the two low bytes is omitted. Offsets are multiplied with sums of 32
                        // columns in split bf16, which has an error of the same size. Sums are f32.
                        let (mut rough, mut fine) = (0.0, 0.0);
                        for (b, (x, w)) in x.chunks(BLOCK).zip(w.chunks(BLOCK)).enumerate() {
                            let most = f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs())));
                            rough += BLOCK as f64 * 128.0 * 128.0 * step(r, b) * most / 32_639.0;
                            for (k, (x, w)) in x.iter().zip(w).enumerate() {
                                let o = offset(r, b * BLOCK + k).abs();
                                rough += (f64::from(w.abs()) + 2.0 * o) * most / 65_278.0;
                                fine += (f64::from(w.abs()) + 2.0 * o) * f64::from(x.abs());
                            }
                        }
                        let bound =
                            rough + fine * (4.0 / 65_536.0 + (cols as f64).sqrt() * 1.2e-7) + 1e-6;
                        let off = (f64::from(*got) - want).abs();
                        assert!(
                            off <= bound,
                            "{format} {rows}×{cols}, {tokens} tokens, {}: \
                             got {got}, expected {want}; {rng}",
                            isa.name()
                        );
                    }
                    // Other tasks (single panels, fewer tokens) give bit-for-bit equal results and
                    // write nothing else.
                    let fewer = tokens.min(LANES);
                    let mut parts = vec![f32::NAN; tokens * rows];
                    for first in (0..rows).step_by(LANES) {
                        product(
                            isa,
                            w,
                            &ready,
                            fewer,
                            (first, LANES.min(rows - first)),
                            &mut parts,
                        );
                    }
                    let same = parts
                        .iter()
                        .zip(&out)
                        .take(fewer * rows)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{format}, {rows}×{cols}, {}: other bits; {rng}", isa.name());
                    assert!(
                        parts[fewer * rows..].iter().all(|x| x.is_nan()),
                        "{format}: rows of no token were written"
                    );
                }
            }
        }
    }

    #[test]
    fn non_finite_input_affects_only_its_token() {
        let mut rng = Rng::new();
        let (rows, cols, tokens) = (33, 512, 35);
        for format in ALL.iter().filter(|f| has(f, MIN_TOKENS)) {
            let bytes = weights(&mut rng, format, rows, cols);
            let w = Matrix { bytes: &bytes, format, rows, cols };
            let mut x = rng.reals(tokens * cols);
            (x[3], x[34 * cols + 300]) = (f32::NAN, f32::NEG_INFINITY);
            x[7 * cols..8 * cols].fill(0.0);
            x[8 * cols..9 * cols].fill(f32::from_bits(1));
            for isa in Isa::with_tiles() {
                let mut out = vec![0.0; tokens * rows];
                product(isa, w, &rounded(isa, &x, cols), tokens, (0, rows), &mut out);
                for (t, row) in out.chunks(rows).enumerate() {
                    let fine = match t {
                        0 | 34 => row.iter().all(|x| !x.is_finite()),
                        7 | 8 => row.iter().all(|x| x.abs() < 1e-30),
                        _ => row.iter().all(|x| x.is_finite()),
                    };
                    assert!(fine, "{format}, {}, token {t}: {row:?}; {rng}", isa.name());
                }
            }
        }
    }

    #[test]
    fn two_bytes_hold_code_times_scale_exactly() {
        assert_eq!((shift::<Id<Q4_K>>(), shift::<Id<Q5_K>>(), shift::<Id<Q6_K>>()), (5, 4, 2));
        for (s, [a, b]) in BYTES_OF.iter().enumerate() {
            for u in 0..16 {
                let w = 256 * i32::from(a[u] as i8) + i32::from(b[u] as i8);
                assert_eq!(w, (s * u) as i32 * 32);
            }
        }
    }

    /// With the largest scale and code of each format, products fit in 16 bits and block sums fit
    /// in the tiles.
    #[test]
    fn largest_codes_and_scales_do_not_overflow() {
        for format in ALL.iter().filter(|f| has(f, MIN_TOKENS)) {
            for fill in [0u8, 0x7f, 0x80, 0xff] {
                let Encoding::Blocks(described) = format.encoding else {
                    panic!("{format} has no blocks")
                };
                let mut bytes = vec![fill; format.block_bytes()];
                let one = half::f16::ONE.to_le_bytes();
                if let BlockScale::F16(at) = described.scale {
                    bytes[usize::from(at)..][..2].copy_from_slice(&one);
                }
                if let Offset::MinusScaled(at) = described.offset {
                    bytes[usize::from(at)..][..2].copy_from_slice(&one);
                }
                let w = Matrix { bytes: &bytes, format, rows: 1, cols: BLOCK };
                let mut decoded = vec![0.0; BLOCK];
                format.decode(&bytes, &mut decoded).unwrap();
                for sign in [1.0, -1.0] {
                    let x: Vec<f32> =
                        (0..BLOCK).map(|i| if i % 2 == 0 { sign } else { -sign * 0.996 }).collect();
                    let want: f64 =
                        x.iter().zip(&decoded).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    let size: f64 = decoded.iter().map(|w| f64::from(w.abs()) + 126.0).sum();
                    for isa in Isa::with_tiles() {
                        let mut out = [f32::NAN];
                        product(isa, w, &rounded(isa, &x, BLOCK), 1, (0, 1), &mut out);
                        let off = (f64::from(out[0]) - want).abs();
                        let n = shift_of(format);
                        let left_out = BLOCK as f64 * 128.0 * 128.0 / f64::from(1 << n) / 32_639.0;
                        assert!(
                            off <= size * 6.0 / 65_536.0 + left_out,
                            "{format} of {fill:#x}, {}: got {out:?}, expected {want}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}
