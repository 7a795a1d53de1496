// product_wgmma.h: the product of product.h for f16 and bf16 on sm_90a, on the asynchronous matrix
// units.
//
// A block is persistent and computes tiles of 128 × BN one after another. There are three groups of
// four warps. One loads both operands by the copy engine (tensor maps). The other two multiply, 64
// rows each, and store while the stages of the next tile arrive. With Shape::APART these two
// alternate whole tiles: one multiplies while the other computes the fused operations and stores.
//
// LIE is LIE_DEPTHS or LIE_ROWS. The tensor maps have the strides, so Left and Right have no index
// functions. n[3]: number of tiles; n[4]: blocks; n[5], n[6]: 0 for an operand that all batches
// share, otherwise 1.
#pragma once
#include "hopper.h"
#include "product.h"

// The driver's description of a matrix in device memory (engine: TensorMap).
struct alignas(64) TensorMap { u64 words[16]; };

// Copies the box at (x, y) of matrix z; the barrier counts its bytes. Elements outside the matrix
// are zeros.
STEP void box_copy(void* to, const TensorMap* map, u32 x, u32 y, u32 z, u64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_at(to)),
        "l"(map), "r"(shared_at(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
}

#define WIDE_PRODUCT(n, names, results, A, B, KEEP, type, TA, TB) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #KEEP ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
                 " {" names "}, %" #A ", %" #B ", p, 1, 1, " #TA ", " #TB "; }" \
                 : results : "l"(a), "l"(b), "r"(keep))
#define WIDE_PRODUCTS(type, TA, TB) \
    if constexpr (N == 256) WIDE_PRODUCT(256, R128, D128, 128, 129, 130, type, TA, TB); \
    else if constexpr (N == 128) WIDE_PRODUCT(128, R64, D64(0), 64, 65, 66, type, TA, TB); \
    else WIDE_PRODUCT(64, R32, D32(0), 32, 33, 34, type, TA, TB)

// d[64 × N] = (keep ? d : 0) + A · Bᵀ with depth 16. A transposed tile has one row per depth.
template <u32 N, bool TURNED_A, bool TURNED_B>
STEP void wide_products(float (&d)[N / 2], u64 a, u64 b, u32 keep, f16) {
    static_assert(N == 64 || N == 128 || N == 256, "a width that is spelled out");
    if constexpr (!TURNED_A && !TURNED_B) { WIDE_PRODUCTS("f16", 0, 0); }
    else if constexpr (!TURNED_A) { WIDE_PRODUCTS("f16", 0, 1); }
    else if constexpr (!TURNED_B) { WIDE_PRODUCTS("f16", 1, 0); }
    else { WIDE_PRODUCTS("f16", 1, 1); }
}
template <u32 N, bool TURNED_A, bool TURNED_B>
STEP void wide_products(float (&d)[N / 2], u64 a, u64 b, u32 keep, bf16) {
    static_assert(N == 64 || N == 128 || N == 256, "a width that is spelled out");
    if constexpr (!TURNED_A && !TURNED_B) { WIDE_PRODUCTS("bf16", 0, 0); }
    else if constexpr (!TURNED_A) { WIDE_PRODUCTS("bf16", 0, 1); }
    else if constexpr (!TURNED_B) { WIDE_PRODUCTS("bf16", 1, 0); }
    else { WIDE_PRODUCTS("bf16", 1, 1); }
}

template <class S> struct ProductWgmma {
    using Left = typename S::Left;
    using Right = typename S::Right;
    static constexpr u32 BM = 128, BN = S::BN, STAGES = S::STAGES;
    static constexpr bool APART = S::APART;
    static constexpr u32 MI = APART ? 2 : 1;  // products of 64 rows per group
    static_assert(MI * BN <= 256, "sums stay in registers");
    static_assert(S::BM == 128 && KJ_BLOCK == 384, "roles");
    static constexpr bool TURNED_A = Left::LIE == LIE_ROWS, TURNED_B = Right::LIE == LIE_ROWS;
    static constexpr u32 x_stage = BM * 64, y_stage = BN * 64;  // f16 or bf16 elements
    struct Shared { u64 full[STAGES], empty[STAGES], turn[2]; };

    // Starts to copy a tile of one operand: rows of 64 depths, or (TURNED) blocks of 64 columns of
    // 64 depths.
    template <bool TURNED, u32 ROWS>
    STEP void bring(u16* to, const TensorMap* map, u32 row, u32 k, u32 z, u64* barrier) {
        if constexpr (TURNED) {
            UNROLL for (u32 b = 0; b < ROWS / 64; b++)
                box_copy(to + b * 4096, map, row + 64 * b, k, z, barrier);
        } else {
            box_copy(to, map, k, row, z, barrier);
        }
    }

    // `pool`: 1024 bytes for alignment, the stages, and 16 KB for results.
    template <class Out, class Give>
    STEP void run(const Numbers& p, const TensorMap* left, const TensorMap* right, Out* to,
                  u8* pool, Shared& lds, Give give) {
        u16* xs = (u16*)(pool + (1024 - shared_at(pool) % 1024) % 1024);
        u16* ys = xs + STAGES * x_stage;
        u16* results = ys + STAGES * y_stage;
        const u32 steps = CEIL_DIV((u32)p.n[2], 64);
        const u32 tiles = (u32)p.n[3], blocks = (u32)p.n[4];
        const u32 left_step = (u32)p.n[5], right_step = (u32)p.n[6];
        if (thread_id() == 0) {
            for (u32 s = 0; s < STAGES; s++)
                barrier_init(lds.full + s, 1), barrier_init(lds.empty + s, APART ? 4 : 8);
            for (u32 g = 0; g < 2; g++) barrier_init(lds.turn + g, 4);
            barrier_fence_init();
        }
        block_sync();
        u32 stage_no = 0;  // stages passed
        if (thread_id() < 128) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
            if (thread_id() != 0) return;
            for (u32 number = block_id(); number < tiles; number += blocks) {
                const ProductTile tile = product_tile<S>(p, number);
                for (u32 step = 0; step < steps; step++, stage_no++) {
                    const u32 s = stage_no % STAGES;
                    barrier_wait(lds.empty + s, (stage_no / STAGES + 1) % 2);
                    barrier_arrive_expect(lds.full + s, 2 * (x_stage + y_stage));
                    bring<TURNED_A, BM>(xs + s * x_stage, left, tile.row, 64 * step,
                                        tile.batch * left_step, lds.full + s);
                    bring<TURNED_B, BN>(ys + s * y_stage, right, tile.col, 64 * step,
                                        tile.batch * right_step, lds.full + s);
                }
            }
            return;
        }
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const u32 group = thread_id() / 128 - 1, lane = thread_id() % 128;
        u16* own = results + group * 4096;
        if (APART) stage_no = group * steps;
        const u32 first = block_id() + (APART ? group * blocks : 0);
        u32 taken = 0;  // tiles of this group so far
        for (u32 number = first; number < tiles; number += (APART ? 2 : 1) * blocks) {
            const ProductTile tile = product_tile<S>(p, number);
            float d[MI][BN / 2];
            // Waits until the other group has received all stages of the previous tile. The parity
            // of a barrier is unambiguous only if a reader is at most one phase behind.
            if (APART && (group == 1 || taken > 0))
                barrier_wait(lds.turn + group, (taken + group + 1) % 2);
            taken++;
            for (u32 step = 0; step < steps; step++, stage_no++) {
                const u32 s = stage_no % STAGES;
                barrier_wait(lds.full + s, stage_no / STAGES % 2);
                const u16* a = xs + s * x_stage + (APART ? 0 : group * 4096);
                const u16* b = ys + s * y_stage;
                products_fence();
                UNROLL for (u32 k = 0; k < 64; k += 16)
                    UNROLL for (u32 i = 0; i < MI; i++) {
                        const u16* rows = a + i * 4096;
                        wide_products<BN, TURNED_A, TURNED_B>(
                            d[i],
                            TURNED_A ? transposed_descriptor(rows, k, 64)
                                     : tile_descriptor(rows, k),
                            TURNED_B ? transposed_descriptor(b, k, 64) : tile_descriptor(b, k),
                            step > 0 || k > 0, typename S::In{});
                    }
                products_commit();
                products_wait(1);
                if (step > 0 && lane % 32 == 0)
                    barrier_arrive(lds.empty + (stage_no - 1) % STAGES);
            }
            if (APART && lane % 32 == 0) barrier_arrive(lds.turn + 1 - group);
            products_wait(0);
            if (lane % 32 == 0) barrier_arrive(lds.empty + (stage_no - 1) % STAGES);
            if (APART) stage_no += steps;  // stages of the other group
            if constexpr (APART) put_slices(p, to, d, tile, own, group, lane, give);
            else put(p, to, d[0], tile, tile.row + group * 64, own, group, lane, give);
        }
    }

    // Stores 64 × 64 results from shared memory, in whole lines.
    template <class Out>
    STEP void lines_out(const Numbers& p, Out* to, const u16* own, u32 z, u32 row0, u32 col0,
                        u32 lane) {
        UNROLL for (u32 i = 0; i < 4; i++) {
            const u32 row = lane / 8 + 16 * i, col = lane % 8 * 8;
            if (row0 + row < (u32)p.n[0] && col0 + col < (u32)p.n[1])
                *(u32x4*)(to + result_at(p, z, row0 + row, col0 + col)) =
                    load16(own + tile_at(row, col));
        }
    }

    // Stores all rows of a group, 32 columns of 64 rows per iteration. The fused operations may be
    // long: unrolled, 128 copies of them would exceed the instruction cache.
    template <class Out, class Give>
    STEP void put_slices(const Numbers& p, Out* to, const float (&d)[MI][BN / 2], ProductTile tile,
                         u16* own, u32 group, u32 lane, Give give) {
        constexpr u32 WIDTH = BN / 32, SLICES = MI * WIDTH;
        const u32 m = (u32)p.n[0], n = (u32)p.n[1], own_row = lane / 32 * 16 + lane % 32 / 4;
        const bool lines = sizeof(Out) == 2 && n % 8 == 0;
        NO_UNROLL for (u32 slice = 0; slice < SLICES; slice++) {
            const u32 row0 = tile.row + slice / WIDTH * 64, col0 = tile.col + slice % WIDTH * 32;
            if (row0 >= m || tile.col + slice % WIDTH / 2 * 64 >= n) continue;
            float sum[16];
            UNROLL for (u32 e = 0; e < 16; e++) sum[e] = d[0][e];
            UNROLL for (u32 q = 1; q < SLICES; q++)
                UNROLL for (u32 e = 0; e < 16; e++)
                    sum[e] = q == slice ? d[q / WIDTH][q % WIDTH * 16 + e] : sum[e];
            // All values are computed before the first store, so that their loads overlap.
            Out v[16];
            UNROLL for (u32 i = 0; i < 16; i++) {
                const u32 row = row0 + own_row + 8 * (i / 2 % 2);
                const u32 col = col0 + 8 * (i / 4) + lane % 4 * 2 + i % 2;
                v[i] = give(tile.batch, min_u32(row, m - 1), min_u32(col, n - 1), sum[i]);
            }
            if (lines) {
                if (slice % 2 == 0) part_sync(group + 1, 128);
                UNROLL for (u32 i = 0; i < 16; i += 2)
                    *(u32*)(own + tile_at(own_row + 8 * (i / 2 % 2),
                                          slice % 2 * 32 + 8 * (i / 4) + lane % 4 * 2)) =
                        (u32)half_bits(v[i]) | (u32)half_bits(v[i + 1]) << 16;
                if (slice % 2 == 0) continue;
                part_sync(group + 1, 128);
                lines_out(p, to, own, tile.batch, row0, col0 - 32, lane);
            } else {
                UNROLL for (u32 i = 0; i < 16; i++) {
                    const u32 row = row0 + own_row + 8 * (i / 2 % 2);
                    const u32 col = col0 + 8 * (i / 4) + lane % 4 * 2 + i % 2;
                    if (row < m && col < n) to[result_at(p, tile.batch, row, col)] = v[i];
                }
            }
        }
    }

    // Stores the 64 rows from `row0`, 64 columns at a time.
    template <class Out, class Give>
    STEP void put(const Numbers& p, Out* to, const float (&d)[BN / 2], ProductTile tile, u32 row0,
                  u16* own, u32 group, u32 lane, Give give) {
        const u32 m = (u32)p.n[0], n = (u32)p.n[1], own_row = lane / 32 * 16 + lane % 32 / 4;
        const bool lines = sizeof(Out) == 2 && n % 8 == 0;
        if (row0 >= m) return;
        UNROLL for (u32 c = 0; c < BN; c += 64) {
            const u32 col0 = tile.col + c;
            if (col0 >= n) break;
            // All values before the first store, so that what they read arrives together.
            Out v[32];
            UNROLL for (u32 i = 0; i < 32; i++) {
                const u32 row = row0 + own_row + 8 * (i / 2 % 2);
                const u32 col = col0 + 8 * (i / 4) + lane % 4 * 2 + i % 2;
                v[i] = give(tile.batch, min_u32(row, m - 1), min_u32(col, n - 1), d[c / 2 + i]);
            }
            if (lines) {
                // Results pass through shared memory, so that whole lines are stored.
                part_sync(group + 1, 128);
                UNROLL for (u32 i = 0; i < 32; i += 2)
                    *(u32*)(own + tile_at(own_row + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2)) =
                        (u32)half_bits(v[i]) | (u32)half_bits(v[i + 1]) << 16;
                part_sync(group + 1, 128);
                lines_out(p, to, own, tile.batch, row0, col0, lane);
            } else {
                UNROLL for (u32 i = 0; i < 32; i++) {
                    const u32 row = row0 + own_row + 8 * (i / 2 % 2);
                    const u32 col = col0 + 8 * (i / 4) + lane % 4 * 2 + i % 2;
                    if (row < m && col < n) to[result_at(p, tile.batch, row, col)] = v[i];
                }
            }
        }
    }
    STEP u16 half_bits(f16 v) { return v.bits; }
    STEP u16 half_bits(bf16 v) { return v.bits; }
    template <class T> STEP u16 half_bits(T v) { return (u16)v; }
};
