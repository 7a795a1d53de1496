//! AMX: products of tiles (registers of 16 rows of 64 bytes). They are written in assembly, because
//! their intrinsics are not stable.
//!
//! A tile of bf16 holds 16 × 32 elements of one matrix, or 16 pairs of rows of 16 columns of the
//! other. One instruction adds 32 products each to 16 × 16 sums in f32.

use super::avx512::Avx512;
use super::tiles::{ByteBlock, TileBlock, TileJob, Tiles};
use std::arch::asm;
use std::arch::x86_64::*;

/// The configuration that [`Tiles::begin`] loads: eight tiles of 16 rows of 64 bytes, in the only
/// palette.
#[repr(C, align(64))]
pub struct Shape {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The configuration in use.
pub static SHAPE: Shape = Shape {
    palette: 1,
    start: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Indices of the upper u16 of each lane of two registers.
static UPPER_HALVES: [u16; 32] = {
    let mut odd = [0; 32];
    let mut i = 0;
    while i < 32 {
        odd[i] = 2 * i as u16 + 1;
        i += 1;
    }
    odd
};

/// Indices that interleave the u16 of two registers: the first 16 of each, then the others.
static PAIRS: [[u16; 32]; 2] = {
    let mut pairs = [[0; 32]; 2];
    let mut i = 0;
    while i < 64 {
        pairs[i / 32][i % 32] = (i / 2 + i % 2 * 32) as u16;
        i += 1;
    }
    pairs
};

/// Runs a job with tiles.
///
/// # Safety
/// [`present`](super::amx_probe::present) is true, and the job's requirements on its fields hold.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
pub unsafe fn enter<J: TileJob>(job: J) {
    // SAFETY: the caller guarantees the instruction set and the job's requirements.
    unsafe { job.run::<Avx512>() }
}

// SAFETY: the instructions used are those that `enter` enables and AMX; memory is accessed only
// through the pointers.
unsafe impl Tiles for Avx512 {
    /// The high parts are rounded by adding half a step and keeping the upper 16 bits. The high
    /// parts are then also valid floats, from which the low parts follow. The result of the
    /// rounding instruction would have to be converted back. NaN stays in the low part.
    #[inline(always)]
    unsafe fn split(x: *const f32, high: *mut u16, low: *mut u16) {
        // SAFETY: the caller guarantees the instruction set, 32 readable elements, and space for 32
        // bf16 numbers in both outputs.
        unsafe {
            let (a, b) = (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16)));
            let (step, upper) =
                (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000u32.cast_signed()));
            let first =
                |x: __m512| _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), step), upper);
            let (ha, hb) = (first(a), first(b));
            let odd = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
            _mm512_storeu_si512(high.cast(), _mm512_permutex2var_epi16(ha, odd, hb));
            let (a, b) = (
                _mm512_sub_ps(a, _mm512_castsi512_ps(ha)),
                _mm512_sub_ps(b, _mm512_castsi512_ps(hb)),
            );
            let rest: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(b, a));
            _mm512_storeu_si512(low.cast(), rest);
        }
    }

    /// The pack instruction works within quarters of a register, which are then reordered.
    #[inline(always)]
    unsafe fn scaled_bytes(
        codes: __m512i,
        bias: i16,
        scales: &[i16; 4],
        high: *mut u8,
        low: *mut u8,
    ) {
        // SAFETY: the caller guarantees the instruction set and 64 writable bytes at each pointer.
        unsafe {
            let four = _mm512_set1_epi64(std::mem::transmute::<[i16; 4], i64>(*scales));
            let bias = _mm512_set1_epi16(bias);
            let words = |codes: __m256i, which: &[[u8; 16]; 4]| {
                let scales = _mm512_shuffle_epi8(four, _mm512_loadu_si512(which.as_ptr().cast()));
                _mm512_mullo_epi16(_mm512_sub_epi16(_mm512_cvtepu8_epi16(codes), bias), scales)
            };
            let a = words(_mm512_castsi512_si256(codes), &SCALES[0]);
            let b = words(_mm512_extracti64x4_epi64::<1>(codes), &SCALES[1]);
            let order = _mm512_loadu_si512(QUARTERS.as_ptr().cast());
            let (half, byte) = (_mm512_set1_epi16(128), _mm512_set1_epi16(255));
            let first = |w: __m512i| _mm512_srai_epi16::<8>(_mm512_add_epi16(w, half));
            let packed = _mm512_packs_epi16(first(a), first(b));
            _mm512_storeu_si512(high.cast(), _mm512_permutexvar_epi64(order, packed));
            let packed = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
            _mm512_storeu_si512(low.cast(), _mm512_permutexvar_epi64(order, packed));
        }
    }

    #[inline(always)]
    unsafe fn interleave(from: *const u16, to: *mut u16) {
        // SAFETY: the caller guarantees the instruction set and 64 bf16 numbers at each pointer.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(32).cast()));
            for (i, places) in PAIRS.iter().enumerate() {
                let places = _mm512_loadu_si512(places.as_ptr().cast());
                _mm512_storeu_si512(to.add(32 * i).cast(), _mm512_permutex2var_epi16(a, places, b));
            }
        }
    }

    #[inline(always)]
    unsafe fn begin() {
        // SAFETY: the caller guarantees AMX, which `present` has requested from the system; no
        // other code uses tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const SHAPE, options(nostack, readonly, preserves_flags),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _);
        }
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: the caller guarantees AMX.
        unsafe {
            asm!("tilerelease", options(nostack, nomem, preserves_flags),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _);
        }
    }

    #[inline(always)]
    fn prefetch_read(line: *const u8) {
        // SAFETY: every x86-64 CPU has this instruction, and it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }

    #[inline(always)]
    fn prefetch_written(line: *mut u8) {
        // The intrinsic needs a feature without a stable name.
        // SAFETY: every CPU with AMX has this instruction, and it changes no memory.
        unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn tile_block(b: TileBlock) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe { if b.half { half(b) } else { whole(b) } }
    }

    #[inline(always)]
    unsafe fn looked_up(codes: __m512i, tables: [&[[u8; 16]; 2]; 2], high: *mut u8, low: *mut u8) {
        // SAFETY: the caller guarantees the instruction set and 64 writable bytes at each pointer.
        unsafe {
            let [a, b] = tables;
            for (i, to) in [high, low].into_iter().enumerate() {
                let first = _mm512_broadcast_i32x4(_mm_loadu_si128(a[i].as_ptr().cast()));
                let second = _mm_loadu_si128(b[i].as_ptr().cast());
                let table = _mm512_mask_broadcast_i32x4(first, 0xff00, second);
                _mm512_storeu_si512(to.cast(), _mm512_shuffle_epi8(table, codes));
            }
        }
    }

    #[inline(always)]
    unsafe fn byte_block(b: ByteBlock) {
        // SAFETY: this function's safety contract, which the caller upholds, covers the call.
        unsafe {
            for rows in [0, 16] {
                match (b.half, b.prefetch_x.is_null()) {
                    (true, _) => byte_tiles_of_sixteen(&b, rows),
                    (_, true) => byte_tiles(&b, rows),
                    (_, false) => byte_tiles_ahead(&b, rows),
                }
                byte_sums(&b, rows);
            }
        }
    }
}

/// The scale (of four) of each u16 of a quarter: for the first 32 codes, then for the others.
static SCALES: [[[u8; 16]; 4]; 2] = {
    let mut which = [[[0; 16]; 4]; 2];
    let mut i = 0;
    while i < 128 {
        which[i / 64][i / 16 % 4][i % 16] = (i / 64 * 4 + i / 32 % 2 * 2 + i % 2) as u8;
        i += 1;
    }
    which
};

/// Indices of 64-bit parts. They restore the order after packing within quarters.
static QUARTERS: [u64; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Prefetches eight cache lines of the next unit, from an offset on.
macro_rules! soon {
    ($at:literal) => {
        concat!(
            ".irp line, 0, 64, 128, 192, 256, 320, 384, 448\n prefetcht0 [{p} + ",
            $at,
            " + \\line]\n .endr"
        )
    };
}

/// The products of a unit of 64 columns, 16 rows and 32 tokens, at these byte offsets in rows and
/// tokens. `a h` of each 16 tokens is summed in one tile, `a l + b h` in another. Three products
/// stand between two products that add to the same tile: dependent products take 52 cycles,
/// independent ones can start every 16. Each load goes to a tile that the last product did not
/// read. A variant with six tiles of sums (32 tokens, four products) had only two tiles for loads:
/// 0.8 cycles per weight with 32 tokens instead of the calculated 0.3. There are four prefetches.
macro_rules! byte_unit {
    ($w:literal, $x:literal, $($soon:expr),+) => {
        byte_unit!(@ $w, $x, [$($soon),+])
    };
    (@ $w:literal, $x:literal, [$s0:expr, $s1:expr, $s2:expr, $s3:expr]) => {
        concat!(
            "tileloadd tmm4, [{w} + {ws} + ", $w, "]\n",
            "tileloadd tmm5, [{x} + {xs} + ", $x, "]\n",
            "tdpbssd tmm0, tmm4, tmm5\n",
            $s0, "\n",
            "tileloadd tmm6, [{x} + {xs} + 4096 + ", $x, "]\n",
            "tdpbssd tmm1, tmm4, tmm6\n",
            $s1, "\n",
            "tileloadd tmm7, [{x} + {xs} + 4160 + ", $x, "]\n",
            "tdpbssd tmm3, tmm4, tmm7\n",
            $s2, "\n",
            "tileloadd tmm6, [{x} + {xs} + 64 + ", $x, "]\n",
            "tdpbssd tmm2, tmm4, tmm6\n",
            $s3, "\n",
            "tileloadd tmm7, [{w} + {ws} + 1024 + ", $w, "]\n",
            "tdpbssd tmm1, tmm7, tmm5\n",
            "tdpbssd tmm3, tmm7, tmm6"
        )
    };
}

/// Computes 16 rows of a block with all tokens. The sums are stored in `room`.
macro_rules! byte_units {
    ($block:ident, $rows:ident, [$($unit:expr),+ $(,)?] $($operands:tt)*) => {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            $($unit,)+
            "tilestored [{room} + {ws}], tmm0",
            "tilestored [{room} + {ws} + 1024], tmm1",
            "tilestored [{room} + {ws} + 2048], tmm2",
            "tilestored [{room} + {ws} + 3072], tmm3",
            w = in(reg) $block.w.add($rows / 16 * 2048),
            x = in(reg) $block.x,
            room = in(reg) $block.room,
            ws = in(reg) 64usize,
            xs = in(reg) 128usize
            $($operands)*,
            options(nostack, preserves_flags),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        )
    };
}

/// Used if the next block is already in the L1 cache.
///
/// # Safety
/// The requirements of [`Tiles::byte_block`].
#[inline(never)]
unsafe fn byte_tiles(b: &ByteBlock, rows: usize) {
    // SAFETY: the caller guarantees that the tiles are set up and that each address has 16 rows of
    // 64 bytes.
    unsafe {
        byte_units!(
            b,
            rows,
            [
                byte_unit!("0", "0", "", "", "", ""),
                byte_unit!("2048", "2048", "", "", "", ""),
                byte_unit!("4096", "8192", "", "", "", ""),
                byte_unit!("6144", "10240", "", "", "", ""),
            ]
        );
    }
}

/// Used if the next block has other tokens or other columns: prefetches half of its data.
///
/// # Safety
/// The requirements of [`Tiles::byte_block`].
#[inline(never)]
unsafe fn byte_tiles_ahead(b: &ByteBlock, rows: usize) {
    // SAFETY: the caller guarantees that the tiles are set up and that each address has 16 rows of
    // 64 bytes. A prefetched address may be invalid.
    unsafe {
        byte_units!(
            b,
            rows,
            [
                byte_unit!("0", "0", soon!("0"), soon!("512"), soon!("1024"), soon!("1536")),
                byte_unit!("2048", "2048", soon!("2048"), soon!("2560"), soon!("3072"), soon!("3584")),
                byte_unit!("4096", "8192", soon!("4096"), soon!("4608"), soon!("5120"), soon!("5632")),
                byte_unit!("6144", "10240", soon!("6144"), soon!("6656"), soon!("7168"), soon!("7680")),
            ],
            p = in(reg) b.prefetch_x.wrapping_add(rows * 128)
        );
    }
}

/// [`byte_unit`] for the first 16 tokens only.
macro_rules! byte_unit_of_sixteen {
    ($w:literal, $x:literal) => {
        concat!(
            "tileloadd tmm4, [{w} + {ws} + ",
            $w,
            "]\n",
            "tileloadd tmm5, [{x} + {xs} + ",
            $x,
            "]\n",
            "tdpbssd tmm0, tmm4, tmm5\n",
            "tileloadd tmm6, [{x} + {xs} + 4096 + ",
            $x,
            "]\n",
            "tdpbssd tmm1, tmm4, tmm6\n",
            "tileloadd tmm7, [{w} + {ws} + 1024 + ",
            $w,
            "]\n",
            "tdpbssd tmm1, tmm7, tmm5"
        )
    };
}

/// # Safety
/// The requirements of [`Tiles::byte_block`].
#[inline(never)]
unsafe fn byte_tiles_of_sixteen(b: &ByteBlock, rows: usize) {
    // SAFETY: the caller guarantees that the tiles are set up and that each address has 16 rows of
    // 64 bytes.
    unsafe {
        byte_units!(
            b,
            rows,
            [
                byte_unit_of_sixteen!("0", "0"),
                byte_unit_of_sixteen!("2048", "2048"),
                byte_unit_of_sixteen!("4096", "8192"),
                byte_unit_of_sixteen!("6144", "10240"),
            ]
        );
    }
}

/// Scales the sums of 16 rows and adds them to the result.
///
/// # Safety
/// The requirements of [`Tiles::byte_block`].
#[inline(always)]
unsafe fn byte_sums(b: &ByteBlock, rows: usize) {
    // SAFETY: the caller guarantees four tiles of sums, 32 scales each, and 32 rows of 32 sums.
    unsafe {
        let of_tokens = [0, 16].map(|t| _mm512_loadu_ps(b.x_scales.add(t)));
        for r in 0..16 {
            let of_row = _mm512_set1_ps(*b.w_scales.add(rows + r));
            for (i, of_tokens) in of_tokens.into_iter().enumerate() {
                let sums = |kind: usize| {
                    _mm512_load_si512(b.room.add((2 * i + kind) * 256 + 16 * r).cast())
                };
                let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(sums(0)), sums(1));
                let c = b.c.add((rows + r) * 32 + 16 * i);
                let scale = _mm512_mul_ps(of_row, of_tokens);
                _mm512_storeu_ps(
                    c,
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(c)),
                );
            }
        }
    }
}

/// Processes the units of a block: loads sums, adds the products of each unit, stores sums.
macro_rules! units {
    ($block:ident, [$($load:literal),+], [$($unit:expr),+ $(,)?], [$($store:literal),+] $($operands:tt)*) => {
        asm!(
            $($load,)+
            "2:",
            $($unit,)+
            "add {x}, 8192",
            "add {w0}, 4096",
            "add {w1}, 4096",
            "dec {n}",
            "jnz 2b",
            $($store,)+
            w0 = inout(reg) $block.w => _,
            w1 = inout(reg) $block.w.add($block.w_next) => _,
            x = inout(reg) $block.x => _,
            n = inout(reg) $block.units => _,
            c = in(reg) $block.c,
            ws = in(reg) 64usize,
            xs = in(reg) 128usize
            $($operands)*,
            options(nostack),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        )
    };
}

/// 32 rows with 32 tokens: four tiles of sums, and four tiles for operands. The 24 products of a
/// unit take 384 cycles; its 20 loads of 16 lines take 160 from the L1 cache. Tokens come from the
/// L2 cache, so the 128 lines of the next unit are prefetched meanwhile. With a prompt of 512
/// tokens, 16 threads of a Xeon reached 3,780 GFLOP/s; without the prefetch, and with sums stored
/// far apart, 2,500.
///
/// # Safety
/// The requirements of [`Tiles::tile_block`].
#[inline(never)]
unsafe fn whole(b: TileBlock) {
    // SAFETY: the caller guarantees that the tiles are set up and that each address has 16 rows of
    // 64 bytes. A prefetched address may be invalid.
    unsafe {
        units!(
            b,
            [
                "tileloadd tmm0, [{c} + {xs}]",
                "tileloadd tmm1, [{c} + {xs} + 64]",
                "tileloadd tmm2, [{c} + {xs} + 2048]",
                "tileloadd tmm3, [{c} + {xs} + 2112]"
            ],
            [
                "lea {p}, [{x} + 8192]",
                "cmp {n}, 1",
                "cmove {p}, {soon}",
                // The first 32 columns: high parts, low parts of the rows, low parts of the tokens.
                "tileloadd tmm6, [{x} + {xs}]",
                "tileloadd tmm4, [{w0} + {ws}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                soon!("0"),
                "tileloadd tmm7, [{x} + {xs} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                soon!("512"),
                "tileloadd tmm5, [{w1} + {ws}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                soon!("1024"),
                "tileloadd tmm4, [{w0} + {ws} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                soon!("1536"),
                "tileloadd tmm5, [{w1} + {ws} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                soon!("4096"),
                "tileloadd tmm6, [{x} + {xs} + 4096]",
                "tileloadd tmm4, [{w0} + {ws}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                soon!("4608"),
                "tileloadd tmm7, [{x} + {xs} + 4160]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                soon!("5120"),
                "tileloadd tmm5, [{w1} + {ws}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                soon!("5632"),
                // The second 32 columns.
                "tileloadd tmm6, [{x} + {xs} + 2048]",
                "tileloadd tmm4, [{w0} + {ws} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                soon!("2048"),
                "tileloadd tmm7, [{x} + {xs} + 2112]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                soon!("2560"),
                "tileloadd tmm5, [{w1} + {ws} + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                soon!("3072"),
                "tileloadd tmm4, [{w0} + {ws} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                soon!("3584"),
                "tileloadd tmm5, [{w1} + {ws} + 3072]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                soon!("6144"),
                "tileloadd tmm6, [{x} + {xs} + 6144]",
                "tileloadd tmm4, [{w0} + {ws} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                soon!("6656"),
                "tileloadd tmm7, [{x} + {xs} + 6208]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                soon!("7168"),
                "tileloadd tmm5, [{w1} + {ws} + 2048]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                soon!("7680"),
            ],
            [
                "tilestored [{c} + {xs}], tmm0",
                "tilestored [{c} + {xs} + 64], tmm1",
                "tilestored [{c} + {xs} + 2048], tmm2",
                "tilestored [{c} + {xs} + 2112], tmm3"
            ],
            p = out(reg) _,
            soon = in(reg) b.prefetch_x
        );
    }
}

/// 32 rows with 16 tokens.
///
/// # Safety
/// The requirements of [`Tiles::tile_block`].
#[inline(never)]
unsafe fn half(b: TileBlock) {
    // SAFETY: the caller guarantees that the tiles are set up and that each address has 16 rows of
    // 64 bytes. A prefetched address may be invalid.
    unsafe {
        units!(
            b,
            ["tileloadd tmm0, [{c} + {xs}]", "tileloadd tmm1, [{c} + {xs} + 2048]"],
            [
                "tileloadd tmm6, [{x} + {xs}]",
                "tileloadd tmm2, [{w0} + {ws}]",
                "tdpbf16ps tmm0, tmm2, tmm6",
                "tileloadd tmm3, [{w1} + {ws}]",
                "tdpbf16ps tmm1, tmm3, tmm6",
                "tileloadd tmm4, [{w0} + {ws} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{w1} + {ws} + 1024]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tileloadd tmm7, [{x} + {xs} + 4096]",
                "tdpbf16ps tmm0, tmm2, tmm7",
                "tdpbf16ps tmm1, tmm3, tmm7",
                "tileloadd tmm6, [{x} + {xs} + 2048]",
                "tileloadd tmm2, [{w0} + {ws} + 2048]",
                "tdpbf16ps tmm0, tmm2, tmm6",
                "tileloadd tmm3, [{w1} + {ws} + 2048]",
                "tdpbf16ps tmm1, tmm3, tmm6",
                "tileloadd tmm4, [{w0} + {ws} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{w1} + {ws} + 3072]",
                "tdpbf16ps tmm1, tmm5, tmm6",
                "tileloadd tmm7, [{x} + {xs} + 6144]",
                "tdpbf16ps tmm0, tmm2, tmm7",
                "tdpbf16ps tmm1, tmm3, tmm7",
            ],
            ["tilestored [{c} + {xs}], tmm0", "tilestored [{c} + {xs} + 2048], tmm1"]
        );
    }
}
