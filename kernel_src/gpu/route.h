// route: the TOP experts of each token: softmax over EXPERTS scores, the largest first, the lower index first
// among equals.
//
//   scores  tokens × EXPERTS f32; experts  tokens × TOP u32; shares  tokens × TOP f32
//   RENORMALISE: shares of the chosen sum to one; then all times `scale`
//
// S: EXPERTS, TOP, RENORMALISE. Share: x the token; a block is one wave.
#pragma once
#include "kjit.h"

struct RouteArgs {
    const float* scores;
    u32* experts;
    float* shares;
    float scale;
};

template <class S> struct Route {
    static constexpr u32 EXPERTS = S::EXPERTS, TOP = S::TOP, EACH = CEIL_DIV(EXPERTS, KJ_WAVE);

    // A key that orders floats, NaN lowest, and the lower index first among equals.
    STEP u64 order_key(float x, u32 index) {
        u32 bits = as_u32(x + 0.0f);  // −0 equals 0
        u32 key = x != x ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        return (u64)key << 32 | (0xffffffffu - index);
    }

    STEP void step(RouteArgs a, Share share) {
        u64 token = share.x;
        float v[EACH];
        u64 key[EACH];
        float most = as_f32(0xff800000u), sum = 0.0f;
        UNROLL for (u32 i = 0; i < EACH; i++) {
            u32 e = lane_id() + i * KJ_WAVE;
            v[i] = e < EXPERTS ? a.scores[token * EXPERTS + e] : as_f32(0xff800000u);
            key[i] = e < EXPERTS ? order_key(v[i], e) : 0;
            most = max_f32(most, v[i]);
        }
        most = wave_max(most);
        UNROLL for (u32 i = 0; i < EACH; i++) sum += v[i] = exp_f32(v[i] - most);
        sum = wave_sum(sum);

        u32 mine = 0;          // of the chosen, lane n keeps the n-th: TOP ≤ KJ_WAVE
        float part = 0.0f;
        NO_UNROLL for (u32 n = 0; n < TOP; n++) {
            u64 best = 0;
            UNROLL for (u32 i = 0; i < EACH; i++) best = key[i] > best ? key[i] : best;
            best = wave_largest(best);
            u32 e = 0xffffffffu - (u32)best;
            float p = 0.0f;
            UNROLL for (u32 i = 0; i < EACH; i++) {
                bool here = key[i] == best;
                p += here ? v[i] : 0.0f;
                if (here) key[i] = 0;
            }
            p = wave_sum(p) / sum;
            if (lane_id() == n) mine = e, part = p;
        }
        float chosen = wave_sum(part);
        if (lane_id() < TOP) {
            a.experts[token * TOP + lane_id()] = mine;
            a.shares[token * TOP + lane_id()] = (S::RENORMALISE ? part / chosen : part) * a.scale;
        }
    }
};
