// top_keys: selects the TOP best scores (indexer_scores.h) of the positions that each token sees,
// as a list of positions in ascending order. Among equal scores the earlier positions are chosen;
// −0 equals 0, NaN is the lowest.
//
//   scores    rows of `capacity` f32, for the tokens from `first` on
//   slots, position   as for indexer_scores.h
//   chosen    tokens × TOP u32; ~0 after the last, if a token sees fewer
//
// Share: x the row.
//
// The smallest chosen key is found byte by byte, highest first (radix select): each pass counts the
// scores whose higher bytes are equal to those found so far. One more pass writes the list.
//
// S: TOP, ONE.
#pragma once
#include "sample.h"

struct TopKeysArgs {
    const float* scores;
    const u32 *slots, *position;
    u32* chosen;
    u32 first, tokens, capacity;
};

template <class S> struct TopKeys {
    static constexpr u32 TOP = S::TOP, BINS = 256, EACH = BINS / KJ_WAVE;

    struct Shared {
        u32 count[BINS];
        u32 digit, rest;
        u32 above[kj_waves], same[kj_waves];
    };

    // Finds the digit of the `rest`-th largest key, and its rank among the keys with that digit.
    // Called by one wave.
    STEP void find_digit(Shared& lds, u32 rest) {
        const u32 highest = BINS - 1 - lane_id() * EACH;
        u32 mine = 0;
        UNROLL for (u32 i = 0; i < EACH; i++) mine += lds.count[highest - i];
        u32 up_to = mine;
        UNROLL for (u32 d = 1; d < KJ_WAVE; d *= 2) {
            u32 before = wave_get(up_to, lane_id() >= d ? lane_id() - d : 0);
            up_to += lane_id() >= d ? before : 0;
        }
        if (rest <= up_to && rest > up_to - mine) {
            u32 left = rest - (up_to - mine), digit = highest;
            for (u32 n = lds.count[digit]; n < left; n = lds.count[digit]) left -= n, digit--;
            lds.digit = digit, lds.rest = left;
        }
    }

    STEP void step(TopKeysArgs a, Share share, Shared& lds) {
        const u32 token = a.first + share.x;
        if (token >= a.tokens) return;
        const u32 slot = S::ONE ? 0 : slot_of(a.slots, token);
        const u32 seen = a.position[slot] + (S::ONE ? token : 0) + 1;
        u32* chosen = a.chosen + (u64)token * TOP;
        if (seen <= TOP) {
            for (u32 i = thread_id(); i < TOP; i += KJ_BLOCK) chosen[i] = i < seen ? i : ~0u;
            return;
        }

        const float* x = a.scores + (u64)share.x * a.capacity;
        u32 key = 0, rest = TOP;
        NO_UNROLL for (u32 digits = 4; digits-- > 0;) {
            const u32 shift = 8 * digits, above = digits == 3 ? 0 : ~0u << (shift + 8);
            for (u32 b = thread_id(); b < BINS; b += KJ_BLOCK) lds.count[b] = 0;
            block_sync();
            for (u32 i = thread_id(); i < seen; i += KJ_BLOCK) {
                u32 bits = order_bits(x[i]);
                if ((bits & above) == key) lds_add(&lds.count[bits >> shift & (BINS - 1)], 1u);
            }
            block_sync();
            if (wave_id() == 0) find_digit(lds, rest);
            block_sync();
            key |= lds.digit << shift;
            rest = lds.rest;
        }

        // Entries written so far. `rest` more entries have the smallest chosen key.
        u32 next = 0;
        NO_UNROLL for (u32 i0 = 0; i0 < seen && next < TOP; i0 += KJ_BLOCK) {
            const u32 i = i0 + thread_id(), bits = i < seen ? order_bits(x[i]) : 0;
            const bool above = i < seen && bits > key, same = i < seen && bits == key;
            const u64 all_above = wave_ballot(above), all_same = wave_ballot(same);
            if (lane_id() == 0) {
                lds.above[wave_id()] = count_bits(all_above);
                lds.same[wave_id()] = count_bits(all_same);
            }
            block_sync();
            const u64 lower = ((u64)1 << lane_id()) - 1;
            u32 above_before = count_bits(all_above & lower),
                same_before = count_bits(all_same & lower);
            u32 above_here = 0, same_here = 0;
            UNROLL for (u32 w = 0; w < kj_waves; w++) {
                if (w < wave_id()) above_before += lds.above[w], same_before += lds.same[w];
                above_here += lds.above[w], same_here += lds.same[w];
            }
            if (above || (same && same_before < rest))
                chosen[next + above_before + min_u32(same_before, rest)] = i;
            same_here = min_u32(same_here, rest);
            next += above_here + same_here;
            rest -= same_here;
            block_sync();  // all threads have read it
        }
    }
};
