// latent: new tokens attend to latents (DeepSeek-V2, arXiv 2405.04434): a row for each position, which is the
// key of all heads, and up to RANK their value. Their own rows are kept on the way.
//
//   q         TOKENS × HEADS × HEAD_DIM f32, row  TOKENS × HEAD_DIM f32, both as they are
//   out       TOKENS × HEADS × RANK f32
//   slots, position   as attend.h has them, a token of each sequence; ONE: tokens of one, position is the
//             first's
//   rows      a cache (kv.h) of one head of `capacity` positions; slot s starts `sequence_bytes`·s further on
//   table     pages of each slot (paged.h)
//   part      TOKENS × HEADS × splits × (RANK + 2) f32 and counters, TOKENS × HEADS / GROUP u32 (zero before
//             and after); null where splits is 1
//   chosen    where KJ_CHOSEN is set (chosen.h)
// Share: x of `splits`, y of HEADS / GROUP, z of TOKENS. Slices and their sum as in attend.h.
//
// TILE positions at a time are in shared memory as singles. LANES threads make a score of one of GROUP heads;
// then each thread has columns of the result, of all these heads.
//
// S: HEADS, GROUP, GROUP_P (the next power of two), RANK, TILE, ONE, and those of kv.h.
#pragma once
#include "chosen.h"
#include "kv.h"

struct LatentArgs {
    const float *q, *row;
    const u32 *slots, *position;
    u8* rows;
    float* part;
    u32* counters;
    float* out;
    float scale;
    u32 capacity, splits;
    u64 sequence_bytes;
    PAGED(const u32* table;)
    CHOSEN(const u32* chosen;)
};

template <class S> struct Latent {
    using K = Kv<S>;
    static constexpr u32 HEADS = S::HEADS, HEAD_DIM = S::HEAD_DIM, RANK = S::RANK, GROUP = S::GROUP;
    static constexpr u32 TILE = S::TILE, LANES = KJ_BLOCK / (S::GROUP_P * TILE);
    static constexpr u32 COLUMNS = CEIL_DIV(RANK, KJ_BLOCK);
    static_assert(LANES * S::GROUP_P * TILE == KJ_BLOCK && LANES <= KJ_WAVE && TILE <= KJ_WAVE, "threads");
    static_assert(HEADS % GROUP == 0 && RANK <= HEAD_DIM, "whole groups");
    static constexpr float NEVER = -1e30f;  // a maximum before any score

    struct Shared {
        float q[GROUP][HEAD_DIM];
        float row[TILE][HEAD_DIM + LANES];  // one after the other begins LANES banks further on
        float share[GROUP][TILE];
        float most[GROUP], sum[GROUP], shrink[GROUP];
    };

    static_assert(kj_page % TILE == 0, "a tile lies in one page");

    // Positions from `past` on are those of the rows at `fresh`, which are on their way to the cache.
    // Chosen positions are read one by one; those of a tile else lie in one page.
    STEP void load_tile(Shared& lds, const u8* cache, Pages pages, const float* fresh, Chosen chosen,
                        u32 past, u32 capacity, u32 from, u32 end) {
        // Of what is fresh alone nothing is read there: it may have no page.
        const u8* rows = from < past ? K::page(cache, pages, from) : cache;
        for (u32 c = thread_id(); c < TILE * (HEAD_DIM / 8); c += KJ_BLOCK) {
            u32 t = c / (HEAD_DIM / 8), chunk = c % (HEAD_DIM / 8);
            float x[8];
            u32 p = chosen_at(chosen, min_u32(from + t, end - 1));
            if (p < past) {
                K::values(K::load(rows, stretch(capacity), within(p), chunk), x);
            } else {
                UNROLL for (u32 e = 0; e < 8; e++) x[e] = fresh[(u64)(p - past) * HEAD_DIM + 8 * chunk + e];
            }
            UNROLL for (u32 e = 0; e < 8; e++) lds.row[t][8 * chunk + e] = x[e];
        }
    }

    // Scores of a tile, as powers of two of their distance from the maximum so far.
    STEP void share_out(Shared& lds, u32 from, u32 end) {
        u32 pair = thread_id() / LANES, h = pair / TILE, t = pair % TILE;
        float s = 0.0f;
        if (h < GROUP)
            for (u32 e = thread_id() % LANES; e < HEAD_DIM; e += LANES)
                s = fma_f32(lds.q[h][e], lds.row[t][e], s);
        s = group_sum(s, LANES);
        if (h < GROUP && thread_id() % LANES == 0) lds.share[h][t] = from + t < end ? s : as_f32(0xff800000u);
        block_sync();
        for (u32 head = wave_id(); head < GROUP; head += kj_waves) {
            float score = lane_id() < TILE ? lds.share[head][lane_id()] : as_f32(0xff800000u);
            float before = lds.most[head], most = max_f32(before, wave_max(score));
            float p = exp2_hw(score - most), sum = wave_sum(p);
            wave_sync();  // everybody has read
            if (lane_id() < TILE) lds.share[head][lane_id()] = p;
            if (lane_id() == 0) {
                float by = exp2_hw(before - most);
                lds.most[head] = most, lds.shrink[head] = by, lds.sum[head] = lds.sum[head] * by + sum;
            }
        }
        block_sync();
    }

    STEP void step(LatentArgs a, Share share, Shared& lds) {
        u32 token = share.z, head = share.y * GROUP;
        u32 slot = S::ONE ? 0 : a.slots ? a.slots[token] : token;
        u32 past = a.position[slot], here = past + (S::ONE ? token : 0), end = chosen_of(here + 1);
        Chosen chosen{CHOSEN(chosen_by(a.chosen, token))};
        const float* fresh = a.row + (S::ONE ? 0 : (u64)token * HEAD_DIM);
        u32 slice = CEIL_DIV(CEIL_DIV(end, a.splits), TILE) * TILE, busy = CEIL_DIV(end, slice);
        if (share.x >= busy) return;
        u32 from = share.x * slice, to = min_u32(from + slice, end);
        u8* rows = a.rows + slot * a.sequence_bytes;
        const Pages pages{PAGED(pages_of(a.table, slot, a.capacity).table)};

        const u64 first = (u64)token * HEADS + head;
        for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK)
            lds.q[i / HEAD_DIM][i % HEAD_DIM] = a.q[first * HEAD_DIM + i] * (a.scale * 1.44269504f);
        for (u32 h = thread_id(); h < GROUP; h += KJ_BLOCK) lds.most[h] = NEVER, lds.sum[h] = 0.0f;
        if (to == end && share.y == 0 && wave_id() == 0)
            K::store_row(K::page(rows, pages, here), stretch(a.capacity), within(here),
                         a.row + (u64)token * HEAD_DIM);
        block_sync();

        float acc[GROUP][COLUMNS];
        UNROLL for (u32 h = 0; h < GROUP; h++)
            UNROLL for (u32 i = 0; i < COLUMNS; i++) acc[h][i] = 0.0f;
        NO_UNROLL for (u32 at = from; at < to; at += TILE) {
            load_tile(lds, rows, pages, fresh, chosen, past, a.capacity, at, to);
            block_sync();
            share_out(lds, at, to);
            UNROLL for (u32 h = 0; h < GROUP; h++)
                UNROLL for (u32 i = 0; i < COLUMNS; i++) acc[h][i] *= lds.shrink[h];
            UNROLL for (u32 i = 0; i < COLUMNS; i++) {
                u32 c = thread_id() + i * KJ_BLOCK;
                if (RANK % KJ_BLOCK != 0 && c >= RANK) break;
                for (u32 t = 0; t < TILE; t++) {
                    float v = lds.row[t][c];
                    UNROLL for (u32 h = 0; h < GROUP; h++) acc[h][i] = fma_f32(lds.share[h][t], v, acc[h][i]);
                }
            }
            block_sync();
        }

        const u64 each = (u64)a.splits * (RANK + 2);
        UNROLL for (u32 h = 0; h < GROUP; h++)
            UNROLL for (u32 i = 0; i < COLUMNS; i++) {
                u32 c = thread_id() + i * KJ_BLOCK;
                if (RANK % KJ_BLOCK != 0 && c >= RANK) break;
                if (busy == 1) {
                    a.out[(first + h) * RANK + c] = acc[h][i] / lds.sum[h];
                } else {
                    float* p = a.part + (first + h) * each + share.x * (RANK + 2);
                    p[c] = acc[h][i];
                    if (c == 0) p[RANK] = lds.most[h], p[RANK + 1] = lds.sum[h];
                }
            }
        if (busy == 1) return;
        if (!last_block(a.counters + (u64)token * (HEADS / GROUP) + share.y, busy)) return;
        for (u32 i = thread_id(); i < GROUP * RANK; i += KJ_BLOCK) {
            u32 h = i / RANK, c = i % RANK;
            const float* p = a.part + (first + h) * each;
            float most = NEVER, sum = 0.0f, value = 0.0f;
            for (u32 s = 0; s < busy; s++, p += RANK + 2) {
                float now = max_f32(most, p[RANK]);
                float old = exp2_hw(most - now), by = exp2_hw(p[RANK] - now);
                sum = sum * old + p[RANK + 1] * by;
                value = value * old + p[c] * by;
                most = now;
            }
            a.out[first * RANK + i] = value / sum;
        }
    }
};
