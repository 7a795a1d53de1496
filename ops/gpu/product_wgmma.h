// product_wgmma.h: the product of product.h for halves on sm_90a, on the asynchronous matrix units.
//
// A block is persistent and takes tiles of 128 × BN one after another. Of three groups of four
// warps one brings both operands by the copy engine (tensor maps), and two multiply, 64 rows each,
// and store while the next tile's stages arrive.
//
// LIE of an operand is LIE_DEPTHS or LIE_ROWS; of Left and Right only that is used: the maps have
// the strides. n[3]: tiles of the product; n[4]: blocks; n[5], n[6]: 1, or 0 for an operand that
// all batches share.
#pragma once
#include "hopper.h"
#include "product.h"

// A matrix in device memory, as the driver describes it (engine: TensorMap).
struct alignas(64) TensorMap { u64 words[16]; };

// Copies the box at (x, y) of matrix z; the barrier counts its bytes. Elements outside are zeros.
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

// d[64 × N] = (keep ? d : 0) + A · Bᵀ, 16 deep. A transposed tile has a row for each depth.
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
    static_assert(S::BM == 128 && KJ_BLOCK == 384, "roles");
    static constexpr bool TURNED_A = Left::LIE == LIE_ROWS, TURNED_B = Right::LIE == LIE_ROWS;
    static constexpr u32 x_stage = BM * 64, y_stage = BN * 64;  // halves
    struct Shared { u64 full[STAGES], empty[STAGES]; };

    // A tile of one operand: rows of 64 depths, or blocks of 64 columns of 64 depths.
    template <bool TURNED, u32 ROWS>
    STEP void bring(u16* to, const TensorMap* map, u32 row, u32 k, u32 z, u64* barrier) {
        if constexpr (TURNED) {
            UNROLL for (u32 b = 0; b < ROWS / 64; b++)
                box_copy(to + b * 4096, map, row + 64 * b, k, z, barrier);
        } else {
            box_copy(to, map, k, row, z, barrier);
        }
    }

    // `give(at, v)`: the stored bits of a result. `pool`: 1024 bytes to align, the stages, and
    // 16 KB for results.
    template <class Out, class Give>
    STEP void run(const Numbers& p, const TensorMap* left, const TensorMap* right, Out* to,
                  u8* pool, Shared& lds, Give give) {
        u16* xs = (u16*)(pool + (1024 - shared_at(pool) % 1024) % 1024);
        u16* ys = xs + STAGES * x_stage;
        u16* results = ys + STAGES * y_stage;
        const u32 m = (u32)p.n[0], n = (u32)p.n[1], steps = CEIL_DIV((u32)p.n[2], 64);
        const u32 tiles = (u32)p.n[3], blocks = (u32)p.n[4];
        const u32 left_step = (u32)p.n[5], right_step = (u32)p.n[6];
        if (thread_id() == 0) {
            for (u32 s = 0; s < STAGES; s++)
                barrier_init(lds.full + s, 1), barrier_init(lds.empty + s, 8);
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
        for (u32 number = block_id(); number < tiles; number += blocks) {
            const ProductTile tile = product_tile<S>(p, number);
            float d[BN / 2];
            for (u32 step = 0; step < steps; step++, stage_no++) {
                const u32 s = stage_no % STAGES;
                barrier_wait(lds.full + s, stage_no / STAGES % 2);
                const u16* a = xs + s * x_stage + group * 4096;
                const u16* b = ys + s * y_stage;
                products_fence();
                UNROLL for (u32 k = 0; k < 64; k += 16)
                    wide_products<BN, TURNED_A, TURNED_B>(
                        d, TURNED_A ? transposed_descriptor(a, k, 64) : tile_descriptor(a, k),
                        TURNED_B ? transposed_descriptor(b, k, 64) : tile_descriptor(b, k),
                        step > 0 || k > 0, typename S::In{});
                products_commit();
                products_wait(1);
                if (step > 0 && lane % 32 == 0)
                    barrier_arrive(lds.empty + (stage_no - 1) % STAGES);
            }
            products_wait(0);
            if (lane % 32 == 0) barrier_arrive(lds.empty + (stage_no - 1) % STAGES);

            const u32 row0 = tile.row + group * 64, own_row = lane / 32 * 16 + lane % 32 / 4;
            const i64 first = ((i64)tile.batch * m + row0) * n;
            if (sizeof(Out) == 2 && n % 8 == 0) {
                // By 64 columns through shared memory, so that stores take whole lines.
                UNROLL for (u32 c = 0; c < BN; c += 64) {
                    if (tile.col + c >= n) break;
                    part_sync(group + 1, 128);
                    UNROLL for (u32 j = 0; j < 8; j++)
                        UNROLL for (u32 h = 0; h < 2; h++) {
                            const u32 row = own_row + 8 * h, col = 8 * j + lane % 4 * 2;
                            u32 pair = 0;
                            UNROLL for (u32 e = 0; e < 2; e++) {
                                const i64 at = first + (i64)row * n + tile.col + c + col + e;
                                const bool inside = row0 + row < m && tile.col + c + col + e < n;
                                const float v = d[4 * (c / 8 + j) + 2 * h + e];
                                if (inside) pair |= (u32)half_bits(give(at, v)) << 16 * e;
                            }
                            *(u32*)(own + tile_at(row, col)) = pair;
                        }
                    part_sync(group + 1, 128);
                    UNROLL for (u32 i = 0; i < 4; i++) {
                        const u32 row = lane / 8 + 16 * i, col = lane % 8 * 8;
                        if (row0 + row < m && tile.col + c + col < n)
                            *(u32x4*)(to + first + (i64)row * n + tile.col + c + col) =
                                load16(own + tile_at(row, col));
                    }
                }
            } else {
                UNROLL for (u32 i = 0; i < BN / 2; i++) {
                    const u32 row = own_row + 8 * (i / 2 % 2);
                    const u32 col = tile.col + 8 * (i / 4) + lane % 4 * 2 + i % 2;
                    const i64 at = first + (i64)row * n + col;
                    if (row0 + row < m && col < n) to[at] = give(at, d[i]);
                }
            }
        }
    }
    STEP u16 half_bits(f16 v) { return v.bits; }
    STEP u16 half_bits(bf16 v) { return v.bits; }
    template <class T> STEP u16 half_bits(T v) { return (u16)v; }
};
