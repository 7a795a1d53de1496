// attend: attention of one new token of each sequence to its cached positions. The kernel also
// normalises and rotates the new key, and stores the new key and value.
//
//   q         SEQS × HEADS × HEAD_DIM f32, as projected
//   k, v      SEQS × KV_HEADS × HEAD_DIM f32, as projected
//   out       as q
//   q_norm, k_norm  HEAD_DIM f32 if QK_NORM
//   angles    capacity × ROPE_DIMS/2 pairs
//   sinks     HEADS f32 if SINKS
//   slots     SEQS u32: the slot of each sequence; null: sequence s has slot s
//   position  one u32 per slot: number of tokens before this one
//   keys, values  caches (kv.h) of `capacity` positions; slot s starts at `sequence_bytes` · s
//   table     pages of each slot (paged.h)
//   part      SEQS × HEADS × splits × (HEAD_DIM + 2) f32
//   counters  SEQS × KV_HEADS × HEAD_PARTS u32, zero before and after a launch
//
// Share: x of `splits`, y of KV_HEADS · HEAD_PARTS, z of SEQS. Each block takes a slice of the
// positions for GROUP query heads that share a key head. The block of a head that finishes last
// combines the slices (online softmax: Milakov & Gimelshein 2018, arXiv 1805.02867; splitting the
// context: Dao et al. 2023, "Flash-Decoding").
//
// LANES lanes share a position, with eight elements each, so a wave has SUBS positions at a time.
// It multiplies TILE such sets before it reduces the scores. One reduction then sums all pairs
// (position, head), and each lane has the score of one pair.
//
// S: HEADS, KV_HEADS, GROUP (query heads of a block), GROUP_P (the next power of two), LANES, TILE,
// SOFT_CAP (0: none), KEPT_BEFORE (the new key and value are already in the cache), and as for
// kv.h, rope.h and scores.h.
#pragma once
#include "attend_args.h"
#include "kv.h"
#include "rope.h"
#include "scores.h"

template <class S> struct Attend {
    using K = Kv<S>;
    using Eight = typename K::Eight;
    static constexpr u32 HEADS = S::HEADS, KV_HEADS = S::KV_HEADS, HEAD_DIM = S::HEAD_DIM;
    static constexpr u32 GROUP = S::GROUP, GROUP_P = S::GROUP_P, LANES = S::LANES, TILE = S::TILE;
    static constexpr u32 HEAD_PARTS = HEADS / KV_HEADS / GROUP;
    static constexpr u32 SUBS = KJ_WAVE / LANES;
    static constexpr u32 STEP_POSITIONS = SUBS * TILE * kj_waves;  // per block and iteration
    static constexpr u32 PAIRS = TILE * GROUP_P;  // pairs (position, head)
    static_assert(PAIRS <= LANES && GROUP * HEAD_PARTS * KV_HEADS == HEADS,
                  "a lane for each pair of position and head");
    static constexpr float CAP = S::SOFT_CAP != 0.0f ? S::SOFT_CAP : 1.0f;
    static constexpr float NEVER = -1e30f;  // the maximum before the first score

    struct Softmax { float most, sum; };

    struct Shared {
        float head[GROUP + 2][HEAD_DIM];  // queries, key, value
        float most[kj_waves][GROUP], sum[kj_waves][GROUP];
        float out[kj_waves][GROUP][HEAD_DIM];
    };

    // Sums v[i] over the LANES lanes of a position. The lanes from i · LANES/PAIRS on then have sum
    // i.
    STEP float scatter_sum(float (&v)[PAIRS]) {
        UNROLL for (u32 n = PAIRS, mask = LANES / 2; mask > 0; mask /= 2) {
            if (n > 1) {
                n /= 2;
                bool up = lane_id() & mask;
                UNROLL for (u32 i = 0; i < PAIRS / 2; i++)
                    if (i < n) {
                        float keep = up ? v[i + n] : v[i], give = up ? v[i] : v[i + n];
                        v[i] = keep + wave_xor(give, mask);
                    }
            } else {
                v[0] += wave_xor(v[0], mask);
            }
        }
        return v[0];
    }

    STEP u32 lane_of(u32 pair) { return lane_id() / LANES * LANES + pair * (LANES / PAIRS); }

    STEP void load_tile(Eight (&t)[TILE], const u8* cache, Pages pages, u64 rows, u64 head_row,
                        u32 from, u32 end) {
        UNROLL for (u32 i = 0; i < TILE; i++) {
            u32 p = min_u32(from + i * SUBS + lane_id() / LANES, end - 1);
            u32 c = lane_id() % LANES;
            t[i] = K::load(K::page(cache, pages, p), rows, head_row + within(p),
                           HEAD_DIM / 8 == LANES || c < HEAD_DIM / 8 ? c : 0);
        }
    }

    // Attention of a token at position `here` to positions from … end − 1, for GROUP query heads
    // from `head` on, which share a key head. Stores results, maximum and sum of each wave in
    // `lds`.
    STEP void attend_slice(Shared& lds, const u8* keys, const u8* values, Pages pages, u64 rows,
                           u64 head_row, u32 from, u32 end, u32 here, u32 head, float scale) {
        float q[GROUP][8], acc[GROUP][8];
        bool inside = HEAD_DIM / 8 == LANES || lane_id() % LANES < HEAD_DIM / 8;
        UNROLL for (u32 h = 0; h < GROUP; h++)
            UNROLL for (u32 e = 0; e < 8; e++) {
                q[h][e] = inside ? lds.head[h][lane_id() % LANES * 8 + e] * scale : 0.0f;
                acc[h][e] = 0.0f;
            }
        Softmax mine{NEVER, 0.0f};  // of this lane's pair (position, head)
        u32 at = from + wave_id() * (SUBS * TILE);
        Eight k[TILE], v[TILE];
        if (at < end) {
            load_tile(k, keys, pages, rows, head_row, at, end);
            load_tile(v, values, pages, rows, head_row, at, end);
        }
        NO_UNROLL while (at < end) {
            u32 next = at + STEP_POSITIONS;
            Eight next_k[TILE], next_v[TILE];
            if (next < end) {
                load_tile(next_k, keys, pages, rows, head_row, next, end);
                load_tile(next_v, values, pages, rows, head_row, next, end);
            }
            float pair[PAIRS];
            UNROLL for (u32 t = 0; t < TILE; t++) {
                float x[8];
                K::values(k[t], x);
                UNROLL for (u32 h = 0; h < GROUP_P; h++) {
                    float s = 0.0f;
                    if (h < GROUP)
                        UNROLL for (u32 e = 0; e < 8; e++) s = fma_f32(x[e], q[h][e], s);
                    pair[t * GROUP_P + h] = s;
                }
            }
            float score = scatter_sum(pair);
            u32 which = lane_id() % LANES / (LANES / PAIRS);  // this lane's pair
            if (S::SOFT_CAP != 0.0f) score = CAP * 1.44269504f * tanh_f32(score / CAP);
            if constexpr (S::ALIBI != 0.0f)
                score -= Scores<S>::lost(Scores<S>::slope(head + which % GROUP_P), here,
                                         at + which / GROUP_P * SUBS + lane_id() / LANES);
            if (at + which / GROUP_P * SUBS + lane_id() / LANES >= end) score = as_f32(0xff800000u);

            float most = score;  // maximum over the tile, for this lane's head
            UNROLL for (u32 m = LANES / 2; m >= LANES / TILE && m > 0; m /= 2)
                most = max_f32(most, wave_xor(most, m));
            most = max_f32(mine.most, most);
            float shrink = exp2_hw(mine.most - most);
            float p = exp2_hw(score - most);
            mine.sum = mine.sum * shrink + p;
            if (wave_ballot(most > mine.most) != 0) {
                UNROLL for (u32 h = 0; h < GROUP; h++) {
                    float by = wave_get(shrink, lane_of(h));
                    UNROLL for (u32 e = 0; e < 8; e++) acc[h][e] *= by;
                }
            }
            mine.most = most;
            UNROLL for (u32 t = 0; t < TILE; t++) {
                float x[8];
                K::values(v[t], x);
                UNROLL for (u32 h = 0; h < GROUP; h++) {
                    float by = wave_get(p, lane_of(t * GROUP_P + h));
                    UNROLL for (u32 e = 0; e < 8; e++) acc[h][e] = fma_f32(by, x[e], acc[h][e]);
                }
            }
            UNROLL for (u32 t = 0; t < TILE; t++) k[t] = next_k[t], v[t] = next_v[t];
            at = next;
        }

        // Reduces over the TILE positions, then over the SUBS positions.
        UNROLL for (u32 m = LANES / 2; m >= LANES / TILE && m > 0; m /= 2)
            mine.sum += wave_xor(mine.sum, m);
        float most = mine.most;
        UNROLL for (u32 m = LANES; m < KJ_WAVE; m *= 2) most = max_f32(most, wave_xor(most, m));
        float by = exp2_hw(mine.most - most);
        float sum = mine.sum * by;
        UNROLL for (u32 m = LANES; m < KJ_WAVE; m *= 2) sum += wave_xor(sum, m);
        UNROLL for (u32 h = 0; h < GROUP; h++) {
            float factor = wave_get(by, lane_of(h));
            float head_most = wave_get(most, lane_of(h)), head_sum = wave_get(sum, lane_of(h));
            UNROLL for (u32 e = 0; e < 8; e++) {
                acc[h][e] *= factor;
                UNROLL for (u32 m = LANES; m < KJ_WAVE; m *= 2) acc[h][e] += wave_xor(acc[h][e], m);
                if (lane_id() < LANES && inside)
                    lds.out[wave_id()][h][lane_id() * 8 + e] = acc[h][e];
            }
            if (lane_id() == 0)
                lds.most[wave_id()][h] = head_most, lds.sum[wave_id()][h] = head_sum;
        }
    }

    STEP void step(AttendArgs a, Share share, Shared& lds) {
        u32 sequence = share.z, kv_head = share.y / HEAD_PARTS;
        u32 head = kv_head * (HEADS / KV_HEADS) + share.y % HEAD_PARTS * GROUP;
        u32 slot = a.slots ? a.slots[sequence] : sequence, here = a.position[slot], end = here + 1;
        u32 first = Scores<S>::seen_from(here);
        // Slices are multiples of STEP_POSITIONS. A short context uses few blocks; the other blocks
        // exit immediately.
        u32 slice = CEIL_DIV(CEIL_DIV(end - first, a.splits), STEP_POSITIONS) * STEP_POSITIONS;
        u32 busy = CEIL_DIV(end - first, slice);
        if (share.x >= busy) return;
        u32 from = first + share.x * slice, to = min_u32(from + slice, end);
        u8 *keys = a.keys + slot * a.sequence_bytes, *values = a.values + slot * a.sequence_bytes;
        const u32 each = stretch(a.capacity);
        u64 rows = (u64)KV_HEADS * each, head_row = (u64)kv_head * each;
        const Pages pages{PAGED(pages_of(a.table, slot, a.capacity).table)};

        const u32x2* angles = a.angles + (u64)here * (S::ROPE_DIMS / 2);
        bool owner = to == end;  // this block processes the new position
        for (u32 h = wave_id(); h < GROUP + (owner && !S::KEPT_BEFORE ? 2 : 0); h += kj_waves) {
            u64 kv_at = ((u64)sequence * KV_HEADS + kv_head) * HEAD_DIM;
            if (h < GROUP) {
                Rope<S>::ready_head(lds.head[h],
                                    a.q + ((u64)sequence * HEADS + head + h) * HEAD_DIM, a.q_norm,
                                    a.eps, angles);
            } else if (h == GROUP) {
                Rope<S>::ready_head(lds.head[h], a.k + kv_at, a.k_norm, a.eps, angles);
                K::store_row(K::page(keys, pages, here), rows, head_row + within(here),
                             lds.head[h]);
            } else {
                K::store_row(K::page(values, pages, here), rows, head_row + within(here),
                             a.v + kv_at);
            }
        }
        block_sync();
        float scale = S::SOFT_CAP != 0.0f ? a.scale : a.scale * 1.44269504f;
        attend_slice(lds, keys, values, pages, rows, head_row, from, to, here, head, scale);
        block_sync();

        // Combines the results of the waves, one element per thread at a time.
        u64 out_at = ((u64)sequence * HEADS + head) * HEAD_DIM;
        float* mine =
            a.part + (((u64)sequence * HEADS + head) * a.splits + share.x) * (HEAD_DIM + 2);
        for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK) {
            u32 h = i / HEAD_DIM, e = i % HEAD_DIM;
            float most = lds.most[0][h];
            UNROLL for (u32 w = 1; w < kj_waves; w++) most = max_f32(most, lds.most[w][h]);
            float sum = 0.0f, value = 0.0f;
            UNROLL for (u32 w = 0; w < kj_waves; w++) {
                float by = exp2_hw(lds.most[w][h] - most);
                sum += by * lds.sum[w][h];
                value += by * lds.out[w][h][e];
            }
            if (busy == 1) {
                a.out[out_at + i] =
                    value / Scores<S>::all_shares(most, sum, a.sinks, head + h, 0.0f);
            } else {
                float* p = mine + (u64)h * a.splits * (HEAD_DIM + 2);
                p[e] = value;
                if (e == 0) p[HEAD_DIM] = most, p[HEAD_DIM + 1] = sum;
            }
        }
        if (busy == 1) return;
        if (!last_block(a.counters + (u64)sequence * KV_HEADS * HEAD_PARTS + share.y, busy)) return;
        for (u32 i = thread_id(); i < GROUP * HEAD_DIM; i += KJ_BLOCK) {
            u32 h = i / HEAD_DIM, e = i % HEAD_DIM;
            const float* p =
                a.part + ((u64)sequence * HEADS + head + h) * a.splits * (HEAD_DIM + 2);
            float most = NEVER, sum = 0.0f, value = 0.0f;
            for (u32 s = 0; s < busy; s++, p += HEAD_DIM + 2) {
                float now = max_f32(most, p[HEAD_DIM]);
                float old = exp2_hw(most - now), by = exp2_hw(p[HEAD_DIM] - now);
                sum = sum * old + p[HEAD_DIM + 1] * by;
                value = value * old + p[e] * by;
                most = now;
            }
            a.out[out_at + i] = value / Scores<S>::all_shares(most, sum, a.sinks, head + h, 0.0f);
        }
    }
};
