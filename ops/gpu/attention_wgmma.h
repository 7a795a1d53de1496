// attention_wgmma.h: attention.h for sm_90a, on the asynchronous matrix units. There are three
// groups of four warps. One loads keys and values by the copy engine, the other two have 64 queries
// each. While a group computes probabilities, the matrix units compute its next scores and its
// previous values.
//
// The numbers of attention.h, and n[5] … n[7]: 1, or 0 if all batches share queries, keys, values.
// Shape: In, WIDTH (64, 128), RIGHT, LEFT, MASKED, Mask, Cell.
#pragma once
#include "attention.h"
#include "product_wgmma.h"

#define HELD_PRODUCT(n, names, results, A0, A1, A2, A3, B, KEEP, type) \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #KEEP ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
                 " {" names "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, 1; }" \
                 : results : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1))
#define HELD_PRODUCTS(type) \
    if constexpr (N == 64) HELD_PRODUCT(64, R32, D32(0), 32, 33, 34, 35, 36, 37, type); \
    else HELD_PRODUCT(128, R64, D64(0), 64, 65, 66, 67, 68, 69, type)

// d[64 × N] += A · B with depth 16. A is in registers, B is a transposed tile.
template <u32 N> STEP void held_products(float (&d)[N / 2], const u32 (&a)[4], u64 b, f16) {
    static_assert(N == 64 || N == 128, "a width that is spelled out");
    HELD_PRODUCTS("f16");
}
template <u32 N> STEP void held_products(float (&d)[N / 2], const u32 (&a)[4], u64 b, bf16) {
    static_assert(N == 64 || N == 128, "a width that is spelled out");
    HELD_PRODUCTS("bf16");
}

template <class S> struct AttentionWgmma {
    using In = typename S::In;
    static constexpr u32 WIDTH = S::WIDTH, BQ = 128, BK = 128;
    struct Shared { u64 query, full_k[2], full_v[2], empty_k[2], empty_v[2]; };
    static_assert(KJ_BLOCK == 384 && (WIDTH == 64 || WIDTH == 128), "roles");

    // Starts to copy 128 rows of WIDTH elements, as blocks of 64 columns.
    STEP void bring(u16* to, const TensorMap* map, u32 row, u32 z, u64* barrier) {
        barrier_arrive_expect(barrier, 2 * 128 * WIDTH);
        UNROLL for (u32 c = 0; c < WIDTH; c += 64)
            box_copy(to + c * 128, map, c, row, z, barrier);
    }

    STEP void run(const Numbers& p, In* to, const TensorMap* q, const TensorMap* k,
                  const TensorMap* v, const void* mask, u8* pool, Shared& lds) {
        const u32 queries = (u32)p.n[0], width = (u32)p.n[2];
        const u32 tiles = CEIL_DIV(queries, BQ), batch = block_id() / tiles;
        // The last queries come first, because they see the most keys.
        const u32 q0 = (tiles - 1 - block_id() % tiles) * BQ;
        const Sight<S> sight = Sight<S>::of(p);
        const u32 begin = sight.first(sight, q0, BK), last = sight.last(sight, q0 + BQ);
        // Queries that see no key have one tile, of which nothing counts.
        const u32 steps = last > begin ? CEIL_DIV(last - begin, BK) : 1;
        u16* qs = (u16*)(pool + (1024 - shared_at(pool) % 1024) % 1024);
        u16* ks = qs + BQ * WIDTH;
        u16* vs = ks + 2 * BK * WIDTH;
        if (thread_id() == 0) {
            barrier_init(&lds.query, 1);
            for (u32 s = 0; s < 2; s++) {
                barrier_init(lds.full_k + s, 1), barrier_init(lds.full_v + s, 1);
                barrier_init(lds.empty_k + s, 8), barrier_init(lds.empty_v + s, 8);
            }
            barrier_fence_init();
        }
        block_sync();
        if (thread_id() < 128) {
            asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
            if (thread_id() != 0) return;
            bring(qs, q, q0, batch * (u32)p.n[5], &lds.query);
            for (u32 i = 0; i < steps; i++) {
                const u32 s = i % 2, free = (i / 2 + 1) % 2;
                barrier_wait(lds.empty_k + s, free);
                bring(ks + s * BK * WIDTH, k, begin + i * BK, batch * (u32)p.n[6], lds.full_k + s);
                barrier_wait(lds.empty_v + s, free);
                bring(vs + s * BK * WIDTH, v, begin + i * BK, batch * (u32)p.n[7], lds.full_v + s);
            }
            return;
        }
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const u32 group = thread_id() / 128 - 1, t = thread_id() % 128, lane = t % 32;
        u16* mine = qs + group * 64 * 64;  // this group's rows of each block of 64 columns
        const float factor = as_f32((u32)p.n[4]) * 1.4426950408889634f;
        const u32 row0 = q0 + group * 64 + t / 32 * 16 + lane / 4;  // this lane's first row
        // With a mask or a left end scores are scaled first, so that what is not seen stays below
        // where the maxima begin.
        constexpr bool SCALED = S::MASKED || S::LEFT;
        const float rate = SCALED ? 1.0f : factor;
        using Cell = typename S::Cell;
        const Cell* seen = (const Cell*)mask + S::Mask::batch(p, batch);
        float score[BK / 2], out[WIDTH / 2];
        float most[2] = {-1e30f, -1e30f}, sum[2] = {0.0f, 0.0f};
        u32 weights[BK / 16][4];
        UNROLL for (u32 e = 0; e < WIDTH / 2; e++) out[e] = 0.0f;
        auto scores = [&](u32 i) {
            barrier_wait(lds.full_k + i % 2, i / 2 % 2);
            const u16* kt = ks + i % 2 * BK * WIDTH;
            products_fence();
            UNROLL for (u32 d = 0; d < WIDTH; d += 16)
                wide_products<BK, false, false>(
                    score, tile_descriptor(mine + d / 64 * (BQ * 64), d % 64),
                    tile_descriptor(kt + d / 64 * (BK * 64), d % 64), d > 0, In{});
            products_commit();
        };
        // Replaces the scores of tile i by probabilities. Sets `shrink`, the factor of the sums so
        // far.
        auto soften = [&](u32 i, float (&shrink)[2]) {
            const u32 j0 = begin + i * BK;
            const bool inside = sight.all(sight, q0 + group * 64, 64, j0, BK);
            if (SCALED) UNROLL for (u32 e = 0; e < BK / 2; e++) score[e] *= factor;
            if (S::MASKED || !inside)
                UNROLL for (u32 e = 0; e < BK / 2; e++) {
                    const u32 j = j0 + e / 4 * 8 + lane % 4 * 2 + e % 2, row = row0 + e / 2 % 2 * 8;
                    if (!inside && !sight.sees(sight, row, j)) score[e] = UNSEEN;
                    else if (S::MASKED && row < queries)
                        score[e] = masked(score[e], seen[S::Mask::at(p, row, j)]);
                }
            float high[2] = {-2e30f, -2e30f};
            UNROLL for (u32 e = 0; e < BK / 2; e++)
                high[e / 2 % 2] = max_f32(high[e / 2 % 2], score[e]);
            UNROLL for (u32 r = 0; r < 2; r++) {
                // Of the scaled scores; the factor may be negative only if all scores are one.
                high[r] = max_f32(most[r], group_max(high[r], 4) * rate);
                shrink[r] = exp2_hw(most[r] - high[r]);
                most[r] = high[r];
                sum[r] *= shrink[r];
            }
            UNROLL for (u32 e = 0; e < BK / 2; e++) {
                const u32 r = e / 2 % 2;
                score[e] = exp2_hw(fma_f32(score[e], rate, -high[r]));
                sum[r] += score[e];
            }
        };
        auto pack = [&]() {
            UNROLL for (u32 e = 0; e < BK / 2; e += 2)
                weights[e / 8][e / 2 % 4] = pack_of(score[e], score[e + 1], In{});
        };
        auto values = [&](u32 i) {
            barrier_wait(lds.full_v + i % 2, i / 2 % 2);
            const u16* vt = vs + i % 2 * BK * WIDTH;
            products_fence();
            UNROLL for (u32 j = 0; j < BK; j += 16)
                held_products<WIDTH>(out, weights[j / 16], transposed_descriptor(vt, j, BK), In{});
            products_commit();
        };
        barrier_wait(&lds.query, 0);
        scores(0);
        products_wait(0);
        if (lane == 0) barrier_arrive(lds.empty_k);
        float shrink[2];
        soften(0, shrink);
        pack();
        // The last tile of values is multiplied after the loop, so that the loop has no branch
        // between products.
        for (u32 i = 0; i + 1 < steps; i++) {
            scores(i + 1);
            values(i);
            products_wait(1);
            if (lane == 0) barrier_arrive(lds.empty_k + (i + 1) % 2);
            soften(i + 1, shrink);
            products_wait(0);
            if (lane == 0) barrier_arrive(lds.empty_v + i % 2);
            UNROLL for (u32 e = 0; e < WIDTH / 2; e++) out[e] *= shrink[e / 2 % 2];
            pack();
        }
        values(steps - 1);
        products_wait(0);
        // Results pass through this group's rows of the queries, so that 16 bytes are stored at a
        // time.
        part_sync(group + 1, 128);
        UNROLL for (u32 r = 0; r < 2; r++) {
            const float inverse = 1.0f / group_sum(sum[r], 4);
            const u32 row = t / 32 * 16 + lane / 4 + 8 * r;
            UNROLL for (u32 n = 0; n < WIDTH / 8; n++) {
                const u32 low = bits_of(out[4 * n + 2 * r] * inverse, In{});
                const u32 high = bits_of(out[4 * n + 2 * r + 1] * inverse, In{});
                const u32 col = n * 8 + lane % 4 * 2;
                *(u32*)(mine + col / 64 * (BQ * 64) + tile_at(row, col % 64)) = low | high << 16;
            }
        }
        part_sync(group + 1, 128);
        for (u32 c = t; c < 64 * (WIDTH / 8); c += 128) {
            const u32 row = c / (WIDTH / 8), col = c % (WIDTH / 8) * 8;
            const u32 query = q0 + group * 64 + row;
            if (query < queries && col < width)
                *(u32x4*)((u16*)to + ((u64)batch * queries + query) * width + col) =
                    load16(mine + col / 64 * (BQ * 64) + tile_at(row, col % 64));
        }
    }
};
