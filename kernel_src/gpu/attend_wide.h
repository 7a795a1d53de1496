// attend_wide: attend.h for heads that do not fit in its lanes' registers, with the same arguments
// and results.
//
// Scores: a wave has POSITIONS positions of a tile, eight elements per lane at a time, and the
// queries in registers. Results: a thread has eight columns and every PARTS-th position of the
// tile; the PARTS partial results are added at the end.
//
// S: HEADS, KV_HEADS, GROUP (query heads of a block), SOFT_CAP (0: none), KEPT_BEFORE (the new key
// and value are already in the cache), and as for kv.h, rope.h and scores.h. Share: as for
// attend.h.
#pragma once
#include "attend_args.h"
#include "kv.h"
#include "rope.h"
#include "scores.h"
#include "slices.h"

template <class S> struct AttendWide {
    using K = Kv<S>;
    using Eight = typename K::Eight;
    using Sum = Slices<S::GROUP, S::HEAD_DIM>;
    static constexpr u32 HEADS = S::HEADS, KV_HEADS = S::KV_HEADS, HEAD_DIM = S::HEAD_DIM,
                         GROUP = S::GROUP;
    static constexpr u32 HEAD_PARTS = HEADS / KV_HEADS / GROUP;
    // Chunks of eight elements of a row, and per lane.
    static constexpr u32 CHUNKS = HEAD_DIM / 8, EACH = CEIL_DIV(CHUNKS, KJ_WAVE);
    static constexpr u32 PARTS = KJ_BLOCK / CHUNKS;
    static constexpr u32 TILE = 32, POSITIONS = TILE / kj_waves;
    static_assert(POSITIONS * kj_waves == TILE && TILE <= KJ_WAVE && PARTS > 0,
                  "a lane for each position");
    static_assert(GROUP * HEAD_PARTS * KV_HEADS == HEADS, "whole groups");
    static constexpr float CAP = S::SOFT_CAP != 0.0f ? S::SOFT_CAP : 1.0f;
    static constexpr float NEVER = -1e30f;  // the maximum before the first score

    struct Shared {
        float head[GROUP][HEAD_DIM];  // queries, then results
        float key[HEAD_DIM];
        float share[GROUP][TILE];
        float most[GROUP], sum[GROUP], shrink[GROUP];
        typename Sum::Shared slices;
    };

    // The rows of one key head in a cache.
    struct Rows {
        Pages pages;
        u64 all, first;
    };

    STEP void load_row(float (&x)[8], const u8* cache, const Rows& rows, u32 position, u32 chunk) {
        const u8* page = K::page(cache, rows.pages, position);
        K::values(K::load(page, rows.all, rows.first + within(position), chunk), x);
    }

    // Computes the scores of a tile for GROUP heads from `head` on.
    STEP void score(Shared& lds, const float (&q)[GROUP][EACH][8], const u8* keys, const Rows& rows,
                    u32 at, u32 end, u32 here, u32 head) {
        NO_UNROLL for (u32 i = 0; i < POSITIONS; i++) {
            const u32 t = wave_id() * POSITIONS + i, position = min_u32(at + t, end - 1);
            float s[GROUP];
            UNROLL for (u32 h = 0; h < GROUP; h++) s[h] = 0.0f;
            UNROLL for (u32 n = 0; n < EACH; n++) {
                const u32 chunk = lane_id() + n * KJ_WAVE;
                float x[8];
                load_row(x, keys, rows, position,
                         CHUNKS % KJ_WAVE == 0 || chunk < CHUNKS ? chunk : 0);
                UNROLL for (u32 h = 0; h < GROUP; h++)
                    UNROLL for (u32 e = 0; e < 8; e++) s[h] = fma_f32(x[e], q[h][n][e], s[h]);
            }
            UNROLL for (u32 h = 0; h < GROUP; h++) {
                float all = wave_sum(s[h]);
                if (S::SOFT_CAP != 0.0f) all = CAP * 1.44269504f * tanh_f32(all / CAP);
                if constexpr (S::ALIBI != 0.0f)
                    all -= Scores<S>::lost(Scores<S>::slope(head + h), here, position);
                if (lane_id() == 0) lds.share[h][t] = at + t < end ? all : as_f32(0xff800000u);
            }
        }
    }

    // Replaces scores by 2^(score − maximum so far).
    STEP void share_out(Shared& lds) {
        for (u32 h = wave_id(); h < GROUP; h += kj_waves) {
            float score = lane_id() < TILE ? lds.share[h][lane_id() % TILE] : as_f32(0xff800000u);
            float before = lds.most[h], most = max_f32(before, wave_max(score));
            float p = exp2_hw(score - most), sum = wave_sum(p);
            wave_sync();  // all threads have read it
            if (lane_id() < TILE) lds.share[h][lane_id() % TILE] = p;
            if (lane_id() == 0) {
                float by = exp2_hw(before - most);
                lds.most[h] = most, lds.shrink[h] = by, lds.sum[h] = lds.sum[h] * by + sum;
            }
        }
    }

    STEP void step(AttendArgs a, Share share, Shared& lds) {
        const u32 sequence = share.z, kv_head = share.y / HEAD_PARTS;
        const u32 head = kv_head * (HEADS / KV_HEADS) + share.y % HEAD_PARTS * GROUP;
        const u32 slot = a.slots ? a.slots[sequence] : sequence, here = a.position[slot],
                  end = here + 1;
        const u32 first = Scores<S>::seen_from(here);
        // Slices are whole tiles. A short context uses few blocks; the other blocks exit
        // immediately.
        const u32 slice = CEIL_DIV(CEIL_DIV(end - first, a.splits), TILE) * TILE;
        const u32 busy = CEIL_DIV(end - first, slice);
        if (share.x >= busy) return;
        const u32 from = first + share.x * slice, to = min_u32(from + slice, end);
        u8 *keys = a.keys + slot * a.sequence_bytes, *values = a.values + slot * a.sequence_bytes;
        const u32 stretch_of = stretch(a.capacity);
        const Rows rows{Pages{PAGED(pages_of(a.table, slot, a.capacity).table)},
                        (u64)KV_HEADS * stretch_of, (u64)kv_head * stretch_of};

        const u32x2* angles = a.angles + (u64)here * (S::ROPE_DIMS / 2);
        const bool owner = to == end;  // this block processes the new position
        for (u32 h = wave_id(); h < GROUP + (owner && !S::KEPT_BEFORE ? 2 : 0); h += kj_waves) {
            const u64 kv_at = ((u64)sequence * KV_HEADS + kv_head) * HEAD_DIM;
            if (h < GROUP) {
                Rope<S>::ready_head(lds.head[h],
                                    a.q + ((u64)sequence * HEADS + head + h) * HEAD_DIM, a.q_norm,
                                    a.eps, angles);
            } else if (h == GROUP) {
                Rope<S>::ready_head(lds.key, a.k + kv_at, a.k_norm, a.eps, angles);
                K::store_row(K::page(keys, rows.pages, here), rows.all, rows.first + within(here),
                             lds.key);
            } else {
                K::store_row(K::page(values, rows.pages, here), rows.all, rows.first + within(here),
                             a.v + kv_at);
            }
        }
        for (u32 h = thread_id(); h < GROUP; h += KJ_BLOCK) lds.most[h] = NEVER, lds.sum[h] = 0.0f;
        block_sync();
        const float scale = S::SOFT_CAP != 0.0f ? a.scale : a.scale * 1.44269504f;
        float q[GROUP][EACH][8];
        UNROLL for (u32 h = 0; h < GROUP; h++)
            UNROLL for (u32 n = 0; n < EACH; n++) {
                const u32 chunk = lane_id() + n * KJ_WAVE;
                const bool inside = CHUNKS % KJ_WAVE == 0 || chunk < CHUNKS;
                UNROLL for (u32 e = 0; e < 8; e++)
                    q[h][n][e] = inside ? lds.head[h][8 * chunk + e] * scale : 0.0f;
            }

        const u32 part = thread_id() / CHUNKS, column = thread_id() % CHUNKS * 8;
        float acc[GROUP][8];
        UNROLL for (u32 h = 0; h < GROUP; h++) UNROLL for (u32 e = 0; e < 8; e++) acc[h][e] = 0.0f;
        NO_UNROLL for (u32 at = from; at < to; at += TILE) {
            score(lds, q, keys, rows, at, to, here, head);
            block_sync();
            share_out(lds);
            block_sync();
            UNROLL for (u32 h = 0; h < GROUP; h++)
                UNROLL for (u32 e = 0; e < 8; e++) acc[h][e] *= lds.shrink[h];
            const u32 tokens = min_u32(TILE, to - at);
            for (u32 t = part; t < (part < PARTS ? tokens : 0); t += PARTS) {
                float x[8];
                load_row(x, values, rows, at + t, column / 8);
                UNROLL for (u32 h = 0; h < GROUP; h++)
                    UNROLL for (u32 e = 0; e < 8; e++)
                        acc[h][e] = fma_f32(lds.share[h][t], x[e], acc[h][e]);
            }
            block_sync();  // all threads have read the probabilities
        }
        NO_UNROLL for (u32 p = 0; p < PARTS; p++) {
            if (part == p)
                UNROLL for (u32 h = 0; h < GROUP; h++)
                    UNROLL for (u32 e = 0; e < 8; e++) {
                        float before = p == 0 ? 0.0f : lds.head[h][column + e];
                        lds.head[h][column + e] = before + acc[h][e];
                    }
            block_sync();
        }

        const u64 out_at = ((u64)sequence * HEADS + head) * HEAD_DIM;
        const u32 each = a.splits * Sum::EACH;
        float* slices = a.part + ((u64)sequence * HEADS + head) * each;
        for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK) {
            const u32 h = i / HEAD_DIM, e = i % HEAD_DIM;
            const float value = lds.head[h][e];
            if (busy == 1) {
                a.out[out_at + i] =
                    value / Scores<S>::all_shares(lds.most[h], lds.sum[h], a.sinks, head + h, 0.0f);
            } else {
                float* p = slices + (u64)h * each + share.x * Sum::EACH;
                p[e] = value;
                if (e == 0) p[HEAD_DIM] = lds.most[h], p[HEAD_DIM + 1] = lds.sum[h];
            }
        }
        if (busy == 1) return;
        if (!last_block(a.counters + (u64)sequence * KV_HEADS * HEAD_PARTS + share.y, busy)) return;
        Sum::weigh(lds.slices, slices, a.splits, busy);
        for (u32 i = thread_id(); i < GROUP * HEAD_DIM / 4; i += KJ_BLOCK) {
            const u32 h = i / (HEAD_DIM / 4);
            const u32x4 v = Sum::columns(lds.slices, slices, a.splits, busy, h, i % (HEAD_DIM / 4));
            const float all = Scores<S>::all_shares(lds.slices.most[h], lds.slices.sum[h], a.sinks,
                                                    head + h, 0.0f);
            float* out = a.out + out_at + 4 * i;
            out[0] = as_f32(v.x) / all, out[1] = as_f32(v.y) / all;
            out[2] = as_f32(v.z) / all, out[3] = as_f32(v.w) / all;
        }
    }
};
