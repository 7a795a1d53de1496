// draw_few: a token drawn among the K likeliest, K at most DRAW_FEW. What most people ask for (top-k 40)
// needs no sum over the vocabulary: each block finds the K likeliest of its range and says them to the
// others, and the block that comes last does the same with what all said, and draws. Nobody waits for
// anybody.
//
// The K likeliest of a range: a group of lanes has the largest of what it reads, its head. At least K
// tokens are no less than the K-th largest head, and they are all in the K groups whose heads are: so few
// that each of them counts how many are larger, which is its rank. A token is a key of 64 bits, its
// logit's order_bits above the complement of its id: no two are equal, and of equal logits the lower id
// is the larger key. 0 is none, and what is no number.
#pragma once
#include "sample.h"

constexpr u32 DRAW_FEW = 64;

// What is drawn, and its random number.
struct DrawOptions {
    u32 top_k;
    float temperature, top_p, min_p, fraction;
};

template <class S> struct DrawFew {
    static constexpr u32 MOST = DRAW_FEW;
    static constexpr u32 EACH = 8;  // keys that a thread reads at a time
    static constexpr u32 LANES = KJ_BLOCK > 512 ? 4 : KJ_BLOCK > 256 ? 2 : 1, GROUPS = KJ_BLOCK / LANES;
    static_assert(KJ_BLOCK % LANES == 0 && GROUPS >= MOST, "a head for each that is kept");

    struct Shared {
        u64 heads[GROUPS], best[MOST], weights[MOST];
        u64 list[MOST + MOST * EACH * LANES];  // the best so far, and those that may be better
        u64 threshold;
        u32 count;
        DrawOptions options;
    };

    STEP u64 larger(u64 a, u64 b) { return a > b ? a : b; }

    // The k largest keys, in falling order, in `best`; zeros behind the last. `read(base, keys)` gives a
    // thread its keys of those from `base` on, of which there are `n`.
    template <class Read> STEP void keep(Shared& lds, u32 k, u32 n, Read read) {
        u32 t = thread_id();
        if (t < MOST) lds.best[t] = 0;
        NO_UNROLL for (u32 base = 0; base < n; base += KJ_BLOCK * EACH) {
            u64 key[EACH], head = 0;
            read(base, key);
            UNROLL for (u32 e = 0; e < EACH; e++) head = larger(head, key[e]);
            UNROLL for (u32 m = LANES / 2; m > 0; m /= 2) head = larger(head, wave_xor(head, m));
            if (t % LANES == 0) lds.heads[t / LANES] = head;
            if (t < MOST) lds.list[t] = lds.best[t];
            if (t == 0) lds.threshold = 0, lds.count = 0;
            block_sync();
            u32 rank = 0;
            for (u32 g = t % LANES; g < GROUPS; g += LANES) rank += lds.heads[g] > head;
            UNROLL for (u32 m = LANES / 2; m > 0; m /= 2) rank += wave_xor(rank, m);
            if (t % LANES == 0 && rank == k - 1 && head != 0) lds.threshold = head;
            block_sync();
            u64 least = larger(larger(lds.threshold, lds.best[k - 1]), 1);
            if (rank < k)
                UNROLL for (u32 e = 0; e < EACH; e++)
                    if (key[e] >= least) lds.list[MOST + lds_take(&lds.count)] = key[e];
            block_sync();
            if (t < MOST) lds.best[t] = 0;
            block_sync();
            u32 listed = MOST + lds.count;
            for (u32 i = t; i < listed; i += KJ_BLOCK) {
                u64 mine = lds.list[i];
                u32 above = 0;
                for (u32 j = 0; j < listed; j++) above += lds.list[j] > mine;
                if (mine != 0 && above < k) lds.best[above] = mine;
            }
            block_sync();
        }
    }

    // Ids `from` up to `to` of a row of logits. Both are multiples of 4 where VOCAB is.
    STEP void keep_logits(Shared& lds, u32 k, const float* x, u32 from, u32 to) {
        keep(lds, k, to - from, [&](u32 base, u64(&key)[EACH]) {
            UNROLL for (u32 a = 0; a < EACH / 4; a++) {
                u32 i = from + base + (a * KJ_BLOCK + thread_id()) * 4;
                u32 bits[4] = {0, 0, 0, 0};
                if constexpr (S::VOCAB % 4 == 0) {
                    if (i < to) {
                        u32x4 four = load16(x + i);
                        bits[0] = order_bits(as_f32(four.x)), bits[1] = order_bits(as_f32(four.y));
                        bits[2] = order_bits(as_f32(four.z)), bits[3] = order_bits(as_f32(four.w));
                    }
                } else {
                    UNROLL for (u32 j = 0; j < 4; j++)
                        if (i + j < to) bits[j] = order_bits(x[i + j]);
                }
                UNROLL for (u32 j = 0; j < 4; j++)
                    key[4 * a + j] = bits[j] != 0 ? (u64)bits[j] << 32 | (0xffffffffu - (i + j)) : 0;
            }
        });
    }

    // Keys in memory.
    STEP void keep_keys(Shared& lds, u32 k, const u64* keys, u32 n) {
        keep(lds, k, n, [&](u32 base, u64(&key)[EACH]) {
            UNROLL for (u32 e = 0; e < EACH; e++) {
                u32 i = base + e * KJ_BLOCK + thread_id();
                key[e] = i < n ? keys[i] : 0;
            }
        });
    }

    // This thread's place among the k weights, in the order that `before(other, mine)` says of their keys:
    // the sum of those before it, and of all.
    struct Place { u64 before, total; };
    template <class Before> STEP Place place(const Shared& lds, u32 k, u64 mine, Before before) {
        Place p{0, 0};
        for (u32 j = 0; j < k; j++) {
            u64 w = lds.weights[j];
            p.total += w;
            p.before += before(lds.best[j], mine) ? w : 0;
        }
        return p;
    }

    // The token drawn from the k in `best`, by the one thread that has it; NONE in the others. `weight(logit,
    // largest)` as draw.h has it.
    static constexpr u32 NONE = 0xffffffffu;
    template <class Weight>
    STEP u32 choose(Shared& lds, u32 k, Weight weight) {
        u32 t = thread_id();
        float top_p = lds.options.top_p;
        u64 first = lds.best[0], mine = t < k ? lds.best[t] : 0;
        u32 likeliest = first != 0 ? 0xffffffffu - (u32)first : 0;
        float largest = logit_of_order(first >> 32);
        // Greedy, nothing is a number, or infinite.
        bool drawn = k > 1 && first != 0 && abs_f32(largest) < as_f32(0x7f800000u);
        if (!drawn) return t == 0 ? likeliest : NONE;
        u64 w = mine != 0 ? weight(logit_of_order(mine >> 32), largest) : 0;
        if (t < MOST) lds.weights[t] = w;
        block_sync();
        if (top_p < 1.0f) {
            Place p = place(lds, k, mine, [](u64 other, u64 own) { return other > own; });
            u64 want = (u64)((double)p.total * (double)top_p), goal = want > 1 ? want - 1 : 0;
            if (goal < p.total && p.before > goal) w = 0;
        }
        if (w < (u64)(lds.options.min_p * 1099511627776.0f)) w = 0;
        block_sync();
        if (t < MOST) lds.weights[t] = w;
        block_sync();
        // In the order of ids.
        Place p = place(lds, k, mine, [](u64 other, u64 own) { return (u32)other > (u32)own; });
        u64 goal = (u64)((double)p.total * (double)lds.options.fraction);
        if (goal >= p.total) return t == 0 ? likeliest : NONE;
        return w > 0 && p.before <= goal && goal < p.before + w ? 0xffffffffu - (u32)mine : NONE;
    }
};
