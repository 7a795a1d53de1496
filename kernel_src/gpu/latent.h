// latent: attention of new tokens to latents (DeepSeek-V2, arXiv 2405.04434). A latent is one row
// per position: the key of all heads, and with its first RANK elements the value of all heads. The
// kernel also stores the rows of the new tokens.
//
//   q         TOKENS × HEADS × HEAD_DIM f32
//   row       TOKENS × HEAD_DIM f32
//   out       TOKENS × HEADS × RANK f32
//   slots, position   as for attend.h, one token of each sequence; with ONE: tokens of one
//             sequence, position is the position of the first token
//   rows      a cache (kv.h) of one head of `capacity` positions; slot s starts at
//             `sequence_bytes` · s
//   table     pages of each slot (paged.h)
//   part      TOKENS × HEADS × splits × Slices::EACH f32; null if splits is 1
//   counters  TOKENS × HEADS / GROUP u32, zero before and after a launch; null if splits is 1
//   chosen    only with KJ_CHOSEN (chosen.h)
//
// Share: x of `splits`, y of HEADS / GROUP, z of TOKENS. Slices and their sum as in attend.h.
//
// A wave processes AT_ONCE positions together. A lane has eight neighbouring elements of a row (in
// longer rows several such groups). It first computes its part of every score from them. Then it
// uses them as values, for its columns of the results of all GROUP heads. Queries are in shared
// memory. Waves wait for each other only at the end.
//
// S: HEADS, GROUP, RANK, ONE, and as for kv.h.
#pragma once
#include "chosen.h"
#include "kv.h"
#include "slices.h"

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
    using Eight = typename K::Eight;
    using Sum = Slices<S::GROUP, S::RANK>;
    static constexpr u32 HEADS = S::HEADS, HEAD_DIM = S::HEAD_DIM, RANK = S::RANK, GROUP = S::GROUP;
    // Positions that a wave, and a block, process together.
    static constexpr u32 AT_ONCE = 4, TILE = kj_waves * AT_ONCE;
    // Groups of eight elements of a row, of its value, and per lane.
    static constexpr u32 CHUNKS = HEAD_DIM / 8, EACH = CEIL_DIV(CHUNKS, KJ_WAVE);
    static constexpr u32 VALUES = CEIL_DIV(RANK, 8), COLUMNS = CEIL_DIV(VALUES, KJ_WAVE);
    static_assert(HEADS % GROUP == 0 && RANK <= HEAD_DIM, "whole groups");
    static_assert(kj_page % AT_ONCE == 0, "what a wave has at once lies in one page");
    static constexpr float NEVER = -1e30f;  // the maximum before the first score

    struct Shared {
        alignas(16) float q[GROUP][HEAD_DIM];
        alignas(16) float value[kj_waves][8 * VALUES];  // results of one head, per wave
        float most[kj_waves][GROUP], sum[kj_waves][GROUP];
        typename Sum::Shared slices;
    };

    // Results of a wave for the positions so far.
    struct Seen {
        float value[GROUP][COLUMNS][8];
        float most[GROUP], sum[GROUP];
    };

    STEP u32 chunk_of(u32 n) { return lane_id() + n * KJ_WAVE; }

    // Rows of the cache, as stored.
    template <u32 N> struct Kept { Eight eight[N][EACH]; };
    struct Fresh { float x[EACH][8]; };
    template <u32 N> STEP void values(const Kept<N>& rows, u32 i, u32 n, float (&x)[8]) {
        K::values(rows.eight[i][n], x);
    }
    STEP void values(const Fresh& row, u32, u32 n, float (&x)[8]) {
        UNROLL for (u32 e = 0; e < 8; e++) x[e] = row.x[n][e];
    }

    // Processes N rows. Only the first `count` are visible.
    template <u32 N, class Rows>
    STEP void see(Shared& lds, Seen& seen, const Rows& rows, u32 count) {
        float score[N][GROUP];
        UNROLL for (u32 i = 0; i < N; i++)
            UNROLL for (u32 h = 0; h < GROUP; h++) score[i][h] = 0.0f;
        UNROLL for (u32 n = 0; n < EACH; n++) {
            if (CHUNKS % KJ_WAVE != 0 && chunk_of(n) >= CHUNKS) continue;
            float x[N][8];
            UNROLL for (u32 i = 0; i < N; i++) values(rows, i, n, x[i]);
            UNROLL for (u32 h = 0; h < GROUP; h++) {
                const float* at = &lds.q[h][8 * chunk_of(n)];
                const u32x4 a = load16(at), b = load16(at + 4);
                const float q[8] = {as_f32(a.x), as_f32(a.y), as_f32(a.z), as_f32(a.w),
                                    as_f32(b.x), as_f32(b.y), as_f32(b.z), as_f32(b.w)};
                UNROLL for (u32 i = 0; i < N; i++)
                    UNROLL for (u32 e = 0; e < 8; e++)
                        score[i][h] = fma_f32(q[e], x[i][e], score[i][h]);
            }
        }
        UNROLL for (u32 h = 0; h < GROUP; h++) {
            float most = seen.most[h], sum = 0.0f;
            UNROLL for (u32 i = 0; i < N; i++) {
                score[i][h] = wave_sum(score[i][h]);
                if (N > 1 && i >= count) score[i][h] = as_f32(0xff800000u);
                most = max_f32(most, score[i][h]);
            }
            UNROLL for (u32 i = 0; i < N; i++) sum += score[i][h] = exp2_hw(score[i][h] - most);
            const float by = exp2_hw(seen.most[h] - most);
            seen.most[h] = most, seen.sum[h] = fma_f32(seen.sum[h], by, sum);
            UNROLL for (u32 n = 0; n < COLUMNS; n++)
                UNROLL for (u32 e = 0; e < 8; e++) seen.value[h][n][e] *= by;
        }
        UNROLL for (u32 n = 0; n < COLUMNS; n++)
            UNROLL for (u32 i = 0; i < N; i++) {
                float x[8];
                values(rows, i, n, x);
                UNROLL for (u32 h = 0; h < GROUP; h++)
                    UNROLL for (u32 e = 0; e < 8; e++)
                        seen.value[h][n][e] = fma_f32(score[i][h], x[e], seen.value[h][n][e]);
            }
    }

    // Combines the waves' results. Stores the sum in `out` if this is the only block (`alone`), and
    // otherwise in `part`.
    STEP void together(Shared& lds, Seen& seen, float* out, float* part, u32 each, bool alone) {
        if (lane_id() == 0)
            UNROLL for (u32 h = 0; h < GROUP; h++)
                lds.most[wave_id()][h] = seen.most[h], lds.sum[wave_id()][h] = seen.sum[h];
        block_sync();
        UNROLL for (u32 h = 0; h < GROUP; h++) {
            float most = NEVER, sum = 0.0f;
            UNROLL for (u32 w = 0; w < kj_waves; w++) most = max_f32(most, lds.most[w][h]);
            UNROLL for (u32 w = 0; w < kj_waves; w++)
                sum = fma_f32(lds.sum[w][h], exp2_hw(lds.most[w][h] - most), sum);
            const float by = exp2_hw(seen.most[h] - most);
            UNROLL for (u32 n = 0; n < COLUMNS; n++)
                if (VALUES % KJ_WAVE == 0 || chunk_of(n) < VALUES)
                    UNROLL for (u32 e = 0; e < 8; e++)
                        lds.value[wave_id()][8 * chunk_of(n) + e] = seen.value[h][n][e] * by;
            block_sync();
            for (u32 c = thread_id(); c < RANK; c += KJ_BLOCK) {
                float v = 0.0f;
                UNROLL for (u32 w = 0; w < kj_waves; w++) v += lds.value[w][c];
                if (alone) out[h * RANK + c] = v / sum;
                else part[(u64)h * each + c] = v;
            }
            if (!alone && thread_id() == 0)
                part[(u64)h * each + RANK] = most, part[(u64)h * each + RANK + 1] = sum;
            block_sync();
        }
    }

    STEP void step(LatentArgs a, Share share, Shared& lds) {
        const u32 token = share.z, head = share.y * GROUP;
        const u32 slot = S::ONE ? 0 : a.slots ? a.slots[token] : token;
        const u32 past = a.position[slot], here = past + (S::ONE ? token : 0),
                  end = chosen_of(here + 1);
        const Chosen chosen{CHOSEN(chosen_by(a.chosen, token))};
        const float* fresh = a.row + (S::ONE ? 0 : (u64)token * HEAD_DIM);  // at position `past`
        const u32 slice = CEIL_DIV(CEIL_DIV(end, a.splits), TILE) * TILE,
                  busy = CEIL_DIV(end, slice);
        if (share.x >= busy) return;
        const u32 from = share.x * slice, to = min_u32(from + slice, end);
        u8* cache = a.rows + slot * a.sequence_bytes;
        const Pages pages{PAGED(pages_of(a.table, slot, a.capacity).table)};

        const u64 first = (u64)token * HEADS + head;
        for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK)
            lds.q[i / HEAD_DIM][i % HEAD_DIM] = a.q[first * HEAD_DIM + i] * (a.scale * 1.44269504f);
        if (to == end && share.y == 0 && wave_id() == 0)
            K::store_row(K::page(cache, pages, here), stretch(a.capacity), within(here),
                         a.row + (u64)token * HEAD_DIM);
        block_sync();

        Seen seen;
        UNROLL for (u32 h = 0; h < GROUP; h++) {
            seen.most[h] = NEVER, seen.sum[h] = 0.0f;
            UNROLL for (u32 n = 0; n < COLUMNS; n++)
                UNROLL for (u32 e = 0; e < 8; e++) seen.value[h][n][e] = 0.0f;
        }
        NO_UNROLL for (u32 at = from + wave_id() * AT_ONCE; at < to; at += TILE) {
            // Positions ascend, so if the last one is in the cache, all are. New positions are not
            // read from the cache, because they may have no page.
            if (chosen_at(chosen, min_u32(at + AT_ONCE, to) - 1) < past) {
                const u8* rows = K::page(cache, pages, at);
                Kept<AT_ONCE> kept;
                UNROLL for (u32 i = 0; i < AT_ONCE; i++) {
                    const u32 p = within(chosen_at(chosen, min_u32(at + i, to - 1)));
                    UNROLL for (u32 n = 0; n < EACH; n++) {
                        const u32 c = min_u32(chunk_of(n), CHUNKS - 1);
                        kept.eight[i][n] = K::load(rows, stretch(a.capacity), p, c);
                    }
                }
                see<AT_ONCE>(lds, seen, kept, to - at);
            } else {
                NO_UNROLL for (u32 i = at; i < min_u32(at + AT_ONCE, to); i++) {
                    const u32 p = chosen_at(chosen, i);
                    Fresh row;
                    UNROLL for (u32 n = 0; n < EACH; n++) {
                        const u32 c = min_u32(chunk_of(n), CHUNKS - 1);
                        if (p < past) {
                            const u8* rows = K::page(cache, pages, p);
                            K::values(K::load(rows, stretch(a.capacity), within(p), c), row.x[n]);
                        } else {
                            const float* x = fresh + (u64)(p - past) * HEAD_DIM + 8 * c;
                            UNROLL for (u32 e = 0; e < 8; e++) row.x[n][e] = x[e];
                        }
                    }
                    see<1>(lds, seen, row, 1);
                }
            }
        }

        const u32 each = a.splits * Sum::EACH;
        float* part = a.part + first * each;
        together(lds, seen, a.out + first * RANK, part + share.x * Sum::EACH, each, busy == 1);
        if (busy == 1) return;
        if (!last_block(a.counters + (u64)token * (HEADS / GROUP) + share.y, busy)) return;
        Sum::weigh(lds.slices, part, a.splits, busy);
        for (u32 i = thread_id(); i < GROUP * CEIL_DIV(RANK, 4); i += KJ_BLOCK) {
            const u32 h = i / CEIL_DIV(RANK, 4), c = i % CEIL_DIV(RANK, 4);
            const u32x4 v = Sum::columns(lds.slices, part, a.splits, busy, h, c);
            const u32 word[4] = {v.x, v.y, v.z, v.w};
            float* out = a.out + (first + h) * RANK + 4 * c;
            UNROLL for (u32 e = 0; e < 4; e++)
                if (RANK % 4 == 0 || 4 * c + e < RANK) out[e] = as_f32(word[e]) / lds.slices.sum[h];
        }
    }
};
