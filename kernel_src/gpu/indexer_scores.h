// indexer_scores: scores of cached keys for a token, from small index heads (the "lightning
// indexer" of DeepSeek-V3.2-Exp, 2025): Σ over heads of w · max(q · key, 0).
//
//   q         tokens × HEADS × HEAD_DIM f32
//   w         tokens × HEADS f32
//   slots, position   as for attend.h, one token of each sequence; with ONE: tokens of one
//             sequence, position is the position of the first token
//   rows      a cache (kv.h) of one head of `capacity` positions, including the rows of these
//             tokens; slot s starts at `sequence_bytes` · s
//   scores    rows of `capacity` f32, for the tokens from `first` on. Elements after a token's
//             position are not written
//
// Share: x of `splits`, y the row.
//
// Shared memory holds TILE positions as f32 and the queries of as many heads as fit. LANES threads
// share a position, with EACH heads each.
//
// S: HEADS, TILE, ONE, and as for kv.h.
#pragma once
#include "kv.h"

struct IndexerScoresArgs {
    const float *q, *w;
    const u32 *slots, *position;
    const u8* rows;
    float* scores;
    u32 first, tokens, capacity, splits;
    u64 sequence_bytes;
};

template <class S> struct IndexerScores {
    using K = Kv<S>;
    static constexpr u32 HEADS = S::HEADS, HEAD_DIM = S::HEAD_DIM, TILE = S::TILE;
    static constexpr u32 LANES = 16, GROUPS = KJ_BLOCK / LANES, SOME = TILE / GROUPS;
    static constexpr u32 EACH = CEIL_DIV(HEADS, LANES) < 4 ? CEIL_DIV(HEADS, LANES) : 4;
    static constexpr u32 PASS = LANES * EACH, PASSES = CEIL_DIV(HEADS, PASS);
    static constexpr u32 ROW = HEAD_DIM + 1;  // padded: rows start in different banks
    static_assert(SOME * GROUPS == TILE, "whole positions");
    // Bytes of dynamic shared memory.
    static constexpr u32 POOL = ((PASS + TILE) * ROW + PASS) * 4;

    // Loads the queries and factors of the heads of a pass, with zeros after the last head.
    STEP void load_heads(const IndexerScoresArgs& a, u32 token, u32 pass, float* q, float* w) {
        const u64 from = (u64)token * HEADS + pass * PASS;
        for (u32 i = thread_id(); i < PASS * HEAD_DIM; i += KJ_BLOCK) {
            u32 h = i / HEAD_DIM, e = i % HEAD_DIM;
            q[h * ROW + e] = pass * PASS + h < HEADS ? a.q[(from + h) * HEAD_DIM + e] : 0.0f;
        }
        for (u32 h = thread_id(); h < PASS; h += KJ_BLOCK)
            w[h] = pass * PASS + h < HEADS ? a.w[from + h] : 0.0f;
    }

    // `pool`: POOL bytes of shared memory.
    STEP void step(IndexerScoresArgs a, Share share, u8* pool) {
        const u32 token = a.first + share.y;
        if (token >= a.tokens) return;
        const u32 slot = S::ONE ? 0 : a.slots ? a.slots[token] : token;
        const u32 end = a.position[slot] + (S::ONE ? token : 0) + 1;
        if (share.x * TILE >= end) return;
        const u8* rows = a.rows + slot * a.sequence_bytes;
        float *q = (float*)pool, *keys = q + PASS * ROW, *w = keys + TILE * ROW;
        float* scores = a.scores + (u64)share.y * a.capacity;
        const u32 lane = thread_id() % LANES, group = thread_id() / LANES;

        if constexpr (PASSES == 1) load_heads(a, token, 0, q, w);
        NO_UNROLL for (u32 at = share.x * TILE; at < end; at += a.splits * TILE) {
            for (u32 c = thread_id(); c < TILE * (HEAD_DIM / 8); c += KJ_BLOCK) {
                u32 t = c / (HEAD_DIM / 8), chunk = c % (HEAD_DIM / 8);
                float x[8];
                K::values(K::load(rows, a.capacity, min_u32(at + t, end - 1), chunk), x);
                UNROLL for (u32 e = 0; e < 8; e++) keys[t * ROW + 8 * chunk + e] = x[e];
            }
            float sum[SOME];
            UNROLL for (u32 i = 0; i < SOME; i++) sum[i] = 0.0f;
            NO_UNROLL for (u32 pass = 0; pass < PASSES; pass++) {
                if constexpr (PASSES > 1) load_heads(a, token, pass, q, w);
                block_sync();
                float dot[EACH][SOME];
                UNROLL for (u32 h = 0; h < EACH; h++)
                    UNROLL for (u32 i = 0; i < SOME; i++) dot[h][i] = 0.0f;
                NO_UNROLL for (u32 e0 = 0; e0 < HEAD_DIM; e0 += 8)
                    UNROLL for (u32 e = e0; e < e0 + 8; e++) {
                        float k[SOME];
                        UNROLL for (u32 i = 0; i < SOME; i++)
                            k[i] = keys[(group + i * GROUPS) * ROW + e];
                        UNROLL for (u32 h = 0; h < EACH; h++) {
                            float x = q[(lane + h * LANES) * ROW + e];
                            UNROLL for (u32 i = 0; i < SOME; i++)
                                dot[h][i] = fma_f32(x, k[i], dot[h][i]);
                        }
                    }
                UNROLL for (u32 h = 0; h < EACH; h++) {
                    float by = w[lane + h * LANES];
                    UNROLL for (u32 i = 0; i < SOME; i++)
                        sum[i] = fma_f32(by, max_f32(dot[h][i], 0.0f), sum[i]);
                }
                block_sync();  // all threads have read it
            }
            UNROLL for (u32 i = 0; i < SOME; i++) {
                float all = group_sum(sum[i], LANES);
                u32 p = at + group + i * GROUPS;
                if (lane == 0 && p < end) scores[p] = all;
            }
        }
    }
};
