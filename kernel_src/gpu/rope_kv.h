// rope_kv: normalises and rotates the heads of a prompt's tokens; stores keys and values.
//
//   q         tokens × HEADS × HEAD_DIM f32, as projected
//   k, v      tokens × KV_HEADS × HEAD_DIM f32, as projected
//   rotated   the rotated queries, tokens × HEADS × HEAD_DIM: f32 (may be q), or f16 if Q_HALF
//   q_norm, k_norm  HEAD_DIM f32 if QK_NORM
//   angles    as for rope.h
//   position  u32: the position of the first token
//   keys, values    caches (kv.h) of `capacity` positions
//   table     the sequence's pages (paged.h)
//
// S: HEADS, KV_HEADS, Q_HALF, KEPT_BEFORE (keys and values are already in the cache), and as for
// kv.h and rope.h. Share: x the token, y a block of heads. A wave has one head, in the order HEADS
// queries, KV_HEADS keys, KV_HEADS values.
#pragma once
#include "kv.h"
#include "rope.h"

struct RopeKvArgs {
    const float *q, *k, *v, *q_norm, *k_norm;
    const u32x2* angles;
    const u32* position;
    u8 *keys, *values, *rotated;
    float eps;
    u32 capacity;
    PAGED(const u32* table;)
};

template <class S> struct RopeKv {
    static constexpr u32 HEADS = S::HEADS, KV_HEADS = S::KV_HEADS, HEAD_DIM = S::HEAD_DIM;
    struct Shared { float head[kj_waves * HEAD_DIM]; };

    STEP void step(RopeKvArgs a, Share share, Shared& lds) {
        u32 token = share.x, head = share.y * kj_waves + wave_id();
        if (head >= HEADS + (S::KEPT_BEFORE ? 0 : 2 * KV_HEADS)) return;  // a whole wave returns
        u32 here = a.position[0] + token;
        const u32x2* angles = a.angles + (u64)here * (S::ROPE_DIMS / 2);
        float* row = lds.head + wave_id() * HEAD_DIM;
        const u32 each = stretch(a.capacity);
        const Pages pages{PAGED(a.table)};
        u64 rows = (u64)KV_HEADS * each, row_in = within(here);
        if (head < HEADS) {
            u64 at = ((u64)token * HEADS + head) * HEAD_DIM;
            Rope<S>::ready_head(row, a.q + at, a.q_norm, a.eps, angles);
            for (u32 i = lane_id(); i < HEAD_DIM; i += KJ_WAVE) {
                if (S::Q_HALF) ((f16*)a.rotated)[at + i] = round_f16(row[i]);
                else ((float*)a.rotated)[at + i] = row[i];
            }
        } else if (head < HEADS + KV_HEADS) {
            u32 kv_head = head - HEADS;
            Rope<S>::ready_head(row, a.k + ((u64)token * KV_HEADS + kv_head) * HEAD_DIM, a.k_norm,
                                a.eps, angles);
            Kv<S>::store_row(Kv<S>::page(a.keys, pages, here), rows, kv_head * (u64)each + row_in,
                             row);
        } else {
            u32 kv_head = head - HEADS - KV_HEADS;
            const float* value = a.v + ((u64)token * KV_HEADS + kv_head) * HEAD_DIM;
            Kv<S>::store_row(Kv<S>::page(a.values, pages, here), rows, kv_head * (u64)each + row_in,
                             value);
        }
    }
};
