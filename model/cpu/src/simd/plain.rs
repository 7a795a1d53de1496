//! [`Vector`] as an array, for every CPU. The compiler decides whether it uses registers.

use super::codes::{CodeLocation, plane_pieces, unsigned};
use super::tile_arguments::Tile;
use super::vector::{CHUNK, Job, LANES, Vector};
use crate::format_type::FormatType;
use half::f16;

/// Runs a job. This is a separate function, so that it is compiled once:
/// [`Isa::run`](super::Isa::run) is compiled for each caller.
///
/// # Safety
/// The job's requirements on its fields hold.
#[inline(never)]
pub unsafe fn enter<J: Job>(job: J) -> J::Out {
    // SAFETY: this vector needs no instruction set; the caller guarantees the job's requirements.
    unsafe { job.run::<Plain>() }
}

/// An array of 32 floats.
#[derive(Clone, Copy)]
pub struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Plain(self.0.map(f))
    }

    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Plain(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

// SAFETY: no instruction set is needed; memory is accessed only through the pointers, for 32
// elements, as the trait describes.
unsafe impl Vector for Plain {
    const TILE_ROWS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Plain([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller guarantees that the pointer is valid for 32 elements.
        Plain(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller guarantees that the pointer is valid for 32 elements.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees that the pointer is valid for 32 elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Plain(bits.map(|b| f16::from_bits(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: the caller guarantees that the pointer is valid for 32 elements.
        unsafe {
            p.cast::<[u16; LANES]>().write_unaligned(self.0.map(|x| f16::from_f32(x).to_bits()))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees that the pointer is valid for 32 elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Plain(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: the caller guarantees that the pointer is valid for 32 elements.
        let bytes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        Plain(bytes.map(f32::from))
    }

    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // Rounds twice: without the FMA instruction, `mul_add` is a function call of about a
        // hundred cycles.
        Plain(std::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
    }

    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        self.map(f32::round_ties_even)
    }

    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        self.map(|n| f32::from_bits(((n as i32).wrapping_add(127) << 23) as u32))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // Sums pairwise, as the reductions of registers do: in five steps, half of the lanes are
        // added to the other half.
        let mut a = self.0;
        for half in [16, 8, 4, 2, 1] {
            for i in 0..half {
                a[i] += a[i + half];
            }
        }
        a[0]
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn transpose(src: *const f32, stride: usize, dst: *mut f32) {
        for i in 0..LANES {
            for j in 0..LANES {
                // SAFETY: inside the 32 rows of 32 and the 1024 elements that the caller
                // guarantees.
                unsafe { *dst.add(j * LANES + i) = *src.add(i * stride + j) };
            }
        }
    }

    #[inline(never)]
    unsafe fn tile<const M: usize>(tile: Tile) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { tile.run::<Plain, M>() }
    }

    type Codes = [u8; CHUNK];

    #[inline(always)]
    unsafe fn half(bits: u16) -> f32 {
        f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    unsafe fn codes<F: FormatType, const C: usize>(
        first: *const u8,
        second: *const u8,
    ) -> Self::Codes {
        let known = const { [plane_pieces(&F::BLOCK, 0, C), plane_pieces(&F::BLOCK, 1, C)] };
        let f = const { F::BLOCK };
        let u = const { unsigned(F::BLOCK.value) };
        let mut codes = [0; CHUNK];
        for (j, codes) in codes.chunks_exact_mut(16).enumerate() {
            let mut up = 0;
            for (plane, known) in f.planes.iter().zip(known) {
                let CodeLocation { second: in_second, at, shift } = known[j];
                let block = if in_second { second } else { first };
                let mask = ((1u16 << plane.bits) - 1) as u8;
                // SAFETY: a test of each format shows that the plane is in the block, and the
                // caller guarantees a readable block: two bytes for single bits in order, or one
                // byte for each of the 16 codes.
                unsafe {
                    if plane.run == 1 {
                        let bits = u16::from_le_bytes(block.add(at).cast::<[u8; 2]>().read());
                        for (i, code) in codes.iter_mut().enumerate() {
                            *code |= ((bits >> i & 1) as u8) << up;
                        }
                    } else {
                        let bytes = block.add(at).cast::<[u8; 16]>().read();
                        for (code, byte) in codes.iter_mut().zip(bytes) {
                            *code |= (byte >> shift & mask) << up;
                        }
                    }
                }
                up += plane.bits;
            }
            for code in codes {
                *code = u.table.map_or(*code ^ u.flip, |t| t[usize::from(*code & 15)]);
            }
        }
        codes
    }

    #[inline(always)]
    unsafe fn load_codes(codes: &[u8; CHUNK]) -> Self::Codes {
        *codes
    }

    #[inline(always)]
    unsafe fn widen(codes: Self::Codes, bias: u8) -> [Self; 2] {
        let float = |i: usize| f32::from(codes[i]) - f32::from(bias);
        [Plain(std::array::from_fn(float)), Plain(std::array::from_fn(|i| float(LANES + i)))]
    }

    #[inline(always)]
    unsafe fn halves(first: f32, second: f32) -> Self {
        Plain(std::array::from_fn(|i| if i < LANES / 2 { first } else { second }))
    }

    #[inline(always)]
    unsafe fn add_dot(
        mut self,
        codes: Self::Codes,
        bias: u8,
        q: *const u8,
        scales: [f32; 4],
    ) -> Self {
        // SAFETY: the caller guarantees a chunk of 64 integers of two bytes.
        let q = unsafe { q.cast::<[i16; CHUNK]>().read_unaligned() };
        for (i, (codes, q)) in codes.chunks_exact(16).zip(q.chunks_exact(16)).enumerate() {
            let sum: i32 = codes
                .iter()
                .zip(q)
                .map(|(&c, &q)| (i32::from(c) - i32::from(bias)) * i32::from(q))
                .sum();
            self.0[i] += sum as f32 * scales[i];
        }
        self
    }

    super::scales::scales_in_an_array!();

    #[inline(always)]
    unsafe fn place(q: &[i32; LANES], part: usize, chunk: *mut u8) {
        // SAFETY: the caller guarantees that half of a chunk is writable.
        unsafe { chunk.cast::<[i16; LANES]>().add(part).write_unaligned(q.map(|q| q as i16)) };
    }
}

// SAFETY: no instruction set is needed; memory is accessed only through the pointers. Only tests
// use it, to check the layout of tiles against f64.
#[cfg(test)]
unsafe impl super::tiles::Tiles for Plain {
    unsafe fn split(x: *const f32, high: *mut u16, low: *mut u16) {
        for i in 0..LANES {
            // SAFETY: the caller guarantees 32 elements at each pointer.
            unsafe {
                let x = *x.add(i);
                let h = half::bf16::from_f32(x);
                *high.add(i) = h.to_bits();
                *low.add(i) = half::bf16::from_f32(x - h.to_f32()).to_bits();
            }
        }
    }

    unsafe fn scaled_bytes(
        codes: Self::Codes,
        bias: i16,
        scales: &[i16; 4],
        high: *mut u8,
        low: *mut u8,
    ) {
        for (i, code) in codes.into_iter().enumerate() {
            let w = (i16::from(code) - bias) * scales[i / 16];
            // SAFETY: the caller guarantees 64 bytes at each pointer.
            unsafe {
                *high.add(i) = ((w + 128) >> 8) as u8;
                *low.add(i) = w as u8;
            }
        }
    }

    unsafe fn looked_up(
        codes: Self::Codes,
        tables: [&[[u8; 16]; 2]; 2],
        high: *mut u8,
        low: *mut u8,
    ) {
        for (i, code) in codes.into_iter().enumerate() {
            let [a, b] = tables[i / 32].map(|table| table[usize::from(code)]);
            // SAFETY: the caller guarantees 64 bytes at each pointer.
            unsafe { (*high.add(i), *low.add(i)) = (a, b) };
        }
    }

    unsafe fn interleave(from: *const u16, to: *mut u16) {
        for i in 0..LANES {
            // SAFETY: the caller guarantees 64 bf16 numbers at each pointer.
            unsafe {
                *to.add(2 * i) = *from.add(i);
                *to.add(2 * i + 1) = *from.add(LANES + i);
            }
        }
    }

    unsafe fn begin() {}

    unsafe fn end() {}

    fn prefetch_read(_: *const u8) {}

    fn prefetch_written(_: *mut u8) {}

    /// Computes in the order of the hardware instructions: u32 of four bytes.
    unsafe fn byte_block(b: super::tiles::ByteBlock) {
        let tile = super::tiles::TILE_ROWS * 16;
        for r in 0..LANES {
            for t in 0..LANES {
                let (mut high, mut middle) = (0i32, 0i32);
                for k in 0..256 {
                    let (unit, word, byte) = (k / 64, k % 64 / 4, k % 4);
                    // SAFETY: the caller guarantees the tiles of rows and the u32 of tokens.
                    unsafe {
                        let w =
                            b.w.add(r / 16 * 8 * tile + 2 * unit * tile + r % 16 * 16 + word)
                                .cast::<i8>()
                                .add(byte);
                        let x =
                            b.x.add(unit / 2 * 2048 + (unit % 2 * 16 + word) * LANES + t)
                                .cast::<i8>()
                                .add(byte);
                        let [a, b] = [*w, *w.add(4 * tile)].map(i32::from);
                        let [h, l] = [*x, *x.add(4096)].map(i32::from);
                        (high, middle) = (high + a * h, middle + a * l + b * h);
                    }
                }
                let sum = (256 * high + middle) as f32;
                // SAFETY: the caller guarantees 32 scales each and 32 rows of 32 sums.
                unsafe {
                    *b.c.add(r * LANES + t) += sum * (*b.w_scales.add(r) * *b.x_scales.add(t))
                };
            }
        }
    }

    /// Computes with the layout of the hardware instructions: row `m` of one factor and column `n`
    /// of the other, by pairs of elements.
    unsafe fn tile_block(b: super::tiles::TileBlock) {
        let float = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        // The sums of a tile, as one instruction adds them.
        let product = |w: *const u16, x: *const u16, c: *mut f32| {
            for m in 0..super::TILE_ROWS {
                for n in 0..super::TILE_ROWS {
                    for pair in 0..16 {
                        // SAFETY: the caller guarantees 16 rows of 32 bf16 numbers, 16 rows of
                        // pairs, 64 numbers apart, and 16 rows of sums.
                        unsafe {
                            let (w, x) = (w.add(32 * m + 2 * pair), x.add(64 * pair + 2 * n));
                            *c.add(m * LANES + n) += float(*w) * float(*x);
                            *c.add(m * LANES + n) += float(*w.add(1)) * float(*x.add(1));
                        }
                    }
                }
            }
        };
        for step in 0..2 * b.units {
            for (r, t) in [(0, 0), (0, 16), (16, 0), (16, 16)] {
                if b.half && t == 16 {
                    continue;
                }
                // SAFETY: the caller guarantees the tiles of each step.
                unsafe {
                    let w = b.w.add(r / 16 * b.w_next + 512 * step).cast::<u16>();
                    let x = b.x.add(step / 2 * 2048 + step % 2 * 512 + t).cast::<u16>();
                    let c = b.c.add(r * LANES + t);
                    product(w, x, c);
                    product(w.add(512), x, c);
                    product(w, x.add(2048), c);
                }
            }
        }
    }
}
