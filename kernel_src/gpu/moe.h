// moe: groups the rows of a prompt by expert. Each pair (token, slot) has chosen one expert.
//
// MoeCount counts. MoePlace gives each expert a run of tiles of BM rows, and each of its pairs a
// row in these tiles, in the order of the pairs. MoeSum adds the experts' rows of each token.
// Between MoePlace and MoeSum the rows are gathered (tiles.h) and multiplied (gemm.h).
//
//   experts      u32, tokens × TOP
//   counts       u32, EXPERTS
//   tile_expert  u32, max_tiles: the expert of each tile, or ~0 after the last
//   source       u32, max_tiles · BM: the token of each row, or ~0 for rows without one
//   row_of       u32, tokens × TOP: the row of each pair
//
// S: EXPERTS, TOP, BM, COLS (MoeSum).
#pragma once
#include "kjit.h"

struct MoeCountArgs {
    const u32* experts;
    u32* counts;
    u32 pairs;
};

// Share: x the expert.
template <class S> struct MoeCount {
    STEP void step(MoeCountArgs a, Share share) {
        float n = 0.0f;  // exact: below 2^24
        for (u32 i = thread_id(); i < a.pairs; i += KJ_BLOCK)
            n += a.experts[i] == share.x ? 1.0f : 0.0f;
        n = block_sum(n);
        if (thread_id() == 0) a.counts[share.x] = (u32)n;
    }
};

struct MoePlaceArgs {
    const u32 *experts, *counts;
    u32 *tile_expert, *source, *row_of;
    u32 pairs, max_tiles;
};

// Share: x the expert.
template <class S> struct MoePlace {
    struct Shared { u32 in_wave[kj_waves]; };

    STEP void step(MoePlaceArgs a, Share share, Shared& lds) {
        u32 expert = share.x;
        float before = 0.0f;
        for (u32 e = thread_id(); e < expert; e += KJ_BLOCK)
            before += (float)CEIL_DIV(a.counts[e], S::BM);
        u32 first = (u32)block_sum(before), count = a.counts[expert],
            tiles = CEIL_DIV(count, S::BM);
        u32 end = expert == S::EXPERTS - 1 ? a.max_tiles : first + tiles;
        for (u32 i = first + thread_id(); i < end; i += KJ_BLOCK)
            a.tile_expert[i] = i < first + tiles ? expert : ~0u;
        // Rows without a pair get ~0, because the gather launches a block for each row.
        for (u32 r = count + thread_id(); r < (end - first) * S::BM; r += KJ_BLOCK)
            a.source[first * S::BM + r] = ~0u;

        u32 next = first * S::BM;
        for (u32 i0 = 0; i0 < a.pairs; i0 += KJ_BLOCK) {
            u32 i = i0 + thread_id();
            bool mine = i < a.pairs && a.experts[i] == expert;
            u64 ballot = wave_ballot(mine);
            if (lane_id() == 0) lds.in_wave[wave_id()] = count_bits(ballot);
            block_sync();
            u32 row = next + count_bits(ballot & (((u64)1 << lane_id()) - 1));
            UNROLL for (u32 w = 0; w < kj_waves; w++) {
                if (w < wave_id()) row += lds.in_wave[w];
                next += lds.in_wave[w];
            }
            if (mine) {
                a.source[row] = i / S::TOP;
                a.row_of[i] = row;
            }
            block_sync();
        }
    }
};

struct MoeSumArgs {
    const float* y;
    const u32* row_of;
    const float *shares, *residual;
    float* out;
};

// out[t] = residual[t] + Σ over slots s of shares[t, s] · y[row_of[t, s]], in f32. `residual` may
// be null or `out`. Share: x the token.
template <class S> struct MoeSum {
    STEP void step(MoeSumArgs a, Share share) {
        u32 t = share.x;
        for (u32 c = thread_id(); c < S::COLS; c += KJ_BLOCK) {
            float sum = 0.0f;
            UNROLL for (u32 s = 0; s < S::TOP; s++)
                sum = fma_f32(a.shares[t * S::TOP + s],
                              a.y[(u64)a.row_of[t * S::TOP + s] * S::COLS + c], sum);
            a.out[(u64)t * S::COLS + c] = a.residual ? a.residual[(u64)t * S::COLS + c] + sum : sum;
        }
    }
};
