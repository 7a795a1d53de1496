// moe: rows of a prompt grouped by the expert that each (token, slot) pair has chosen, on the device.
//
// `moe_count` counts; `moe_place` gives each expert a run of tiles of BM rows and each of its pairs a row there, in the pairs' order;
// `moe_sum` adds the experts' rows of each token up. Between them the rows are gathered (tiles.hip) and multiplied (gemm.hip).
//
//   experts      u32, tokens × TOP               counts  u32, EXPERTS
//   tile_expert  u32, max_tiles: the expert of each tile, or ~0 behind the last
//   source       u32, max_tiles · BM: the token of each row, or ~0 where a tile is not full or not there
//   place        u32, tokens × TOP: the row of each pair
//
// Constants: EXPERTS, TOP, BM, COLS (moe_sum). Grids: EXPERTS; EXPERTS; tokens.
#include "kjit.h"

KERNEL moe_count(const u32* experts, u32* counts, u32 pairs) {
    launch_dependents();
    wait_for_producer();
    float n = 0.0f;  // exact: below 2^24
    for (u32 i = thread_id(); i < pairs; i += KJ_BLOCK) n += experts[i] == block_id() ? 1.0f : 0.0f;
    n = block_sum(n);
    if (thread_id() == 0) counts[block_id()] = (u32)n;
}

KERNEL moe_place(const u32* experts, const u32* counts, u32* tile_expert, u32* source, u32* place, u32 pairs, u32 max_tiles) {
    launch_dependents();
    wait_for_producer();
    LDS_ARRAY(u32, in_wave, kj_waves);
    u32 expert = block_id();
    float before = 0.0f;
    for (u32 e = thread_id(); e < expert; e += KJ_BLOCK) before += (float)CEIL_DIV(counts[e], BM);
    u32 first = (u32)block_sum(before), count = counts[expert], tiles = CEIL_DIV(count, BM);
    u32 end = expert == EXPERTS - 1 ? max_tiles : first + tiles;
    for (u32 i = first + thread_id(); i < end; i += KJ_BLOCK) tile_expert[i] = i < first + tiles ? expert : ~0u;
    // Rows of tiles that nobody uses too: the gather launches a block for each of them.
    for (u32 r = count + thread_id(); r < (end - first) * BM; r += KJ_BLOCK) source[first * BM + r] = ~0u;

    u32 next = first * BM;
    for (u32 i0 = 0; i0 < pairs; i0 += KJ_BLOCK) {
        u32 i = i0 + thread_id();
        bool mine = i < pairs && experts[i] == expert;
        u64 ballot = wave_ballot(mine);
        if (lane_id() == 0) in_wave[wave_id()] = count_bits(ballot);
        block_sync();
        u32 row = next + count_bits(ballot & (((u64)1 << lane_id()) - 1));
        UNROLL for (u32 w = 0; w < kj_waves; w++) {
            if (w < wave_id()) row += in_wave[w];
            next += in_wave[w];
        }
        if (mine) {
            source[row] = i / TOP;
            place[i] = row;
        }
        block_sync();
    }
}

// out[t] = residual[t] + Σ over slots s of shares[t, s] · y[place[t, s]], all f32; the residual may be absent or the output.
KERNEL moe_sum(const float* y, const u32* place, const float* shares, const float* residual, float* out) {
    launch_dependents();
    wait_for_producer();
    u32 t = block_id();
    for (u32 c = thread_id(); c < COLS; c += KJ_BLOCK) {
        float sum = 0.0f;
        UNROLL for (u32 s = 0; s < TOP; s++) sum = fma_f32(shares[t * TOP + s], y[(u64)place[t * TOP + s] * COLS + c], sum);
        out[(u64)t * COLS + c] = residual ? residual[(u64)t * COLS + c] + sum : sum;
    }
}
