// kv.h: the cache of keys and values, element by element. The layout is described in kernel_src/src/kv.rs, and here it is the code:
// rows of HEAD_DIM elements, row = kv_head · capacity + position; for 8-bit storage the scales of all rows follow the codes of all rows.
//
// Constants: HEAD_DIM, KV_TYPE: 0 f32, 1 f16, 2 signed bytes with a half for each KV_GROUP (32, or 16 where the head is no multiple).
#pragma once
#include "kjit.h"

#if HEAD_DIM % 32 == 0
constexpr u32 KV_GROUP = 32;
#else
constexpr u32 KV_GROUP = 16;
#endif
static_assert(HEAD_DIM % 16 == 0, "a head is a multiple of 16");
constexpr u32 KV_ROW = KV_TYPE == 0 ? 4 * HEAD_DIM : KV_TYPE == 1 ? 2 * HEAD_DIM : HEAD_DIM;  // bytes, without scales
constexpr u32 KV_SCALES = HEAD_DIM / KV_GROUP;                                                // a row

// Byte offset of the scales in a cache of `rows` rows.
STEP u64 kv_scales_at(u64 rows) { return rows * KV_ROW; }

// Eight neighbouring elements as they are stored.
struct Kv8 { u32 word[KV_TYPE == 0 ? 8 : KV_TYPE == 1 ? 4 : 2]; u32 scale; };

// Elements 8c … 8c + 7 of a row. `rows` is that of the whole cache.
STEP Kv8 kv_load(const u8* cache, u64 rows, u64 row, u32 c) {
    Kv8 r;
#if KV_TYPE == 0
    u32x4 a = load16(cache + row * KV_ROW + 32 * c), b = load16(cache + row * KV_ROW + 32 * c + 16);
    r.word[0] = a.x, r.word[1] = a.y, r.word[2] = a.z, r.word[3] = a.w;
    r.word[4] = b.x, r.word[5] = b.y, r.word[6] = b.z, r.word[7] = b.w;
    r.scale = 0;
#elif KV_TYPE == 1
    u32x4 a = load16(cache + row * KV_ROW + 16 * c);
    r.word[0] = a.x, r.word[1] = a.y, r.word[2] = a.z, r.word[3] = a.w;
    r.scale = 0;
#else
    u32x2 a = load8(cache + row * KV_ROW + 8 * c);
    r.word[0] = a.x, r.word[1] = a.y;
    r.scale = *(const u16*)(cache + kv_scales_at(rows) + (row * KV_SCALES + 8 * c / KV_GROUP) * 2);
#endif
    return r;
}

STEP void kv_values(const Kv8& r, float (&v)[8]) {
#if KV_TYPE == 0
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = as_f32(r.word[i]);
#elif KV_TYPE == 1
    UNROLL for (u32 i = 0; i < 4; i++) v[2 * i] = half_low(r.word[i]), v[2 * i + 1] = half_high(r.word[i]);
#else
    float d = half_low(r.scale);
    UNROLL for (u32 i = 0; i < 8; i++) v[i] = d * (float)(i32)(i8)(u8)(r.word[i / 4] >> (8 * (i % 4)));
#endif
}

// Stores a row from LDS or anywhere else, by one wave.
STEP void kv_store_row(u8* cache, u64 rows, u64 row, const float* x) {
#if KV_TYPE == 0
    for (u32 i = lane_id(); i < HEAD_DIM; i += KJ_WAVE) ((float*)(cache + row * KV_ROW))[i] = x[i];
#elif KV_TYPE == 1
    for (u32 i = lane_id(); i < HEAD_DIM / 2; i += KJ_WAVE) ((u32*)(cache + row * KV_ROW))[i] = half_pair(x[2 * i], x[2 * i + 1]);
#else
    constexpr u32 passes = CEIL_DIV(HEAD_DIM / 4, KJ_WAVE);
    UNROLL for (u32 p = 0; p < passes; p++) {  // four elements a lane; 8 (or 4) neighbours share a group
        u32 q = lane_id() + p * KJ_WAVE;
        bool inside = q < HEAD_DIM / 4;
        float most = 0.0f;
        float v[4];
        UNROLL for (u32 i = 0; i < 4; i++) {
            v[i] = inside ? x[4 * q + i] : 0.0f;
            most = max_f32(most, abs_f32(v[i]));
        }
        most = group_max(most, KV_GROUP / 4);
        f16 d = round_f16(most / 127.0f);
        float inverse = load(d) > 0.0f ? 1.0f / load(d) : 0.0f;
        u32 word = 0;
        UNROLL for (u32 i = 0; i < 4; i++) {
            i32 c = round_int(v[i] * inverse);
            c = c > 127 ? 127 : c < -127 ? -127 : c;
            word |= (u32)(u8)c << (8 * i);
        }
        if (inside) {
            ((u32*)(cache + row * KV_ROW))[q] = word;
            if (q % (KV_GROUP / 4) == 0) *(u16*)(cache + kv_scales_at(rows) + (row * KV_SCALES + 4 * q / KV_GROUP) * 2) = d.bits;
        }
    }
#endif
}
