// kv.h: access to the cache of keys and values. kernel_src/src/attention/kv.rs describes the
// layout: rows of HEAD_DIM elements, row = kv_head · capacity + position. KvStorage::Q8_0 has
// signed bytes and an f16 scale for each GROUP of 32 (16 if HEAD_DIM is not a multiple of 32). The
// scales of all rows follow the codes of all rows.
//
// S: HEAD_DIM, KV_STORAGE; with pages KV_HEADS.
#pragma once
#include "enums.h"
#include "paged.h"

template <class S> struct Kv {
    static constexpr u32 HEAD_DIM = S::HEAD_DIM;
    static constexpr KvStorage STORAGE = S::KV_STORAGE;
    static constexpr bool BYTES = STORAGE == KvStorage::Q8_0;
    static constexpr u32 GROUP = HEAD_DIM % 32 == 0 ? 32 : 16;
    static_assert(HEAD_DIM % 16 == 0, "a head is a multiple of 16");
    // Bytes of an element.
    static constexpr u32 SIZE = STORAGE == KvStorage::F32 ? 4 : STORAGE == KvStorage::F16 ? 2 : 1;
    // Bytes of a row, without scales.
    static constexpr u32 ROW = SIZE * HEAD_DIM;
    // scales of a row
    static constexpr u32 SCALES = HEAD_DIM / GROUP;

    // Byte offset of the scales in a cache of `rows` rows.
    STEP u64 scales_at(u64 rows) { return rows * ROW; }

    // The page of a position. Without pages it is the whole cache.
    template <class Byte> STEP Byte* page(Byte* cache, Pages pages, u32 position) {
        if constexpr (kj_page != 0) {
            constexpr u64 rows = (u64)S::KV_HEADS * kj_page,
                          bytes = rows * (ROW + (BYTES ? 2 * SCALES : 0));
            return cache + page_of(pages, position) * (CEIL_DIV(bytes, 256) * 256);
        } else {
            return cache;
        }
    }

    // Eight neighbouring elements as stored.
    struct Eight { u32 word[2 * SIZE]; u32 scale; };

    // Loads elements 8c … 8c + 7 of a row. `rows` is the number of rows of the whole cache.
    STEP Eight load(const u8* cache, u64 rows, u64 row, u32 c) {
        Eight r;
        if constexpr (STORAGE == KvStorage::F32) {
            u32x4 a = load16(cache + row * ROW + 32 * c),
                  b = load16(cache + row * ROW + 32 * c + 16);
            r.word[0] = a.x, r.word[1] = a.y, r.word[2] = a.z, r.word[3] = a.w;
            r.word[4] = b.x, r.word[5] = b.y, r.word[6] = b.z, r.word[7] = b.w;
            r.scale = 0;
        } else if constexpr (STORAGE == KvStorage::F16) {
            u32x4 a = load16(cache + row * ROW + 16 * c);
            r.word[0] = a.x, r.word[1] = a.y, r.word[2] = a.z, r.word[3] = a.w;
            r.scale = 0;
        } else {
            u32x2 a = load8(cache + row * ROW + 8 * c);
            r.word[0] = a.x, r.word[1] = a.y;
            r.scale = *(const u16*)(cache + scales_at(rows) + (row * SCALES + 8 * c / GROUP) * 2);
        }
        return r;
    }

    STEP void values(const Eight& r, float (&v)[8]) {
        if constexpr (STORAGE == KvStorage::F32) {
            UNROLL for (u32 i = 0; i < 8; i++) v[i] = as_f32(r.word[i]);
        } else if constexpr (STORAGE == KvStorage::F16) {
            UNROLL for (u32 i = 0; i < 4; i++)
                v[2 * i] = half_low(r.word[i]), v[2 * i + 1] = half_high(r.word[i]);
        } else {
            float d = half_low(r.scale);
            UNROLL for (u32 i = 0; i < 8; i++)
                v[i] = d * (float)(i32)(i8)(u8)(r.word[i / 4] >> (8 * (i % 4)));
        }
    }

    // Stores a row. `x` is in any memory. Called by one wave.
    STEP void store_row(u8* cache, u64 rows, u64 row, const float* x) {
        if constexpr (STORAGE == KvStorage::F32) {
            for (u32 i = lane_id(); i < HEAD_DIM; i += KJ_WAVE)
                ((float*)(cache + row * ROW))[i] = x[i];
        } else if constexpr (STORAGE == KvStorage::F16) {
            for (u32 i = lane_id(); i < HEAD_DIM / 2; i += KJ_WAVE)
                ((u32*)(cache + row * ROW))[i] = half_pair(x[2 * i], x[2 * i + 1]);
        } else {
            constexpr u32 passes = CEIL_DIV(HEAD_DIM / 4, KJ_WAVE);
            // A lane has four elements; 8 (or 4) neighbouring lanes share a group.
            UNROLL for (u32 p = 0; p < passes; p++) {
                u32 q = lane_id() + p * KJ_WAVE;
                bool inside = q < HEAD_DIM / 4;
                float most = 0.0f;
                float v[4];
                UNROLL for (u32 i = 0; i < 4; i++) {
                    v[i] = inside ? x[4 * q + i] : 0.0f;
                    most = max_f32(most, abs_f32(v[i]));
                }
                most = group_max(most, GROUP / 4);
                f16 d = round_f16(most / 127.0f);
                float scale = ::load(d), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
                u32 word = 0;
                UNROLL for (u32 i = 0; i < 4; i++) {
                    i32 c = round_int(v[i] * inverse);
                    c = c > 127 ? 127 : c < -127 ? -127 : c;
                    word |= (u32)(u8)c << (8 * i);
                }
                if (inside) {
                    ((u32*)(cache + row * ROW))[q] = word;
                    if (q % (GROUP / 4) == 0)
                        *(u16*)(cache + scales_at(rows) + (row * SCALES + 4 * q / GROUP) * 2) =
                            d.bits;
                }
            }
        }
    }
};
