// rope_kv: the heads of a prompt's tokens made ready, and keys and values kept.
//
//   q  tokens × HEADS × HEAD_DIM f32, k, v  tokens × KV_HEADS × HEAD_DIM f32, as projected
//   turned    queries made ready: f32, or f16 where Q_HALF, tokens × HEADS × HEAD_DIM (may be q where f32)
//   q_norm, k_norm  HEAD_DIM f32 where QK_NORM; angles as in rope.h; position  u32: the first token's
//   keys, values    caches (kv.h) of `capacity` positions
// Grid: tokens × blocks of heads: a wave makes one head; heads are HEADS queries, KV_HEADS keys, KV_HEADS values.
//
// Constants: HEADS, KV_HEADS, QK_NORM, Q_HALF, and those of kv.h and rope.h.
#include "kv.h"
#include "rope.h"

KERNEL rope_kv(const float* q, const float* k, const float* v, const float* RESTRICT q_norm, const float* RESTRICT k_norm,
               const u32x2* RESTRICT angles, const u32* position, u8* keys, u8* values, u8* turned, float eps, u32 capacity) {
    LDS_ARRAY(float, heads, kj_waves * HEAD_DIM);
    launch_dependents();
    wait_for_producer();
    u32 token = block_id(), head = block_id_y() * kj_waves + wave_id();
    if (head >= HEADS + 2 * KV_HEADS) return;  // a wave as a whole
    u32 here = position[0] + token;
    const u32x2* turn = angles + (u64)here * (ROPE_DIMS / 2);
    float* row = heads + wave_id() * HEAD_DIM;
    u64 rows = (u64)KV_HEADS * capacity;
    if (head < HEADS) {
        u64 at = ((u64)token * HEADS + head) * HEAD_DIM;
        ready_head(row, q + at, QK_NORM, q_norm, eps, turn);
        for (u32 i = lane_id(); i < HEAD_DIM; i += KJ_WAVE) {
            if (Q_HALF) ((f16*)turned)[at + i] = round_f16(row[i]);
            else ((float*)turned)[at + i] = row[i];
        }
    } else if (head < HEADS + KV_HEADS) {
        u32 kv_head = head - HEADS;
        ready_head(row, k + ((u64)token * KV_HEADS + kv_head) * HEAD_DIM, QK_NORM, k_norm, eps, turn);
        kv_store_row(keys, rows, (u64)kv_head * capacity + here, row);
    } else {
        u32 kv_head = head - HEADS - KV_HEADS;
        kv_store_row(values, rows, (u64)kv_head * capacity + here, v + ((u64)token * KV_HEADS + kv_head) * HEAD_DIM);
    }
}
