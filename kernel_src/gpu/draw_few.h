// draw_few: draws a token among the K most likely ones, K up to DRAW_FEW. The usual request (top-k
// 40) needs one pass over the vocabulary. Each block finds the K most likely tokens of its range
// and stores them. The last block finds the K most likely of all stored tokens, and draws. No block
// waits for another.
//
// A token is a 64-bit key: order_bits of its logit above the complement of its id. All keys differ,
// and among equal logits the lower id has the larger key. 0 means no token, and is the key of NaN.
// The K most likely tokens of a range: the *head* of each of MOST groups of lanes is the largest
// key that it read. At least K keys are not below the K-th largest head, and all of them are in the
// K groups with the largest heads. These candidates are few (about 60 of 2048 for K = 40), so the
// rank of each is found by counting larger keys.
#pragma once
#include "noise.h"
#include "sample.h"

constexpr u32 DRAW_FEW = 64;

// Options of a draw and the inputs of its noise; `position` is the position of the drawn token.
struct DrawOptions {
    u32 top_k;
    float inverse, top_p, min_p;
    u64 seed;
    u32 position;
};

// The key of a draw: a token's score above the complement of its id. The greatest key is drawn, so
// among equal scores the lowest id.
STEP u64 draw_key(float v, float largest, float inverse, u32 word, u32 id) {
    return (u64)order_bits(fma_f32(v - largest, inverse, noise_of(word))) << 32 |
           (0xffffffffu - id);
}

template <class S> struct DrawFew {
    static constexpr u32 MOST = DRAW_FEW;
    static constexpr u32 EACH = KJ_BLOCK > 512 ? 4 : 8;  // keys that a thread reads together
    static constexpr u32 GROUPS = MOST, LANES = KJ_BLOCK / GROUPS;
    static_assert(KJ_BLOCK % GROUPS == 0 && LANES <= KJ_WAVE, "a head for each that is kept");

    struct Shared {
        u64 heads[GROUPS], best[MOST], weights[MOST];
        u64 list[MOST + KJ_BLOCK * EACH];  // the best keys so far, then candidates
        u64 threshold;
        u32 count;
        DrawOptions options;
    };

    STEP u64 larger(u64 a, u64 b) { return a > b ? a : b; }
    STEP u32 group_count(u32 v) {
        UNROLL for (u32 m = LANES / 2; m > 0; m /= 2) v += wave_xor(v, m);
        return v;
    }

    // Writes the k largest of `n` keys to `best`, in descending order, with zeros after the last.
    // `read(base, keys)` sets this thread's keys from index `base` on.
    template <class Read> STEP void keep(Shared& lds, u32 k, u32 n, Read read) {
        const u32 t = thread_id(), group = t / LANES, lane = t % LANES;
        if (t < MOST) lds.best[t] = 0;
        NO_UNROLL for (u32 base = 0; base < n; base += KJ_BLOCK * EACH) {
            const bool more = base > 0;
            u64 key[EACH], head = 0;
            read(base, key);
            UNROLL for (u32 e = 0; e < EACH; e++) head = larger(head, key[e]);
            UNROLL for (u32 m = LANES / 2; m > 0; m /= 2) head = larger(head, wave_xor(head, m));
            if (lane == 0) lds.heads[group] = head;
            if (more && t < MOST) lds.list[t] = lds.best[t];
            if (t == 0) lds.threshold = 0, lds.count = more ? MOST : 0;
            block_sync();
            u32 rank = 0;
            UNROLL for (u32 g = 0; g < GROUPS / LANES; g++)
                rank += lds.heads[g * LANES + lane] > head;
            rank = group_count(rank);
            if (lane == 0 && rank == k - 1 && head != 0) lds.threshold = head;
            block_sync();
            const u64 least = larger(larger(lds.threshold, lds.best[k - 1]), 1);
            if (rank < k)
                UNROLL for (u32 e = 0; e < EACH; e++)
                    if (key[e] >= least) lds.list[lds_take(&lds.count)] = key[e];
            block_sync();
            if (more) {
                if (t < MOST) lds.best[t] = 0;
                block_sync();
            }
            const u32 listed = lds.count;
            NO_UNROLL for (u32 from = 0; from < listed; from += GROUPS) {
                const u32 i = from + group;
                const u64 mine = i < listed ? lds.list[i] : 0;
                u32 above = 0;
                for (u32 j = lane; j < listed; j += LANES) above += lds.list[j] > mine;
                above = group_count(above);
                if (lane == 0 && mine != 0 && above < k) lds.best[above] = mine;
            }
            block_sync();
        }
    }

    // A thread's logits of ids `from` to `to` − 1. Both are multiples of 4 if VOCAB is.
    struct Some { float v[EACH]; };
    STEP Some read_logits(const float* x, u32 from, u32 to) {
        Some some;
        UNROLL for (u32 a = 0; a < EACH / 4; a++) {
            const u32 i = from + (a * KJ_BLOCK + thread_id()) * 4;
            UNROLL for (u32 j = 0; j < 4; j++) some.v[4 * a + j] = 0.0f;
            if constexpr (S::VOCAB % 4 == 0) {
                if (i < to) {
                    const u32x4 four = load16(x + i);
                    some.v[4 * a] = as_f32(four.x), some.v[4 * a + 1] = as_f32(four.y);
                    some.v[4 * a + 2] = as_f32(four.z), some.v[4 * a + 3] = as_f32(four.w);
                }
            } else {
                UNROLL for (u32 j = 0; j < 4; j++)
                    if (i + j < to) some.v[4 * a + j] = x[i + j];
            }
        }
        return some;
    }

    // `keep` for ids `from` to `to` − 1 of a row of logits; `first` has the ones that were already
    // read.
    STEP void keep_logits(Shared& lds, u32 k, const float* x, u32 from, u32 to, const Some& first) {
        keep(lds, k, to - from, [&](u32 base, u64(&key)[EACH]) {
            Some some = first;
            if (base > 0) some = read_logits(x, from + base, to);
            UNROLL for (u32 e = 0; e < EACH; e++) {
                const u32 i = from + base + (e / 4 * KJ_BLOCK + thread_id()) * 4 + e % 4;
                const u32 bits = i < to ? order_bits(some.v[e]) : 0;
                key[e] = bits != 0 ? (u64)bits << 32 | (0xffffffffu - i) : 0;
            }
        });
    }

    // Stores a block's tokens. The n-th tokens of all blocks are contiguous, so the heads of a
    // later pass are the two or three most likely tokens of each block.
    STEP void say(const Shared& lds, u32 k, u64* said, u32 block, u32 blocks) {
        if (thread_id() < k) said[thread_id() * blocks + block] = lds.best[thread_id()];
    }
    STEP void keep_said(Shared& lds, u32 k, const u64* said, u32 n) {
        keep(lds, k, n, [&](u32 base, u64(&key)[EACH]) {
            UNROLL for (u32 e = 0; e < EACH; e++) {
                const u32 i =
                    base + (e * LANES + thread_id() % LANES) * GROUPS + thread_id() / LANES;
                key[e] = i < n ? said[i] : 0;
            }
        });
    }

    // Sum of the weights of more likely tokens, and of all tokens.
    struct Place { u64 before, total; };
    STEP Place place(const Shared& lds, u32 k, u64 mine) {
        Place p{0, 0};
        // The other threads have no token.
        if (thread_id() >= MOST) return p;
        for (u32 j = 0; j < k; j++) {
            u64 w = lds.weights[j];
            p.total += w;
            p.before += lds.best[j] > mine ? w : 0;
        }
        return p;
    }

    // Draws one of the k tokens in `best`. Returns it in the one thread that has it, and NONE in
    // the others. `weight(logit, largest)` as in draw.h.
    static constexpr u32 NONE = 0xffffffffu;
    template <class Weight>
    STEP u32 choose(Shared& lds, u32 k, const DrawOptions& options, Weight weight) {
        u32 t = thread_id();
        u64 first = lds.best[0], mine = t < k ? lds.best[t] : 0;
        u32 likeliest = first != 0 ? 0xffffffffu - (u32)first : 0;
        float largest = logit_of_order(first >> 32);
        // False if k is 1 (greedy), if all logits are NaN, or if the largest is infinite.
        bool drawn = k > 1 && first != 0 && abs_f32(largest) < as_f32(0x7f800000u);
        if (!drawn) return t == 0 ? likeliest : NONE;
        u64 w = mine != 0 ? weight(logit_of_order(mine >> 32), largest) : 0;
        if (t < MOST) lds.weights[t] = w;
        block_sync();
        if (options.top_p < 1.0f) {
            Place p = place(lds, k, mine);
            u64 want = (u64)((double)p.total * (double)options.top_p),
                goal = want > 1 ? want - 1 : 0;
            if (goal < p.total && p.before > goal) w = 0;
        }
        if (w < (u64)(options.min_p * 1099511627776.0f)) w = 0;
        block_sync();
        u64 own = 0;
        if (w > 0) {
            u32 id = 0xffffffffu - (u32)mine, word = noise_word(options.seed, options.position, id);
            own = draw_key(logit_of_order(mine >> 32), largest, options.inverse, word, id);
        }
        if (t < MOST) lds.weights[t] = own;
        block_sync();
        u64 best = 0;
        for (u32 j = 0; j < k; j++) best = larger(best, lds.weights[j]);
        if (best == 0) return t == 0 ? likeliest : NONE;
        return own == best ? 0xffffffffu - (u32)own : NONE;
    }
};
