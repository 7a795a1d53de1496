// scores.h: options of attention scores besides the cap: visible positions, a penalty by distance
// (ALiBi), and a score without a value (sink).
//
// S: HEADS; WINDOW (number of visible positions, including the token's own; 0: all), CHUNK (only
// positions in the same chunk of CHUNK are visible; 0: all), ALIBI (the largest exponent of the
// series of slopes; 0: none), SINKS (a score for each head takes part in the softmax and has no
// value).
#pragma once
#include "kjit.h"

template <class S> struct Scores {
    static constexpr float LOG2E = 1.4426950408889634f;

    // The first position that a token at `here` sees.
    STEP u32 seen_from(u32 here) {
        if constexpr (S::CHUNK != 0) return here / S::CHUNK * S::CHUNK;
        return S::WINDOW != 0 && here + 1 > S::WINDOW ? here + 1 - S::WINDOW : 0;
    }

    // Sets all bits below the highest one, to find the largest power of two ≤ HEADS.
    static constexpr u32 TWO = S::HEADS | S::HEADS >> 1, FOUR = TWO | TWO >> 2,
                         EIGHT = FOUR | FOUR >> 4;
    static constexpr u32 FILLED = EIGHT | EIGHT >> 8, POWER = FILLED - FILLED / 2;
    static_assert(POWER <= S::HEADS && S::HEADS < 2 * POWER, "below 65536 heads");

    // The penalty of this head per position of distance (ALiBi: Press et al. 2021, arXiv
    // 2108.12409), in units of log 2: 2^(−ALIBI i / POWER) for heads i = 1 … POWER. The other heads
    // have the odd terms of the series with half the step.
    STEP float slope(u32 head) {
        constexpr float each = S::ALIBI / (float)POWER;
        float exponent = head < POWER ? each * (float)(head + 1)
                                      : 0.5f * each * (float)(2 * (head - POWER) + 1);
        return LOG2E * exp2_hw(-exponent);
    }

    // The penalty of the score of position j for a token at position `here`.
    STEP float lost(float slope, u32 here, u32 j) { return slope * (float)(i32)(here - j); }

    // The divisor of results: the sum of probabilities, with the sink if there is one. `most` is
    // the maximum of the scores, in units of log 2. Probabilities were multiplied by 2^`shift`.
    STEP float all_shares(float most, float sum, const float* sinks, u32 head, float shift) {
        if constexpr (S::SINKS) return sum + exp2_hw(sinks[head] * LOG2E - (most - shift));
        return sum;
    }
};
